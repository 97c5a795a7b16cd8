"""onnx's backend tests through ``--keep all``: every result must answer as the original.

All models share one library and a handful of processes.  What ONNX Runtime cannot load or run, or
answers differently from onnx, has nothing to be equal to; the reasons are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.suite.node_tests import Case, Original, run_original, same, write_cases
from tracea_graph import Options, api
from tracea_graph.check.worker_pool import WorkerPool
from tracea_graph.errors import WorkerError

pytestmark = pytest.mark.compiler


@dataclass(frozen=True)
class Least:
    """The fewest cases that may be compared, and that may have a rewrite."""

    compared: int
    rewritten: int


SAMPLE, ALL = slice(0, None, 24), slice(None)
LEAST: Mapping[str, Least] = MappingProxyType({"sample": Least(70, 15), "all": Least(1500, 600)})

EXCUSES = {
    "": 1.00,
    "ONNX Runtime does not load it": 0.25,
    "its inputs are no plain tensors": 0.10,
    "ONNX Runtime's outputs are not onnx's": 0.03,
    "ONNX Runtime does not run it": 0.01,
}
"""Why a case has nothing to equal, and the largest share of cases that may have that excuse."""

KEPT = ("test_affine_grid_2d_expanded", "test_affine_grid_2d_align_corners_expanded")
"""They give Range a vector, which ONNX Runtime overlooks only while the sizes are not folded."""


@dataclass(frozen=True)
class Ran:
    """One case: what ONNX Runtime makes of it, what became of it, and how the result differs."""

    case: Case
    original: Original
    outcome: api.OptimizeOutcome
    difference: str = ""

    @property
    def rewritten(self) -> bool:
        return bool(self.outcome.report and self.outcome.report.kernels)


def run_all(folder: Path, only: slice) -> list[Ran]:
    """Optimize backend tests with their own inputs, and run originals and results."""
    for name in ("models", "data", "out"):
        (folder / name).mkdir()
    cases = write_cases(folder / "models", folder / "data", only)
    options = Options(folder / "out", keep="all", data=folder / "data")
    outcomes = list(api.optimize_many([case.model for case in cases], options))
    with WorkerPool() as worker_pool:
        return [
            _ran(worker_pool, case, outcome) for case, outcome in zip(cases, outcomes, strict=True)
        ]


def _ran(worker_pool: WorkerPool, case: Case, outcome: api.OptimizeOutcome) -> Ran:
    try:
        with worker_pool.acquire(None, {}) as worker:
            original = run_original(worker, case)
    except WorkerError as error:
        return Ran(case, Original({}, f"ONNX Runtime crashes: {error}"), outcome)
    report = outcome.report
    if report is None or report.library is None or not original.outputs:
        return Ran(case, original, outcome)
    assert case.feeds is not None
    try:
        with worker_pool.acquire(Path(report.library), {}) as worker:
            worker.open("result", Path(report.output), Path(report.library))
            found = worker.run("result", case.feeds)
    except WorkerError as error:
        return Ran(case, original, outcome, str(error))
    return Ran(case, original, outcome, same(found, original.outputs))


Suite = tuple[str, list[Ran]]


@pytest.fixture(scope="module", params=["sample", pytest.param("all", marks=pytest.mark.slow)])
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    only = SAMPLE if request.param == "sample" else ALL
    return request.param, run_all(tmp_path_factory.mktemp("suite"), only)


def test_every_result_is_equal(suite: Suite) -> None:
    assert not {r.case.name: r.difference for r in suite[1] if r.difference}


def test_only_old_opsets_are_refused(suite: Suite) -> None:
    """What the tool refuses it refuses by its version, or because ONNX Runtime cannot load it;
    nothing fails while it is worked on."""
    errors = {r.case.name: str(r.outcome.error) for r in suite[1] if r.outcome.error}
    known = ("is not supported: convert", "the original does not run: ONNX Runtime cannot load")
    assert not {n: said for n, said in errors.items() if not any(why in said for why in known)}


def test_nothing_is_dropped(suite: Suite) -> None:
    """Every rewrite of a model that ONNX Runtime runs is right, so there never is a culprit."""
    dropped = {
        r.case.name
        for r in suite[1]
        if (report := r.outcome.report) and report.status != "inconclusive"
        for row in report.groups
        if not row.kept
    }
    assert dropped <= set(KEPT)


def test_what_cannot_be_compared_has_an_excuse(suite: Suite) -> None:
    ran = suite[1]
    count = Counter(r.original.trouble for r in ran)
    assert not [why for why, n in count.items() if n > EXCUSES.get(why, 0) * len(ran)], count
    assert count[""] >= LEAST[suite[0]].compared, count


def test_enough_models_have_a_rewrite(suite: Suite) -> None:
    """Those whose answers are compared count; all of them share one library."""
    name, ran = suite
    compared = [r for r in ran if r.rewritten and not r.original.trouble]
    assert len(compared) >= LEAST[name].rewritten
    reports = [r.outcome.report for r in ran if r.rewritten and r.outcome.report]
    assert len({report.domain for report in reports}) == 1
    assert len({Path(str(report.library)).stat().st_ino for report in reports}) == 1
