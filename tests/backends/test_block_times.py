"""Kernels that record when their blocks run, on a double of the driver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.backends.conformance import CLOSE
from tests.graphs import Net
from tracea_graph import Options, api
from tracea_graph.commands.bench import BenchOptions
from tracea_graph.commands.timeline import record_timeline
from tracea_graph.errors import GraphError, UsageError
from tracea_graph.kernels.gpu.block_times import with_block_times
from tracea_graph.kernels.gpu.dialect import HOST
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.views.timeline import timeline_svg

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("double_backend")]


def test_blocks_are_recorded_only_in_libraries_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    y = net("Softmax", net("MatMul", net.input("x", "batch", 24), net.weight(24, 32)), axis=-1)
    path = net.save(tmp_path / "m.onnx", y)
    options = Options(target="double:sm_90", keep="all")
    plain = api.optimize(path, options)
    with pytest.raises(UsageError, match="was not optimized under TRACEA_TASK_TIMES=1"):
        record_timeline(Path(plain.output))
    monkeypatch.setenv("TRACEA_TASK_TIMES", "1")
    timed = api.optimize(path, replace(options, output=str(tmp_path / "timed.onnx")))
    assert timed.error is not None and timed.error < CLOSE
    found = record_timeline(Path(timed.output), BenchOptions(shapes=({"batch": 70},)))
    assert set(found.processors) == {0, 1}  # of the host dialect
    assert [call for call in found.calls if "gemm" in call], found.calls
    assert {task.call for task in found.tasks} == set(range(len(found.calls)))
    assert all(task.begin < task.end for task in found.tasks)
    assert found.recorded is not None and "Recording costs" in found.summary
    assert "2 multiprocessors" in found.summary
    drawn = ElementTree.fromstring(timeline_svg(found))
    bars = [e for e in drawn.iter("{http://www.w3.org/2000/svg}rect") if len(e)]
    assert len(bars) == len(found.tasks)


def test_a_text_without_a_kernel_is_refused() -> None:
    with pytest.raises(GraphError, match="has 0 kernels"):
        with_block_times(KernelSource("s", "void s() {\n}\n", 32), HOST)
