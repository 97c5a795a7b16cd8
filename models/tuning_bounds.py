"""Write what the default search gains, and how much there is: ``python -m models.tuning_bounds``.

Of each model, a run of the tuner from scratch, with the budget and the choices of the default
effort, at each of ``--threads``; ``found`` is the share of the predicted time that it saves.  The
bound is what the best schedules of whole spaces would save at one thread, from the tables of
``models.tuning_tables``, over the share of the time that the recorded calls take.  The table goes
between the marker lines of models/RESULTS.md, or into the file that ``--write`` names.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from models.bench import RESULTS
from models.make import available, make
from models.samplers import TABLES
from models.score import marks, replace_table
from tracea_graph.commands.tune import TunedModel, tune_model
from tracea_graph.hardware import profile_cpu
from tracea_graph.options import OPTIONS, Options, value_parsers
from tracea_graph.pipeline.candidate_models import TUNING_SHARE

TOOL = "models.tuning_bounds"
_HEADS = ("model", "threads", "calls searched", "found", "bound, 1 thread", "of calls that take")


def searched(path: Path, threads: int, precision: str, budget: float) -> TunedModel:
    """Return what the default effort finds from scratch."""
    with tempfile.TemporaryDirectory(prefix="tracea-tuned-") as folder:
        options = Options(
            threads=(threads,), precision=precision, budget=TUNING_SHARE["default"] * budget,
            cache=Path(folder),
        )  # fmt: skip
        return tune_model(path, options, selective=True)


def bound(found: TunedModel, best: Mapping[tuple[str, int], float]) -> tuple[float, float]:
    """Return the share of time that the best recorded schedules save, and that of their calls."""
    known = [
        (t.share, best[str(t.case.problem), t.case.rows])
        for t in found.tuned
        if t.case in found.counts and (str(t.case.problem), t.case.rows) in best
    ]
    saved = sum(share * max(0.0, 1 - 1 / gain) for share, gain in known)
    return saved, sum(share for share, _ in known)


def row(name: str, threads: int, found: TunedModel, best: Mapping[Any, float]) -> tuple[str, ...]:
    """Return the cells of one model at one thread count."""
    done = sum(t.source in ("measured", "unfinished") for t in found.tuned)
    saved, share = bound(found, best)
    limit = (f"{saved:.1%}", f"{share:.0%}") if share else ("", "")
    return name, str(threads), str(done), f"{found.saved:.1%}", *limit


def table(rows: Sequence[tuple[str, ...]], note: str) -> str:
    """Return the rows as Markdown."""
    ruler = ("---", *["---:"] * (len(_HEADS) - 1))
    lines = ["| " + " | ".join(cells) + " |" for cells in (_HEADS, ruler, *rows)]
    return "\n".join([*lines, "", note, ""])


def main(argv: Sequence[str] | None = None) -> None:
    """Search, print and write the table."""
    parser = argparse.ArgumentParser(prog=f"python -m {TOOL}", description=__doc__)
    add: Any = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="names of the zoo (default: all)")
    add("--threads", type=value_parsers.parse_threads, default=(1, 2), metavar="N[,M]")
    add("--precision", choices=OPTIONS["precision"].choices, default="fp32")
    add(
        "--budget",
        type=value_parsers.parse_seconds,
        default=180.0,
        help="of a whole run (default: 180)",
    )
    add("--tables", type=Path, default=TABLES, metavar="TABLES.json")
    add("--folder", type=Path, help="where models are, or are made")
    add("--write", default=str(RESULTS), metavar="FILE.md", help="or - for none")
    args = parser.parse_args(argv)
    target = None if args.write == "-" else Path(args.write)
    if target is not None and marks(args.precision, TOOL)[0] not in target.read_text("utf-8"):
        parser.error(f"{target} lacks the line {marks(args.precision, TOOL)[0]}")
    best = {
        (t["problem"], t["rows"]): t["default"] / min(t["us"])
        for t in json.loads(args.tables.read_text())
    }
    rows = list[tuple[str, ...]]()
    with tempfile.TemporaryDirectory() as made:
        for name in args.models or available():
            place = (args.folder or Path(made)) / f"{name}.onnx"
            path = place if place.exists() else make(name, place.parent)
            for threads in args.threads:
                found = searched(path, threads, args.precision, args.budget)
                rows.append(row(name, threads, found, best))
                print(" | ".join(rows[-1]), flush=True)
    note = f"{profile_cpu().model}; {args.precision}, {date.today()}."
    if target is not None:
        replace_table(target, args.precision, table(rows, note), TOOL)


if __name__ == "__main__":
    main()
