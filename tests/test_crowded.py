"""A session of many threads on few processors divides no work among more threads than those."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net, normal
from tracea_graph import Options, api
from tracea_graph.check.worker_process import Worker

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
RUNS = 10


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two products and a norm of a size that all threads take tasks of."""
    net, folder = Net(), tmp_path_factory.mktemp("crowded")
    hidden = net("Relu", net("MatMul", net.input("x", "n", 256), net.weight(256, 512)))
    net.graph(net("Softmax", net("MatMul", hidden, net.weight(512, 256))))
    onnx.save(net.model, folder / "net.onnx")
    report = api.optimize(folder / "net.onnx", Options(keep="all", verify=False))
    return Path(report.output)


@pytest.mark.parametrize("processors", [1, 2])
def test_threads_that_take_tasks(processors: int, result: Path, tmp_path: Path) -> None:
    timeline = tmp_path / "timeline"
    env = {"TRACEA_PROCESSORS": str(processors), "TRACEA_TIMELINE": str(timeline)}
    with Worker(env=env) as worker:
        worker.open("model", result, result.with_suffix(".so"), threads=8)
        answers = [worker.run("model", {"x": normal(256, 256, seed=1)}) for _ in range(RUNS)]
    for name, first in answers[0].items():
        assert all(np.array_equal(answer[name], first) for answer in answers)
    lines = timeline.read_text().splitlines()
    assert len(lines) == RUNS, "one program a run"
    threads = [{*line.rsplit("\t", 1)[1].split(",")[1::4]} for line in lines]
    # The first run that others help in finds out that there are others.
    learnt = next((i for i, found in enumerate(threads) if len(found) > 1), RUNS)
    assert all(len(found) <= processors for found in threads[learnt + (processors > 1) :])
