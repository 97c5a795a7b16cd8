"""Measure what tuning gains over the first choice: ``python -m models.tuning_gain MODEL.onnx…``.

Each model is tuned twice from scratch: for ``--budget`` seconds, as ``tracea tune`` would, and
exhaustively for ``--long`` seconds.  A row per region gives the speedup over the policy's first
choice of the best schedule of each search, measured on new pairs.  The last lines give the end to
end gain of both, weighted by predicted shares, and the number of regions whose first choice is
within 10 % of the best.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tracea_graph.commands.tune import TunedModel, tune_model
from tracea_graph.options import OPTIONS, Options, value_parsers
from tracea_graph.tuning.task_priority import MIN_GAIN

_ENOUGH, _CLOSE, _NEAR = 0.05, 0.03, 1.10
"""Minimum end-to-end gain, gain a policy may leave, and tolerance for a region's best."""
_DONE = ("measured", "cache", "hint")
"""Sources of regions that were searched to the end."""


@dataclass(frozen=True)
class Compared:
    """One model under both searches; ``rows`` are region, share, nodes, gains, source."""

    name: str
    rows: tuple[tuple[str, float, int, float, float, str], ...]
    short: float
    long: float

    @property
    def measured(self) -> list[float]:
        """Gain of the best known schedule in each measured region."""
        return [max(row[3], row[4]) for row in self.rows if row[5] in _DONE]

    @property
    def verdict(self) -> str:
        """Verdict on whether tuning gains enough, or the policy leaves too little to gain."""
        if self.short >= _ENOUGH:
            return f"reached: the short search saves {self.short:.1%} end to end"
        best, open_ = max(self.short, self.long), sum(r[1] for r in self.rows if r[5] not in _DONE)
        if best <= _CLOSE and open_ > _CLOSE:
            return f"open: regions with {open_:.0%} of the time were not searched to the end"
        if best <= _CLOSE:
            return f"reached: the policy is within {best:.1%} of the best found, end to end"
        return f"missed: the long search saves {self.long:.1%}, the short one {self.short:.1%}"


def _searched(
    path: Path, args: argparse.Namespace, budget: float, min_gain: float = MIN_GAIN
) -> TunedModel:
    with tempfile.TemporaryDirectory(prefix="tracea-tuned-") as folder:
        return tune_model(
            path,
            Options(
                threads=args.threads, precision=args.precision, seed=args.seed, budget=budget,
                cache=Path(folder), effort="thorough",
            ),
            min_gain=min_gain,
        )  # fmt: skip


def compare(path: Path, args: argparse.Namespace) -> Compared:
    """Run both searches of one model."""
    short, long = _searched(path, args, args.budget), _searched(path, args, args.long, 0.0)
    gains = {t.case: t.gain for t in short.tuned}
    rows = [
        (str(t.case), t.share, long.counts[t.case], gains.get(t.case, 1.0), t.gain, t.source)
        for t in long.tuned
        if t.case in long.counts
    ]
    rows.sort(key=lambda row: -row[1])
    return Compared(f"{path.stem} {args.precision}", tuple(rows), short.saved, long.saved)


def render(found: Compared, budget: float, long: float) -> Table:
    """Return a table with a row per region."""
    table = Table(title=found.name, title_justify="left")
    for name in ("region", "share", "nodes", f"{budget:.0f} s", f"{long:.0f} s", ""):
        table.add_column(name, justify="left" if name in ("region", "") else "right")
    for region, share, nodes, first, best, source in found.rows:
        said = "" if source == "measured" else source
        table.add_row(region, f"{share:.1%}", str(nodes), f"{first:.3f}×", f"{best:.3f}×", said)
    return table


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table per model and the overall result."""
    parser = argparse.ArgumentParser(prog="python -m models.tuning_gain", description=__doc__)
    add: Any = parser.add_argument
    add("models", nargs="+", type=Path, metavar="MODEL.onnx")
    add(
        "--budget",
        type=value_parsers.parse_seconds,
        default=60.0,
        help="of the short search (default: 60)",
    )
    add(
        "--long",
        type=value_parsers.parse_seconds,
        default=1200.0,
        help="of the long one (default: 1200)",
    )
    add(
        "--threads",
        type=value_parsers.parse_threads,
        default=(),
        metavar="N[,M]",
        help="default: 1 and all",
    )
    add("--precision", choices=OPTIONS["precision"].choices, default="fp32")
    add("--seed", type=int, default=0)
    add("-o", dest="out", type=Path, metavar="FILE.json", help="append what was found")
    args = parser.parse_args(argv)
    console, found = Console(), list[Compared]()
    for path in args.models:
        one = compare(path, args)
        found.append(one)
        console.print(render(one, args.budget, args.long), f"{one.name}: {one.verdict}", sep="\n")
        if args.out:
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(vars(one)) + "\n")
    gains = [gain for one in found for gain in one.measured]
    near, left = sum(gain <= _NEAR for gain in gains), sum(len(one.rows) for one in found)
    share = near / len(gains) if gains else 1.0
    console.print(
        f"first choice within 10 % of the best: {near} of {len(gains)} regions ({share:.0%}); "
        f"{left - len(gains)} were not searched to the end"
    )


if __name__ == "__main__":
    main()
