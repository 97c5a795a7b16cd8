"""Many drawn models through ``--keep all`` at once, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import onnx

from tests.fuzz.feeding import Feed, feeds
from tests.fuzz.original import Original
from tests.fuzz.steadiness import steady
from tests.fuzz.strategies import drawn
from tests.highest import highest_level
from tracea_graph import Options, Report, api
from tracea_graph.check.worker_pool import WorkerPool
from tracea_graph.errors import WorkerError
from tracea_graph.onnx_io import load
from tracea_graph.onnx_io.initializer_guards import result_nodes
from tracea_graph.pipeline.model_inputs import gather_inputs

__all__ = ["Ran", "run_many", "write_steady"]

_GUARDED = ":unchanged"
"""What outputs are called while no guarded initializer is fed."""
_POISON = {"MALLOC_PERTURB_": "128"}
"""Memory that nobody has written reads as 3.4e38 instead of zeros."""


@dataclass(frozen=True)
class Ran:
    """What became of one model; ``trouble`` says what is wrong, empty if nothing is."""

    path: Path
    rewritten: bool
    trouble: str = ""


def write_steady(folder: Path, count: int, seed: int) -> tuple[list[Path], int]:
    """``count`` files of drawn models whose answers stand still; and how many do not."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    unsteady = 0
    for i, model in enumerate(drawn(count * 4 // 3, seed)):
        path = folder / f"m{seed}_{i}.onnx"
        onnx.save(model, path)
        if steady(model, gather_inputs(load(path), Options()).verification):
            paths.append(path)
        else:
            path.unlink()
            unsteady += 1
        if len(paths) == count:
            break
    return paths, unsteady


def run_many(paths: Sequence[Path], out: Path, every_level: bool) -> list[Ran]:
    """Optimize all, and hold each against its original with inputs of its own.

    Unless ``every_level``, for the highest level alone.
    """
    with nullcontext() if every_level else highest_level():
        outcomes = list(api.optimize_many(paths, Options(out, keep="all")))
    with WorkerPool() as worker_pool:
        return [_ran(worker_pool, outcome) for outcome in outcomes]


def _ran(worker_pool: WorkerPool, outcome: api.OptimizeOutcome) -> Ran:
    path, report = outcome.source, outcome.report
    if report is None:
        return Ran(path, False, f"{type(outcome.error).__name__}: {outcome.error}")
    if report.status == "inconclusive":  # the tool, too, asks more of an original than it gives
        return Ran(path, False)
    dropped = [f"{row.group}: {row.reason}" for row in report.groups if not row.kept]
    if dropped:
        return Ran(path, bool(report.kernels), f"dropped {dropped}; {report.reason}")
    if report.kernels and report.status not in ("passed", "insensitive"):
        return Ran(path, bool(report.kernels), f"{report.status}: {report.reason}")
    if report.library is None:
        return Ran(path, False)
    original = Original(worker_pool, path, _left(Path(str(report.output))))
    fed = feeds(onnx.load(path))
    troubles = (_trouble(worker_pool, original, report, feed) for feed in fed)
    return Ran(path, True, "; ".join(filter(None, troubles)))


def _left(result: Path) -> set[str]:
    """The values that operators of ONNX Runtime's write; guarded ones by the names they had."""
    nodes = (node for node in result_nodes(onnx.load(result)) if not node.domain)
    return {value.removesuffix(_GUARDED) for node in nodes for value in node.output}


def _trouble(worker_pool: WorkerPool, original: Original, report: Report, feed: Feed) -> str:
    wanted = original.answer(feed.arrays)
    if wanted is None:
        return ""
    try:
        with worker_pool.acquire(Path(report.library), _POISON) as worker:
            worker.open("result", Path(report.output), Path(report.library))
            found = worker.run("result", feed.arrays)
    except WorkerError as error:
        return f"{feed.kind} ({feed.label}): {error}"
    trouble = original.judge(found, wanted, feed.arrays)
    return trouble and f"{feed.kind} ({feed.label}): {trouble}"
