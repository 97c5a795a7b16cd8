"""Run the zoo: ``python -m models.bench [NAME…|all] [--write README.md]``.

Each model is made, optimized in a folder of its own and raced against ONNX Runtime and OpenVINO
on one thread and on two.  A model that nothing made faster is kept as it is and counts as 1.  The
table is printed as Markdown; ``--write`` puts it between the two marker lines of a file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.make import available, make
from tracea_graph.check.peers import PEERS
from tracea_graph.cli import optimize_main
from tracea_graph.errors import TraceaError, UsageError
from tracea_graph.pipeline.bench import BenchOptions, bench
from tracea_graph.views.bench import BenchReport, BenchRow, made_with

__all__ = ["BEGIN", "END", "Score", "main", "markdown", "replace_table", "score"]

BEGIN, END = "<!-- models.bench: begin -->", "<!-- models.bench: end -->"
THREADS = (1, 2)
_PEER = "OpenVINO f32"
_HEADS = (
    "model", "GFLOP", "ONNX Runtime, ms", "tracea, ms", "1 thread", "2 threads",
    "OpenVINO f32, ms", "max error", "nodes as kernels",
)  # fmt: skip


@dataclass(frozen=True)
class Score:
    """One model's line: times on one thread in ms, ratios to ONNX Runtime by thread count.

    ``kernels`` is 0 for a model kept as it was; ``peer`` is None where OpenVINO did not run it.
    """

    name: str
    gflop: float
    before: float
    after: float
    ratios: tuple[float, ...]
    peer: float | None
    error: float
    kernels: int
    nodes: int

    @property
    def cells(self) -> tuple[str, ...]:
        """The line's texts, in the order of the table's heads."""
        peer = "" if self.peer is None else f"{self.peer:.3g}"
        gflop = f"{self.gflop:.3g}"
        if not self.kernels:
            times = (f"{self.before:.3g}", "kept", *("1" for _ in self.ratios))
            return (self.name, gflop, *times, peer, "0", f"0 of {self.nodes}")
        times = (f"{self.before:.3g}", f"{self.after:.3g}", *(f"{r:.2f}×" for r in self.ratios))
        counts = f"{self.kernels} of {self.nodes}"
        return (self.name, gflop, *times, peer, f"{self.error:.0e}", counts)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the models asked for, print and write the table."""
    args = _parser().parse_args(argv)
    names = available() if args.names in ([], ["all"]) else tuple(args.names)
    try:
        _check(names, args.write)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    scores, notes, failed = list[Score](), list[str](), list[str]()
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            found, report = _run(name, args)
        except TraceaError as error:
            failed.append(f"{name}: {error}")
            continue
        scores.append(found)
        notes += [f"{name}: {text}" for text in report.warnings]
        made = made_with(report.versions, report.machine)
    for text in (*notes, *failed):
        print(text, file=sys.stderr)
    if scores:
        table = markdown(
            scores, f"{made}; {args.precision}; batch 1, default sizes; median of pairs."
        )
        print(table)
        if args.write is not None:
            replace_table(args.write, table)
    return 1 if failed else 0


def score(name: str, report: BenchReport, kept: bool) -> Score:
    """A model's line from a report of the original, its result (unless kept) and peers."""
    rows = {(row.entrant, row.threads): row for row in report.rows}
    first: list[BenchRow] = [r for r in report.rows if r.threads == THREADS[0]]
    before, after = first[0], first[0] if kept else first[1]
    peer = rows.get((_PEER, THREADS[0]))
    return Score(
        name,
        next(iter(report.gflop.values()), 0.0),
        before.median,
        after.median,
        tuple(1.0 if kept else rows[after.entrant, n].ratio for n in THREADS),
        peer.median if peer else None,
        max((r.error for r in report.rows if r.entrant == after.entrant), default=0.0),
        0 if kept else after.kernels,
        after.nodes,
    )


def markdown(scores: Sequence[Score], note: str) -> str:
    """The table with the geometric means of the ratios, and what it was measured with."""
    means = [
        math.prod(s.ratios[i] for s in scores) ** (1 / len(scores)) for i in range(len(THREADS))
    ]
    mean = ("geometric mean", "", "", "", *(f"{m:.2f}×" for m in means), "", "", "")
    rows = [_HEADS, ("---", *("---:" for _ in _HEADS[1:])), *(s.cells for s in scores), mean]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", note, ""])


def replace_table(path: Path, table: str) -> None:
    """Put ``table`` between the marker lines of a file.  Raises UsageError without them."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UsageError(f"{path} lacks the lines {BEGIN} and {END}, between which the table goes")
    path.write_text(f"{before}{begin}\n{table}{end}{after}", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="models of the zoo (default: all)"
    )
    parser.add_argument("--precision", default="fp32", help="what results may compute in")
    parser.add_argument("--keep", choices=("faster", "legal"), default="faster")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds to decide a model in")
    parser.add_argument("--pairs", type=int, default=40, help="rounds of each race")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="file to put the table into")
    return parser


def _check(names: Sequence[str], target: Path | None) -> None:
    """Raise UsageError now for what would fail after all models ran."""
    for name in names:
        if name not in available():
            raise UsageError(f"no model '{name}' in the zoo, only {', '.join(available())}")
    if target is not None and not (target.is_file() and BEGIN in target.read_text("utf-8")):
        raise UsageError(f"{target} lacks the line {BEGIN}, after which the table goes")


def _run(name: str, args: argparse.Namespace) -> tuple[Score, BenchReport]:
    """Make, optimize and race one model; its files are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tracea-zoo-") as folder:
        original = make(name, Path(folder))
        result = original.with_name(f"{name}.tracea.onnx")
        options = ["--keep", args.keep, "--budget", str(args.budget)]
        if args.precision != "fp32":
            options += ["--precision", args.precision]
        code = optimize_main([str(original), "-o", str(result), "-q", *options])
        if code:
            raise UsageError(f"tracea-optimize failed with code {code}")
        kept = json.loads(result.with_suffix(".json").read_text("utf-8"))["outcome"] != "improved"
        models = [original] if kept else [original, result]
        if kept:
            result.unlink()
        peers = tuple(peer.name for peer in PEERS if peer.version and peer.precision == "f32")
        report = bench(models, BenchOptions(threads=THREADS, pairs=args.pairs, peers=peers))
        return score(name, report, kept), report


if __name__ == "__main__":
    sys.exit(main())
