"""What one optimization did: the record behind the table, the JSON and the manifest."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jinja2

from tracea_graph.documents import Figure, to_json
from tracea_graph.reasons import VERDICTS, Code
from tracea_graph.rewrite import Trace
from tracea_graph.toolchain import Manifest
from tracea_graph.views.retuned import Retuned

__all__ = [
    "CompressionRow", "GroupRow", "Report", "RuleRow", "StorageRow", "TimingRow", "WeightRow",
    "fed_too", "gain_of", "located", "report_page", "rule_rows", "unnamed", "with_folder",
]  # fmt: skip


_QUOTED = re.compile(r"'[^']*'")


@dataclass(frozen=True)
class GroupRow:
    """One group of equal rewrites and what was decided about it.

    ``gains`` are the ratios of the model without it to the model with it, above 1 where it helps,
    one for each entry of the report's timings; empty if it was not timed by itself.
    """

    group: str
    rule: str
    count: int
    kept: bool
    reason: str
    gains: tuple[float, ...] = ()
    originals: tuple[str, ...] = ()
    code: Code = Code.UNMEASURED

    @property
    def verdict(self) -> str:
        """The reason in a few words, without its figures."""
        return VERDICTS[self.code]

    @property
    def gain(self) -> str:
        """``1.03×``, or ``1.03–1.28×`` over thread counts and shapes."""
        if not self.gains:
            return ""
        low, high = f"{min(self.gains):.2f}", f"{max(self.gains):.2f}"
        return f"{low}×" if low == high else f"{low}–{high}×"


@dataclass(frozen=True)
class RuleRow:
    """How often a rule was applied, or the reason it was not."""

    rule: str
    count: int
    verdict: str
    reason: str = ""
    code: Code = Code.APPLIED


def unnamed(reason: str) -> str:
    """A reason without the tensors it names."""
    return _QUOTED.sub("''", reason)


def fed_too(count: int) -> str:
    """Why initializers that are inputs as well stay outside kernels, and what to do about it."""
    return (
        f"initializers that may be fed too: {count}; no kernel can "
        "hold them, --freeze-initializers makes constants of them"
    )


def located(reason: str, tensor: str) -> str:
    """A reason that names a tensor: the given one, unless it names one itself."""
    return reason if _QUOTED.search(reason) or not tensor else f"{reason} (at {tensor!r})"


def rule_rows(trace: Trace) -> tuple[RuleRow, ...]:
    """The rules that were applied, then those that were not and why, then those that raised.

    Reasons that differ in the tensors they name only share a row, which names the first.
    """
    applied = [RuleRow(rule, n, "applied") for rule, n in trace.applied().items()]
    alike: dict[tuple[str, str], RuleRow] = {}
    for entry in trace.entries:
        if entry.verdict not in ("missed", "rejected"):
            continue
        rule, why = entry.rule, entry.reason
        key = (rule, unnamed(why))
        where = next(iter(entry.nodes), "")
        first = alike.get(key, RuleRow(rule, 0, "missed", located(why, where), entry.code))
        alike[key] = dataclasses.replace(first, count=first.count + 1)
    raised = (
        RuleRow(error.rule, 1, "raised", error.raised, Code.RAISED) for error in trace.broken
    )
    return (*applied, *alike.values(), *raised)


@dataclass(frozen=True)
class StorageRow:
    """Matmuls of one group that store less than dense weights: bytes of all their weights."""

    group: str
    technique: str
    count: int
    dense: int
    stored: int
    kept: bool


@dataclass(frozen=True)
class WeightRow:
    """Structure in a weight (zeros, low rank, copies) that would allow fewer numbers.

    ``stored`` and ``potential`` are bytes in the original and with the structure exploited;
    ``applied`` is the rule that exploited it, or why none did.
    """

    weight: str
    structure: str
    stored: int
    potential: int
    applied: str


@dataclass(frozen=True)
class CompressionRow:
    """A layer ``[k, n]`` that was given another matrix: ``technique`` and its ``size`` (a rank, a
    share of zeros, or how many channels less), and the share of its numbers and operations that
    is kept.  What is stored in its place has a name that begins with one of its ``marks``.

    ``predicted`` and ``holdout_error`` are relative errors of the layer's output on calibration
    data and on holdout data (None without); ``model_error`` is what it is predicted to add to the
    model's error, ``saved_us`` the run time it is predicted to save.
    """

    layer: str
    marks: tuple[str, ...]
    technique: str
    size: float
    k: int
    n: int
    kept_share: float
    predicted: float
    holdout_error: float | None
    model_error: float
    saved_us: float
    kept: bool = False

    @property
    def ratio(self) -> float:
        """The error on holdout data as a multiple of that on calibration data; 1 without."""
        if not (self.holdout_error and self.predicted):
            return 1.0
        return self.holdout_error / self.predicted

    @property
    def title(self) -> str:
        """``rank 96``, ``70 % zeros`` or ``96 channels less``."""
        if self.technique == "channels":
            return f"{self.size:.0f} channels less"
        if self.technique == "zeros":
            return f"{100 * self.size:.0f} % zeros"
        return f"rank {self.size:.0f}"


@dataclass(frozen=True)
class TimingRow:
    """Original against result under one binding and thread count.

    ``ratio`` is the median over pairs of original time / result time, ``low`` and ``high`` its
    99 % bounds; times are ms.
    """

    threads: int
    binding: str
    before_ms: float
    after_ms: float
    before_min_ms: float
    after_min_ms: float
    ratio: float
    low: Figure
    high: Figure
    pairs: int


@dataclass
class Report:
    """``outcome`` is ``"improved"`` or ``"kept original"``; ``reason`` says why in a sentence,
    ``code`` in a word.

    ``error`` is the largest difference from the original as a share of ``max|y|``, ``floor`` that
    of ONNX Runtime with its own optimizations from without; ``status`` is ``passed``,
    ``inconclusive`` or ``skipped``.  ``holdout_error`` is the error of all compressed layers on
    holdout inputs, by the user's own metric where there is one.  ``tried`` are the timings
    of the rejected result where the original was kept; ``rejected`` the inputs the original itself
    refuses, with its message; ``faults`` the tracebacks of rules that raised and were left out;
    ``retuned`` the outcome of ``bench --retune``.  The document is ``docs/schema/report.json``.
    """

    input: str
    output: str
    outcome: str
    reason: str
    library: str | None = None
    data: str | None = None
    domain: str | None = None
    kernels: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    status: str = "skipped"
    status_reason: str = ""
    error: Figure | None = None
    floor: Figure | None = None
    backend: str = ""
    levels: tuple[str, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    rules: tuple[RuleRow, ...] = ()
    compact_weights: tuple[StorageRow, ...] = ()
    weight_analysis: tuple[WeightRow, ...] = ()
    compressed: tuple[CompressionRow, ...] = ()
    holdout_error: float | None = None
    timings: tuple[TimingRow, ...] = ()
    tried: tuple[TimingRow, ...] = ()
    warnings: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    manifest: Manifest = field(default_factory=Manifest)
    retuned: Retuned | None = None
    code: Code = Code.IMPROVED
    schema_version: Literal[1] = 1

    @property
    def improved(self) -> bool:
        """False if the result is the original."""
        return self.outcome == "improved"

    @property
    def gain(self) -> str:
        """How many times as fast the result was measured to be, in words."""
        return gain_of(self.timings)

    @property
    def files(self) -> tuple[str, ...]:
        """The files the result consists of; this report as JSON is the last."""
        found = (self.output, self.library, self.data, str(Path(self.output).with_suffix(".json")))
        return tuple(file for file in found if file)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Indented JSON with sorted keys; an unbounded figure becomes null."""
        return to_json(self)

    def _repr_html_(self) -> str:
        return _template().render(reports=(self,), page=False)


def gain_of(timings: Sequence[TimingRow]) -> str:
    """Timings in words: the range of their ratios."""
    ratios = sorted(row.ratio for row in timings)
    if not ratios:
        return "not timed"
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}× as fast"
    return f"{ratios[0]:.2f}× to {ratios[-1]:.2f}× as fast"


def with_folder(path: str) -> str:
    """A path the dynamic loader takes as one; a bare name would be looked up in its own list."""
    return path if os.sep in path else f".{os.sep}{path}"


def report_page(*reports: Report) -> str:
    """One page without scripts or outside resources; every string of a model is escaped."""
    return _template().render(reports=reports, page=True)


@cache
def _template() -> jinja2.Template:
    text = resources.files("tracea_graph.views").joinpath("report.html.jinja").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["as_path"] = with_folder
    return environment.from_string(text)
