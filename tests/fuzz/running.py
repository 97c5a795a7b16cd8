"""Many drawn models through ``--keep legal`` at once, and what became of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from fuzz.steadiness import Array, answers, steady
from fuzz.strategies import drawn
from suite.node_tests import same

from tracea_graph import Options, api
from tracea_graph.check.crew import Crew
from tracea_graph.check.feeds import Binding, synthesize
from tracea_graph.errors import WorkerError
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.inputs import gather_inputs

__all__ = ["Ran", "run_many", "write_steady"]

SIZES = {"batch": 2, "seq": 9, "rows": 11, "columns": 6}
"""Of symbols, when a result is held against its original: none that verification uses."""


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
    for i, model in enumerate(drawn(count * 5 // 4, seed)):
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


def run_many(paths: Sequence[Path], out: Path) -> list[Ran]:
    """Optimize all, and hold each against its original with inputs of its own."""
    outcomes = api.optimize_many(paths, Options(out, keep="legal"))
    with Crew() as crew:
        return [_ran(crew, outcome) for outcome in outcomes]


def _ran(crew: Crew, outcome: api.Outcome) -> Ran:
    path, report = outcome.source, outcome.report
    if report is None:
        return Ran(path, False, f"{type(outcome.error).__name__}: {outcome.error}")
    dropped = [f"{row.group}: {row.reason}" for row in report.groups if not row.kept]
    if dropped:
        return Ran(path, bool(report.kernels), f"dropped {dropped}; {report.reason}")
    if report.status == "inconclusive" or (report.kernels and report.status != "passed"):
        return Ran(path, bool(report.kernels), f"{report.status}: {report.reason}")
    if report.library is None:
        return Ran(path, False)
    feed = _feed(path)
    try:
        wanted = answers(onnx.load(path), feed)
    except Exception:  # sizes the model does not take
        return Ran(path, True)
    names = [v.name for v in onnx.load(path).graph.output]
    try:
        with crew.hire(Path(report.library), {}) as worker:
            worker.open("result", Path(report.output), Path(report.library))
            found = worker.run("result", feed)
    except WorkerError as error:
        return Ran(path, True, str(error))
    return Ran(path, True, same(found, dict(zip(names, wanted, strict=True))))


def _feed(path: Path) -> Mapping[str, Array]:
    model = load(path)
    return synthesize(model.graph, Binding("fuzz", SIZES), 5, model.inputs)
