"""Build the zoo's table, and a model's rows in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.ceiling import ceilings
from tracea_graph.errors import UsageError
from tracea_graph.hardware.machine_measurements import Measurements
from tracea_graph.views.bench import BenchReport, BenchRow, error_text

__all__ = ["THREADS", "Score", "markdown", "marks", "replace_table", "scores"]

THREADS = (1, 2)
"""Default thread counts."""
ORT, OURS, BASELINES = "ONNX Runtime", "tracea", ("OpenVINO f32", "OpenVINO bf16")

Pair = tuple[float, ...]
"""One number per thread count."""


@dataclass(frozen=True)
class Score:
    """A model at one size: median ms of each runtime and speeds over ONNX Runtime, by threads.

    ``ms`` and ``ratios`` are keyed by ``ORT``, ``OURS`` and the ``BASELINES`` that ran.  A row of
    a ``further`` size is not in the means.  ``programs`` is the share of time in programs, 0 if
    not measured.  ``kernels`` is 0 for a model that was kept, which counts as 1.  ``failed`` says
    why there are no numbers.  ``ceilings`` are those of ``models.ceiling``, empty if unknown.
    """

    name: str
    binding: str = ""
    gflop: float = 0.0
    ms: Mapping[str, Pair] | None = None
    ratios: Mapping[str, Pair] | None = None
    programs: float = 0.0
    error: float = 0.0
    kernels: int = 0
    nodes: int = 0
    failed: str = ""
    ceilings: Pair = ()
    further: bool = False

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Score:
        """Return a score from its stored form."""
        pairs = {k: {n: tuple(v) for n, v in (data[k] or {}).items()} for k in ("ms", "ratios")}
        return cls(**{**data, **pairs, "ceilings": tuple(data.get("ceilings", ()))})

    def cells(self, baselines: Sequence[str]) -> tuple[str, ...]:
        """Return the row's cells in the order of the table's columns."""
        if self.failed or not self.ms or not self.ratios:
            return (self.name, f"failed: {self.failed}", *[""] * (8 + len(baselines)))
        ours = "kept" if not self.kernels else _both(self.ms[OURS])
        rated = ["1" if not self.kernels else f"{r:.2f}×" for r in self.ratios[OURS]]
        return (
            f"{self.name} ({self.binding})" if self.binding else self.name,
            f"{self.gflop:.3g}", _both(self.ms[ORT]), ours, *rated,
            " / ".join(f"{c:.2f}" if c else "–" for c in self.ceilings),
            *(_both(self.ms[p]) if p in self.ms else "" for p in baselines),
            f"{self.programs:.0%}" if self.programs else "",
            error_text(self.error, 0) if self.kernels else "0",
            f"{self.kernels} of {self.nodes}",
        )  # fmt: skip


def scores(
    name: str,
    report: BenchReport,
    kept: bool,
    programs: float = 0.0,
    figures: Measurements | None = None,
) -> list[Score]:
    """Return a model's rows from a report of the original, its result (unless kept) and baselines.

    There is one per binding, in the report's order; ``programs`` is the share of the first.
    ``figures`` of the machine, measured with the benchmark, give the ceilings.
    """
    lines: dict[str, list[BenchRow]] = {}
    for row in report.rows:
        lines.setdefault(row.binding, []).append(row)
    return [
        _score(name, report, rows, kept, figures, programs if not index else None)
        for index, rows in enumerate(lines.values())
    ]


def _score(
    name: str,
    report: BenchReport,
    found: Sequence[BenchRow],
    kept: bool,
    figures: Measurements | None,
    programs: float | None,
) -> Score:
    """Return the row of one binding; ``programs`` is None for further ones."""
    rows: dict[str, list[BenchRow]] = {}
    for row in found:
        rows.setdefault(row.subject, []).append(row)
    first, *others = rows
    ours = first if kept else others[0]
    subjects = {ORT: first, OURS: ours, **{p: p for p in BASELINES if p in rows}}
    ratios = {k: tuple(r.ratio for r in rows[e]) for k, e in subjects.items()}
    ones, binding = (1.0,) * len(rows[first]), found[0].binding
    result = rows[ours][0]
    gflop, softmax = report.gflop.get(binding, 0.0), report.softmax.get(binding, 0.0)
    return Score(
        name,
        binding,
        gflop,
        {k: tuple(r.median for r in rows[e]) for k, e in subjects.items()},
        {**ratios, ORT: ones, **({OURS: ones} if kept else {})},
        0.0 if kept or programs is None else programs,
        max(r.error for r in rows[ours]),
        0 if kept else result.kernels,
        result.nodes,
        ceilings=ceilings(rows[first][0].median, gflop, softmax, figures) if figures else (),
        further=programs is None,
    )


def markdown(scores: Sequence[Score], note: str, threads: Sequence[int] = THREADS) -> str:
    """Return the table with geometric means of speeds over ONNX Runtime, and ``note`` below."""
    baselines = [p for p in BASELINES if any(p in (s.ms or {}) for s in scores)]
    counts = "/".join(map(str, threads))
    heads = (
        "model", "GFLOP", f"ONNX Runtime, ms at {counts} threads", "tracea, ms",
        *(f"{n} thread{'s' * (n > 1)}" for n in threads), "ceiling, f32 / bf16",
        *(f"{p}, ms" for p in baselines),
        "in programs", "max error", "nodes as kernels",
    )  # fmt: skip
    rated = [s.ratios for s in scores if s.ratios and not s.failed and not s.further]
    means = [f"{_mean([r[OURS][i] for r in rated]):.2f}×" for i in range(len(threads))]
    beside = [
        "/".join(f"{_mean([r[p][i] for r in rated if p in r]):.2f}×" for i in range(len(threads)))
        for p in baselines
    ]
    mean = ("geometric mean", "", "", "", *means, "", *beside, "", "", "")
    rows = [heads, ("---", *("---:" for _ in heads[1:])), *(s.cells(baselines) for s in scores)]
    lines = ["| " + " | ".join(row) + " |" for row in (*rows, mean)]
    return "\n".join([*lines, "", note, ""])


def marks(precision: str, tool: str = "models.bench") -> tuple[str, str]:
    """Return the lines of a file that enclose a tool's table of a precision."""
    return f"<!-- {tool} {precision}: begin -->", f"<!-- {tool} {precision}: end -->"


def replace_table(path: Path, precision: str, table: str, tool: str = "models.bench") -> None:
    """Put ``table`` between its marker lines of a file.  Raises UsageError without them."""
    text, (first, last) = path.read_text(encoding="utf-8"), marks(precision, tool)
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise UsageError(
            f"{path} lacks the lines {first} and {last}, between which the table goes"
        )
    path.write_text(f"{before}{begin}\n{table}{end}{after}", encoding="utf-8")


def _both(pair: Pair) -> str:
    return " / ".join(f"{ms:.3g}" for ms in pair)


def _mean(ratios: Sequence[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios)) if ratios else 1.0
