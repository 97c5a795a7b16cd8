"""Whatever a model holds: it is rewritten or left alone, answers as before, and says the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from tests.any_models import MODELS, WEIGHTS, built, without_shapes
from tests.suite.node_tests import same
from tracea_graph import Options, Report, api
from tracea_graph.check.worker_pool import WorkerPool
from tracea_graph.check.worker_process import Array
from tracea_graph.errors import ModelError
from tracea_graph.onnx_io import load
from tracea_graph.onnx_io.node_conversion import all_nodes
from tracea_graph.pipeline.model_inputs import gather_inputs

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
TAKEN = [name for name, spec in MODELS.items() if spec.status != "refused"]


@dataclass(frozen=True)
class Results:
    """All models optimized together, by name; ``worker_pool`` runs them."""

    reports: Mapping[str, Report]
    worker_pool: WorkerPool

    def original(
        self, name: str, feeds: Mapping[str, Array], level: str = "off"
    ) -> Mapping[str, Array]:
        return self._run(Path(self.reports[name].input), None, feeds, level)

    def differs(self, name: str, feeds: Mapping[str, Array]) -> str:
        """How the result differs, with its library or on its bodies, from the original with
        optimizations off and with them on; empty if it equals one of these."""
        report = self.reports[name]
        wanted = [self.original(name, feeds, level) for level in ("off", "all")]
        for library in (Path(report.library) if report.library else None, None):
            found = self._run(Path(report.output), library, feeds, "all")
            if all(wrong := [same(found, y) for y in wanted]):
                return f"with {library}: {wrong[0]}"
        return ""

    def _run(
        self, model: Path, library: Path | None, feeds: Mapping[str, Array], level: str
    ) -> Mapping[str, Array]:
        with self.worker_pool.acquire(library, {}) as worker:
            worker.open("m", model, library, level=level)
            return worker.run("m", feeds)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    folder = tmp_path_factory.mktemp("any")
    places = {name: folder / f"m{i}.onnx" for i, name in enumerate(MODELS)}
    for name, path in places.items():
        path.write_bytes(built(name).SerializeToString())
    outcomes = api.optimize_many(places.values(), Options(folder / "out", keep="all"))
    reports = {}
    for name, outcome in zip(places, outcomes, strict=True):
        if name not in TAKEN:
            assert isinstance(outcome.error, ModelError), name
            continue
        assert outcome.report is not None, f"{name}: {outcome.error}"
        reports[name] = outcome.report
    with WorkerPool() as worker_pool:
        yield Results(reports, worker_pool)


def protos(report: Report) -> tuple[ModelProto, ModelProto]:
    """The original and the result."""
    return onnx.load(report.input), onnx.load(report.output)


def counted(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("name", TAKEN)
def test_what_becomes_of_it(name: str, results: Results) -> None:
    spec, report = MODELS[name], results.reports[name]
    assert report.status == spec.status, report.status_reason
    assert (report.kernels > 0) == (spec.status == "passed"), report.reason
    assert all(row.kept for row in report.groups)
    before, after = map(counted, protos(report))
    assert {op: after[op] for op in spec.kept.split()} == {
        op: before[op] for op in spec.kept.split()
    }


@pytest.mark.parametrize("name", TAKEN)
def test_what_it_says_is_kept(name: str, results: Results) -> None:
    before, after = protos(results.reports[name])
    for field in (
        "producer_name", "producer_version", "domain", "model_version", "doc_string",
        "training_info",
    ):  # fmt: skip
        assert getattr(after, field) == getattr(before, field), field
    assert [*after.metadata_props][: len(before.metadata_props)] == [*before.metadata_props]
    assert [*after.opset_import][: len(before.opset_import)] == [*before.opset_import]
    inlined = {f.name for f in before.functions} - {f.name for f in after.functions}
    kept = [f for f in before.functions if f.name not in inlined]
    assert after.functions[: len(kept)] == kept
    assert not inlined & {node.op_type for node in all_nodes(after.graph)}
    a, b = before.graph, after.graph
    held = {t.name for t in a.initializer} if before.ir_version < 4 else set()
    assert [v for v in b.input if v.name not in held] == [v for v in a.input if v.name not in held]
    if MODELS[name].falsely:
        without_shapes(a.output, b.output)
    assert b.output == a.output
    for field in ("name", "doc_string", "quantization_annotation", "sparse_initializer"):
        assert getattr(b, field) == getattr(a, field), field
    notes = {n.output[0]: (n.doc_string, [*n.metadata_props]) for n in a.node if any(n.output)}
    for node in b.node:
        if node.output[0] in notes and not node.domain.startswith("tracea."):
            assert (node.doc_string, [*node.metadata_props]) == notes[node.output[0]]


@pytest.mark.parametrize("name", [n for n in TAKEN if MODELS[n].alike])
def test_it_answers_as_the_original(name: str, results: Results) -> None:
    path = Path(results.reports[name].input)
    for feeds in gather_inputs(load(path), Options(seed=9)).verification.values():
        assert not results.differs(name, feeds)


def test_what_may_be_fed_instead_of_a_weight_still_may(results: Results) -> None:
    feeds = {"x": np.ones((3, 8), np.float32)}
    fed = feeds | {"w": np.full((8, 8), 3, np.float32), "v": WEIGHTS["w"]}
    name = "overridable initializers"
    assert same(results.original(name, fed), results.original(name, feeds))
    assert not results.differs(name, fed)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("name", ["everything is an output", "loop", "qdq", "fp16"])
def test_no_rows_and_one(rows: int, name: str, results: Results) -> None:
    dtype = np.float16 if name == "fp16" else np.float32
    feeds = {"x": np.ones((rows, 8), dtype)}
    assert not results.differs(name, feeds)
