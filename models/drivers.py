"""How good the first driver is: ``python -m models.drivers MODEL.onnx… -o FILE.json``.

For every distinct matrix product of the models, the driver the policy takes untuned is raced
against its best challengers (``tuning.candidates``) on one core, weights cold.  A row is

    [problem, rows, [[challenger, how many times as fast as the first choice]…]]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.regions import APART
from tracea_graph.check.bindings import bindings
from tracea_graph.config import Environment
from tracea_graph.hardware import profile_cpu
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.assembly import assemble
from tracea_graph.pipeline.planning import Planner
from tracea_graph.tuning.bench_model import Stand
from tracea_graph.tuning.problem import Case, default_of
from tracea_graph.tuning.space import candidates

_PAIRS, _SECONDS = 7, 1.5


def _cases(paths: Sequence[Path]) -> list[Case]:
    found: dict[Case, None] = {}
    for path in paths:
        model = load(path)
        bound = bindings(model.graph, (), model.inputs)[0][0].symbols
        assembly = assemble(Planner(model.graph, APART, bound).plan().graph)
        for workload in assembly.workloads([bound]):
            found |= {Case(workload.problem, rows): None for rows in workload.rows}
    return [case for case in found if case.problem.kernel == "gemm"]


def _race(case: Case, stand: Stand, isa: str, limit: int) -> list[Any]:
    first, rows = default_of(case), []
    for driver in candidates(case, isa, (1,), limit):
        race = stand.race(case, first, driver, 1, _PAIRS, _SECONDS)
        gain = min(race.a_ms) / min(race.b_ms)
        rows.append([list(dataclasses.astuple(driver)), round(gain, 3)])
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Race what is not in the file yet."""
    parser = argparse.ArgumentParser(prog="python -m models.drivers", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("-o", dest="out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--limit", type=int, default=6, help="challengers of each")
    args = parser.parse_args(argv)
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    done = {(row[0], row[1]) for row in rows}
    profile = profile_cpu()
    cases = [c for c in _cases(args.models) if (str(c.problem), c.rows) not in done]
    with tempfile.TemporaryDirectory() as folder, Stand(
        [c.problem for c in cases], profile.isas[-1], Path(folder),
        environment=Environment(), cache=profile.l3,
    ) as stand:  # fmt: skip
        for case in cases:
            raced = _race(case, stand, profile.isas[-1], args.limit)
            rows.append([str(case.problem), case.rows, raced])
            args.out.write_text(json.dumps(rows) + "\n")
            print(case, max((gain for _, gain in raced), default=1.0))


if __name__ == "__main__":
    main()
