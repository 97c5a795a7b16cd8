"""Time all schedules of problems: ``python -m models.tuning_tables MODEL.onnx… -o FILE.json``.

Of each model, the ``--problems`` slowest (as predicted) are recorded whose candidates are too many
for the tuner to measure one by one.  A table is

    {"problem": …, "rows": …, "level": …, "threads": …, "axes": [name…],
     "candidates": [[value…]…], "speed": [ratio…]}

where candidates are in the order of the cost model and ``speed`` is the speed of each relative to
the default schedule's: the quotient of the shortest of ``--pairs`` interleaved runs with cold
weights, over ``--passes`` passes.  Tables in the file are not recorded again.  ``models.samplers``
compares samplers on such a file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.schedules import named_cases
from tracea_graph.config import Environment
from tracea_graph.errors import WorkerError
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.program import Schedule
from tracea_graph.options import OPTIONS, values
from tracea_graph.target import HOST, target_of
from tracea_graph.tuning.fixture import ModelFixture
from tracea_graph.tuning.problem import Case, default_of
from tracea_graph.tuning.space import candidates
from tracea_graph.tuning.study import EXHAUSTIVE

_SECONDS = 1.0
"""Time limit of one candidate's pairs."""


def record(
    case: Case, level: str, threads: int, fixture: ModelFixture, pairs: int, passes: int
) -> dict[str, Any]:
    """Return the table of one case at one thread count."""
    ranked = candidates(case, SCHEDULE_SPACE, level, (threads,), on=SCHEDULE_SPACE.architecture)
    shortest = {schedule: [math.inf, math.inf] for schedule in ranked}
    for _ in range(passes):
        for schedule, best in shortest.items():
            for i, ms in enumerate(_shortest(case, schedule, threads, fixture, pairs)):
                best[i] = min(best[i], ms)
    first = default_of(case)
    names = [f.name for f in dataclasses.fields(first)][1:]  # the first is the rows' limit
    return {
        "problem": str(case.problem),
        "rows": case.rows,
        "level": level,
        "threads": threads,
        "axes": names,
        "candidates": [[getattr(s, name) for name in names] for s in ranked],
        "speed": [round(a / b, 4) if b < math.inf else 0.0 for a, b in shortest.values()],
    }


def _shortest(
    case: Case, schedule: Schedule, threads: int, fixture: ModelFixture, pairs: int
) -> tuple[float, float]:
    """Return the shortest times of the default and a schedule; infinite if it cannot run."""
    try:
        times = fixture.compare(case, default_of(case), schedule, threads, pairs, _SECONDS)
    except WorkerError as error:
        print(f"{case}: {schedule}: {error}", flush=True)
        return math.inf, math.inf
    return min(times.a_ms), min(times.b_ms)


def _worth_recording(paths: Sequence[Path], args: argparse.Namespace, level: str) -> list[Case]:
    """Return the largest problems of each model whose spaces are sampled."""
    found: dict[str, Case] = {}
    for path in paths:
        cases = named_cases([path], args.precision, level)
        large = sorted(
            (
                (-SCHEDULE_SPACE.modelled_us(case, default_of(case), level, 1), name)
                for name, case in cases.items()
                if len(candidates(case, SCHEDULE_SPACE, level, (1,))) > EXHAUSTIVE
            ),
        )
        found |= {name: cases[name] for _, name in large[: args.problems]}
    return list(found.values())


def main(argv: Sequence[str] | None = None) -> None:
    """Record the tables that the file lacks."""
    parser = argparse.ArgumentParser(prog="python -m models.tuning_tables", description=__doc__)
    add: Any = parser.add_argument
    add("models", nargs="+", type=Path, metavar="MODEL.onnx")
    add("-o", dest="out", type=Path, required=True, metavar="FILE.json")
    add("--problems", type=int, default=2, help="of each model (default: 2)")
    add("--threads", type=values.threads, default=(1,), metavar="N[,M]")
    add("--precision", choices=OPTIONS["precision"].choices, default="fp32")
    add("--pairs", type=int, default=3, help="of a candidate in a pass (default: 3)")
    add("--passes", type=int, default=2, help="over all candidates (default: 2)")
    add("--budget", type=values.seconds, default=math.inf, metavar="SECONDS")
    args = parser.parse_args(argv)
    tables = json.loads(args.out.read_text()) if args.out.exists() else []
    done = {(t["problem"], t["rows"], t["threads"]) for t in tables}
    target, end = target_of(HOST, args.precision), time.monotonic() + args.budget
    level = target.levels[-1]
    cases = _worth_recording(args.models, args, level)
    with tempfile.TemporaryDirectory() as folder, ModelFixture(
        [case.problem for case in cases], target.backend, level, Path(folder),
        environment=Environment(),
    ) as fixture:  # fmt: skip
        for case in cases:
            for threads in args.threads:
                if (str(case.problem), case.rows, threads) in done or time.monotonic() > end:
                    continue
                tables.append(record(case, level, threads, fixture, args.pairs, args.passes))
                args.out.write_text("[\n" + ",\n".join(map(json.dumps, tables)) + "\n]\n")
                speeds = tables[-1]["speed"]
                print(case, threads, len(speeds), max(speeds), flush=True)


if __name__ == "__main__":
    main()
