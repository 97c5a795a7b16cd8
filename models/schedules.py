"""Measure how good the first schedule is: ``python -m models.schedules MODEL.onnx… -o FILE.json``.

For every distinct product and convolution of the models, the untuned schedule is timed against its
best challengers (``tuning.candidates``), with cold weights, at each of ``--threads``.  A row is

    [problem, rows, [[challenger, speedup over the first choice]…]]

where the speedup is a geometric mean over thread counts.  Rows in the file are not timed again,
and after ``--budget`` the rest is left for the next run; the last line says how many first choices
are within 10 % of the best.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracea_graph import Options
from tracea_graph.check.symbol_bindings import choose_bindings
from tracea_graph.config import Environment
from tracea_graph.errors import WorkerError
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.onnx_io import load
from tracea_graph.options import OPTIONS, value_parsers
from tracea_graph.passes import WEIGHT_DEPENDENT
from tracea_graph.pipeline.planning import Planner
from tracea_graph.target import HOST, target_of
from tracea_graph.toolchain.object_cache import sha256_of_parts
from tracea_graph.tuning.benchmark_fixture import ModelFixture
from tracea_graph.tuning.candidate_selection import candidates_to_measure
from tracea_graph.tuning.task_priority import tuning_tasks
from tracea_graph.tuning.tuning_problem import Case, default_schedule

_PAIRS, _SECONDS, _CLOSE = 5, 1.0, 1.1


def named_cases(
    paths: Sequence[Path],
    precision: str,
    isa: str = "avx512",
    skip: Sequence[str] = WEIGHT_DEPENDENT,
) -> Mapping[str, Case]:
    """Return the cases of the models' programs, except small ones, by unique names.

    Rules in ``skip`` are left out.
    """
    options = Options(keep="all", verify=False, skip=tuple(skip), precision=precision)
    found: dict[str, Case] = {}
    for path in paths:
        model = load(path)
        bound = choose_bindings(model.graph, (), model.inputs)[0][0].symbols
        planner = Planner(model.graph, options, bound)
        assembly, _ = planner.assembled(planner.plan)
        for task in tuning_tasks(assembly.workloads([bound]), SCHEDULE_SPACE, isa, (1,)):
            if task.asked:
                told = sha256_of_parts(json.dumps(task.case.problem.key, default=str))[:6]
                found[f"{task.case.problem} [{told}] {task.case.rows}"] = task.case
    return found


def _compare(
    case: Case, fixture: ModelFixture, isa: str, threads: Sequence[int], limit: int
) -> list[tuple[list[Any], float]]:
    first, found = default_schedule(case), []
    for schedule in candidates_to_measure(case, SCHEDULE_SPACE, isa, threads, limit):
        try:
            times = [fixture.compare(case, first, schedule, t, _PAIRS, _SECONDS) for t in threads]
        except WorkerError as error:
            print(f"{case}: {schedule}: {error}")
            continue
        gains = [math.log(min(one.a_ms) / min(one.b_ms)) for one in times]
        gain = math.exp(sum(gains) / len(gains))
        found.append((list(dataclasses.astuple(schedule)), round(gain, 3)))
    return found


def _summary(rows: Sequence[Any]) -> str:
    best = [max((gain for _, gain in times), default=1.0) for _, _, times in rows]
    near = sum(gain <= _CLOSE for gain in best)
    return f"first choice within 10 % of the best: {near} of {len(best)} regions"


def main(argv: Sequence[str] | None = None) -> None:
    """Time the cases that the file lacks."""
    parser = argparse.ArgumentParser(prog="python -m models.schedules", description=__doc__)
    add: Any = parser.add_argument
    add("models", nargs="+", type=Path, metavar="MODEL.onnx")
    add("-o", dest="out", type=Path, required=True, metavar="FILE.json")
    add("--limit", type=int, default=6, help="challengers of each")
    add("--threads", type=value_parsers.parse_threads, default=(1,), metavar="N[,M]")
    add("--precision", choices=OPTIONS["precision"].choices, default="fp32")
    add("--budget", type=value_parsers.parse_seconds, default=math.inf, metavar="SECONDS")
    args = parser.parse_args(argv)
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    done = {f"{row[0]} {row[1]}" for row in rows}
    target = target_of(HOST, args.precision)
    named = named_cases(args.models, args.precision, target.levels[-1])
    todo = {name: case for name, case in named.items() if name not in done}
    print(f"{len(todo)} of {len(named)} regions are not timed yet", flush=True)
    with tempfile.TemporaryDirectory() as folder, ModelFixture(
        [case.problem for case in named.values()], target.backend, target.levels[-1],
        Path(folder), environment=Environment(),
    ) as fixture:  # fmt: skip
        end = time.monotonic() + args.budget
        for name, case in todo.items():
            if time.monotonic() > end:
                break
            times = _compare(case, fixture, target.levels[-1], args.threads, args.limit)
            rows.append([name.rpartition(" ")[0], case.rows, times])
            args.out.write_text(json.dumps(rows) + "\n")
            print(name, max((gain for _, gain in times), default=1.0), flush=True)
    print(_summary(rows))


if __name__ == "__main__":
    main()
