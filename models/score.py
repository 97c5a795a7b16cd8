"""A model's line in the zoo's table, and the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.ceiling import ceilings
from tracea_graph.errors import UsageError
from tracea_graph.hardware.measure import Measurements
from tracea_graph.views.bench import BenchReport, BenchRow

__all__ = ["BEGIN", "END", "THREADS", "Score", "markdown", "replace_table", "score"]

BEGIN, END = "<!-- models.bench: begin -->", "<!-- models.bench: end -->"
THREADS = (1, 2)
ORT, OURS, PEERS = "ONNX Runtime", "tracea", ("OpenVINO f32", "OpenVINO bf16")

Pair = tuple[float, ...]
"""A figure for each thread count."""


@dataclass(frozen=True)
class Score:
    """One model: median ms of each runtime and its speed over ONNX Runtime, by thread count.

    ``ms`` and ``ratios`` are keyed by ``ORT``, ``OURS`` and those of ``PEERS`` that ran.
    ``programs`` is the share of time in programs.  ``kernels`` is 0 for a model kept as it was,
    which counts as 1.  ``failed`` says why there are no figures.  ``ceilings`` are those of
    ``models.ceiling``, none where unknown.
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

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Score:
        """A score as it was stored."""
        pairs = {k: {n: tuple(v) for n, v in (data[k] or {}).items()} for k in ("ms", "ratios")}
        return cls(**{**data, **pairs, "ceilings": tuple(data.get("ceilings", ()))})

    def cells(self, peers: Sequence[str]) -> tuple[str, ...]:
        """The line's texts, in the order of the table's heads."""
        if self.failed or not self.ms or not self.ratios:
            return (self.name, f"failed: {self.failed}", *[""] * (8 + len(peers)))
        ours = "kept" if not self.kernels else _both(self.ms[OURS])
        rated = ["1" if not self.kernels else f"{r:.2f}×" for r in self.ratios[OURS]]
        return (
            f"{self.name} ({self.binding})" if self.binding else self.name,
            f"{self.gflop:.3g}", _both(self.ms[ORT]), ours, *rated,
            " / ".join(f"{c:.2f}" if c else "–" for c in self.ceilings),
            *(_both(self.ms[p]) if p in self.ms else "" for p in peers),
            f"{self.programs:.0%}", f"{self.error:.0e}" if self.kernels else "0",
            f"{self.kernels} of {self.nodes}",
        )  # fmt: skip


def score(
    name: str,
    report: BenchReport,
    kept: bool,
    programs: float = 0.0,
    figures: Measurements | None = None,
) -> Score:
    """A model's line from a report of the original, its result (unless kept) and peers.

    ``figures`` of the machine, taken beside the race, give the ceilings.
    """
    rows: dict[str, list[BenchRow]] = {}
    for row in report.rows:
        rows.setdefault(row.entrant, []).append(row)
    first, *others = rows
    ours = first if kept else others[0]
    entrants = {ORT: first, OURS: ours, **{p: p for p in PEERS if p in rows}}
    ratios = {k: tuple(r.ratio for r in rows[e]) for k, e in entrants.items()}
    ones = (1.0,) * len(rows[first])
    result = rows[ours][0]
    gflop = next(iter(report.gflop.values()), 0.0)
    softmax = next(iter(report.softmax.values()), 0.0)
    return Score(
        name,
        rows[first][0].binding,
        gflop,
        {k: tuple(r.median for r in rows[e]) for k, e in entrants.items()},
        {**ratios, ORT: ones, **({OURS: ones} if kept else {})},
        0.0 if kept else programs,
        max(r.error for r in rows[ours]),
        0 if kept else result.kernels,
        result.nodes,
        ceilings=ceilings(rows[first][0].median, gflop, softmax, figures) if figures else (),
    )


def markdown(scores: Sequence[Score], note: str) -> str:
    """The table, with geometric means of speeds over ONNX Runtime, and how it was measured."""
    peers = [p for p in PEERS if any(p in (s.ms or {}) for s in scores)]
    threads = "/".join(map(str, THREADS))
    heads = (
        "model", "GFLOP", f"ONNX Runtime, ms at {threads} threads", "tracea, ms",
        *(f"{n} thread{'s' * (n > 1)}" for n in THREADS), "ceiling, f32 / bf16",
        *(f"{p}, ms" for p in peers),
        "in programs", "max error", "nodes as kernels",
    )  # fmt: skip
    rated = [s.ratios for s in scores if s.ratios and not s.failed]
    means = [f"{_mean([r[OURS][i] for r in rated]):.2f}×" for i in range(len(THREADS))]
    beside = [
        "/".join(f"{_mean([r[p][i] for r in rated if p in r]):.2f}×" for i in range(len(THREADS)))
        for p in peers
    ]
    mean = ("geometric mean", "", "", "", *means, "", *beside, "", "", "")
    rows = [heads, ("---", *("---:" for _ in heads[1:])), *(s.cells(peers) for s in scores)]
    lines = ["| " + " | ".join(row) + " |" for row in (*rows, mean)]
    return "\n".join([*lines, "", note, ""])


def replace_table(path: Path, table: str) -> None:
    """Put ``table`` between the marker lines of a file.  Raises UsageError without them."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UsageError(f"{path} lacks the lines {BEGIN} and {END}, between which the table goes")
    path.write_text(f"{before}{begin}\n{table}{end}{after}", encoding="utf-8")


def _both(pair: Pair) -> str:
    return " / ".join(f"{ms:.3g}" for ms in pair)


def _mean(ratios: Sequence[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios)) if ratios else 1.0
