"""Time all schedules of problems: ``python -m models.tuning_tables MODEL.onnx… -o FILE.json``.

Of each model, the ``--problems`` slowest (as predicted) are recorded whose candidates are too many
for the tuner to measure one by one, and every problem that ``--problem`` describes.  A table is

    {"problem": …, "rows": …, "level": …, "default": us, "axes": [name…],
     "candidates": [[value…]…], "us": [time…]}

where candidates are in the order of the cost model.  A time is the shortest of ``--runs`` runs in
each of ``--passes`` passes over all candidates, in µs of processor time of one thread, so that
other processes matter little; weights are cold.  Tables in the file are not recorded again.
``models.samplers`` compares samplers on such a file.
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

import onnxruntime

from models.schedules import named_cases
from tracea_graph.commands.autotuner import write_problem
from tracea_graph.config import Environment
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.program import Schedule
from tracea_graph.options import OPTIONS, value_parsers
from tracea_graph.problem_descriptor import ProblemDescriptor
from tracea_graph.target import HOST, target_of
from tracea_graph.tuning.benchmark_fixture import ModelFixture
from tracea_graph.tuning.candidate_selection import candidates_to_measure
from tracea_graph.tuning.schedule_search import EXHAUSTIVE
from tracea_graph.tuning.tuning_problem import Case, default_schedule


def record(
    case: Case, level: str, fixture: ModelFixture, runs: int, passes: int
) -> dict[str, Any]:
    """Return the table of one case."""
    first = default_schedule(case)
    ranked = candidates_to_measure(
        case, SCHEDULE_SPACE, level, (1,), on=SCHEDULE_SPACE.architecture
    )
    us = dict.fromkeys((first, *ranked), math.inf)
    for _ in range(passes):
        for schedule in us:
            us[schedule] = min(us[schedule], _shortest_us(case, schedule, fixture, runs))
    names = [f.name for f in dataclasses.fields(first)][1:]  # the first is the rows' limit
    return {
        "problem": str(case.problem),
        "rows": case.rows,
        "level": level,
        "default": round(us[first], 2),
        "axes": names,
        "candidates": [[getattr(s, name) for name in names] for s in ranked],
        "us": [round(us[s], 2) for s in ranked],
    }


def _shortest_us(case: Case, schedule: Schedule, fixture: ModelFixture, runs: int) -> float:
    """Return the processor time of one call, the shortest of some runs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.register_custom_ops_library(str(fixture.library.path))
    path = fixture.write(case, schedule, "table")
    session, feeds = onnxruntime.InferenceSession(str(path), options), fixture.feeds(case)
    session.run(None, feeds)
    best = math.inf
    for _ in range(runs):
        start = time.thread_time()
        session.run(None, feeds)
        best = min(best, time.thread_time() - start)
    return best / fixture.model(case).count * 1e6


def _worth_recording(paths: Sequence[Path], precision: str, level: str, most: int) -> list[Case]:
    """Return the largest problems of each model whose spaces are sampled."""
    found: dict[str, Case] = {}
    for path in paths:
        cases = named_cases([path], precision, level)
        large = sorted(
            (-SCHEDULE_SPACE.modelled_us(case, default_schedule(case), level, 1), name)
            for name, case in cases.items()
            if len(candidates_to_measure(case, SCHEDULE_SPACE, level, (1,))) > EXHAUSTIVE
        )
        found |= {name: cases[name] for _, name in large[:most]}
    return list(found.values())


def _described(texts: Sequence[str], folder: Path, precision: str, level: str) -> list[Case]:
    """Return the cases of problems such as ``attention:1x5x197x197x64``."""
    found: list[Case] = []
    for i, text in enumerate(texts):
        path = folder / f"problem{i}.onnx"
        write_problem(ProblemDescriptor.parse(text), path)
        found += named_cases([path], precision, level, ()).values()
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Record the tables that the file lacks."""
    parser = argparse.ArgumentParser(prog="python -m models.tuning_tables", description=__doc__)
    add: Any = parser.add_argument
    add("models", nargs="*", type=Path, metavar="MODEL.onnx")
    add("-o", dest="out", type=Path, required=True, metavar="FILE.json")
    add("--problem", action="append", default=[], metavar="KIND:SIZES")
    add("--problems", type=int, default=2, help="of each model (default: 2)")
    add("--precision", choices=OPTIONS["precision"].choices, default="fp32")
    add("--runs", type=int, default=3, help="of a candidate in a pass (default: 3)")
    add("--passes", type=int, default=3, help="over all candidates (default: 3)")
    add("--budget", type=value_parsers.parse_seconds, default=math.inf, metavar="SECONDS")
    args = parser.parse_args(argv)
    tables = json.loads(args.out.read_text()) if args.out.exists() else []
    done = {(t["problem"], t["rows"]) for t in tables}
    target, end = target_of(HOST, args.precision), time.monotonic() + args.budget
    level = target.levels[-1]
    cases = _worth_recording(args.models, args.precision, level, args.problems)
    with tempfile.TemporaryDirectory() as folder:
        cases += _described(args.problem, Path(folder), args.precision, level)
    with tempfile.TemporaryDirectory() as folder, ModelFixture(
        [case.problem for case in cases], target.backend, level, Path(folder),
        environment=Environment(),
    ) as fixture:  # fmt: skip
        for case in cases:
            if (str(case.problem), case.rows) in done or time.monotonic() > end:
                continue
            table = record(case, level, fixture, args.runs, args.passes)
            tables.append(table)
            args.out.write_text("[\n" + ",\n".join(map(json.dumps, tables)) + "\n]\n")
            best = table["default"] / min(table["us"])
            print(f"{case}: {len(table['us'])} candidates, the best {best:.3f}×", flush=True)


if __name__ == "__main__":
    main()
