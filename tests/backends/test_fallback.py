"""One library for a GPU and the CPU: what function bodies of GPU nodes call without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.backends.conformance import CLOSE, NETS
from tests.backends.test_double import close, run
from tests.graphs import Net, normal
from tracea_graph import Options, Report, api, target
from tracea_graph.check.worker_process import Worker
from tracea_graph.commands.bench import BenchOptions
from tracea_graph.commands.profile import profile
from tracea_graph.errors import UsageError
from tracea_graph.ir import DType

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("double_backend")]
BOTH = "cpu,double:sm_90"
WITHOUT_GPU = {"TRACEA_DEVICE": "cpu"}


def made(folder: Path, name: str, **options: Any) -> Report:
    net = Net()
    path = net.save(folder / "m.onnx", NETS[name](net))
    report = api.optimize(path, Options(target=BOTH, keep="all", **options))
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1
    return report


def operators_run(report: Report, feed: dict[str, Any]) -> set[str]:
    """Return the names of the operators that ONNX Runtime runs without a GPU."""
    assert report.library is not None
    with Worker(env=WITHOUT_GPU) as worker:
        worker.open("result", Path(report.output), Path(report.library))
        return {node.op for node in worker.profile("result", feed, runs=2)}


def test_one_library_runs_on_both(tmp_path: Path) -> None:
    report = made(tmp_path, "perceptron")
    assert report.levels[0] == "scalar" and report.levels[-1] == "sm_90a"
    feeds = {f"{n}": {"x": normal(n, 24)} for n in (3, 1, 0, 3)}
    on_gpu, told = run(report, feeds, tmp_path)
    assert told["launches"] and close(report, on_gpu, feeds, CLOSE)
    on_cpu, told = run(report, feeds, tmp_path, WITHOUT_GPU)
    assert told["refusal"] and not told["launches"] and close(report, on_cpu, feeds, CLOSE)
    assert all(op.startswith("Fused") for op in operators_run(report, feeds["3"]))


def test_a_profile_without_a_gpu_shows_the_kernels_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = made(tmp_path, "perceptron")
    monkeypatch.setenv("TRACEA_DEVICE", "cpu")
    found = profile(Path(report.output), BenchOptions(pairs=3, seconds=0.2))
    assert found.in_programs == 1.0 and found.rows[0].op.startswith("Fused")
    assert {call.op for row in found.rows for call in row.calls} >= {"gemm"}
    note = "the kernels for double do not run here: kernels for the cpu were profiled instead"
    assert note in found.notes


def test_operators_run_what_only_the_gpu_has(tmp_path: Path) -> None:
    """Choices among integers have kernels on the GPU only."""
    report, feed = made(tmp_path, "ranked"), {"x": normal(3, 20)}
    assert close(report, run(report, {"3": feed}, tmp_path)[0], {"3": feed})
    assert close(report, run(report, {"3": feed}, tmp_path, WITHOUT_GPU)[0], {"3": feed})
    found = operators_run(report, feed)
    assert {"ArgMin", "GatherElements", "TopK"} < found
    assert any(op.startswith("Fused") for op in found)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_operators_widen_halves_that_kernels_of_the_cpu_do_not_read(
    precision: str, tmp_path: Path
) -> None:
    net = Net()
    x = net("Cast", net.input("x", 1, 3, 8, 8, dtype=DType.F16), to=TensorProto.FLOAT)
    conv = net("Relu", net("Conv", x, net.weight(16, 3, 3, 3), pads=[1] * 4))
    path = net.save(tmp_path / "m.onnx", net("GlobalAveragePool", conv))
    report = api.optimize(path, Options(target=BOTH, keep="all", precision=precision))
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    feed = {"x": normal(1, 3, 8, 8).astype(np.float16)}
    assert close(report, run(report, {"1": feed}, tmp_path, WITHOUT_GPU)[0], {"1": feed})
    assert any(op.startswith("Fused") for op in operators_run(report, feed))


def test_convolutions_share_their_filters(tmp_path: Path) -> None:
    """The CPU's programs read the weights of the GPU's node: none is stored twice."""
    report = made(tmp_path, "images", precision="fp16", max_error=1e-2)
    model = onnx.load(report.output)
    original = onnx.load(report.input)
    stored = sum(np.prod(t.dims) for t in model.graph.initializer)
    assert stored <= sum(np.prod(t.dims) for t in original.graph.initializer)
    outer, inner = sorted(model.functions, key=lambda f: f.domain != report.domain)
    assert {n.domain for n in outer.node} == {inner.domain, ""}
    (x,) = model.graph.input
    sizes = [d.dim_value or 8 for d in x.type.tensor_type.shape.dim]
    assert operators_run(report, {x.name: normal(*sizes)}) == {inner.name}


def test_bodies_stay_where_the_library_is_required(tmp_path: Path) -> None:
    report = made(tmp_path, "perceptron", require_library=True)
    (body,) = onnx.load(report.output).functions
    assert body.domain == report.domain and body.node[0].domain != report.domain
    feed = {"x": normal(3, 24)}
    assert all(op.startswith("Fused") for op in operators_run(report, feed))


def test_names_of_both() -> None:
    both = target.target_of("cpu,cuda:sm_90", "fp16")
    assert both.levels == ("sm_90a",) and both.fallback is not None
    assert both.every_level == (*both.fallback.levels, "sm_90a")
    assert both.variables("sm_90a") == {}
    assert both.variables("scalar") == {"TRACEA_DEVICE": "cpu", "TRACEA_ISA": "scalar"}
    with pytest.raises(UsageError, match="there is no target 'cuda:sm_12'"):
        target.target_of("cpu,cuda:sm_12", "fp32")
    with pytest.raises(UsageError, match="both parts are for one processor"):
        target.target_of("cpu,cpu:scalar", "fp32")
