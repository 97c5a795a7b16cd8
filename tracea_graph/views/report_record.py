"""The record of an optimization, from which table, JSON and manifest are made."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from tracea_graph.json_documents import Figure, to_json
from tracea_graph.reason_codes import EXPECTED, VERDICTS, Code
from tracea_graph.rewrite import DecisionTrace
from tracea_graph.toolchain import LibraryManifest
from tracea_graph.views.kept_kernels_record import Retuned
from tracea_graph.views.kernel_table import KernelRow

__all__ = [
    "CompressionRow",
    "GroupRow",
    "ReportRecord",
    "RuleRow",
    "StorageRow",
    "TimingRow",
    "WeightRow",
    "gain_in_words",
    "overridable_warning",
    "rule_rows",
    "speedup_in_words",
    "speedup_range",
    "with_explicit_folder",
    "with_tensor_name",
    "without_tensor_names",
]  # fmt: skip


_QUOTED = re.compile(r"'[^']*'")


@dataclass(frozen=True)
class GroupRow:
    """One group of equal rewrites and the decision about it.

    ``gains`` has, for each of the report's timings, the time without the rewrites divided by the
    time with them (above 1: faster).  It is empty if the group was not timed separately.
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
        """The reason in a few words, without figures."""
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
    """A rule: how often it was applied, or why it was not applied."""

    rule: str
    count: int
    verdict: str
    reason: str = ""
    code: Code = Code.APPLIED


def without_tensor_names(reason: str) -> str:
    """Return a reason with the names of tensors left out."""
    return _QUOTED.sub("''", reason)


def overridable_warning(count: int) -> str:
    """Return why overridable initializers stay outside kernels, and how to change that."""
    return (
        f"initializers that callers may override: {count}; kernels cannot use "
        "them as weights, unless --freeze-initializers makes them constants"
    )


def with_tensor_name(reason: str, tensor: str) -> str:
    """Return a reason with the name of a tensor added, unless it already names one."""
    return reason if _QUOTED.search(reason) or not tensor else f"{reason} (at {tensor!r})"


def rule_rows(trace: DecisionTrace) -> tuple[RuleRow, ...]:
    """Return rows for the rules that were applied, were not applied, or raised an error.

    Reasons of a rule that differ only in tensor names share a row, which names the first tensor.
    Rules that did not apply for an expected reason have no row.
    """
    applied = [RuleRow(rule, n, "applied") for rule, n in trace.applied().items()]
    alike: dict[tuple[str, str], RuleRow] = {}
    for entry in trace.entries:
        if entry.verdict not in ("missed", "rejected") or entry.code in EXPECTED:
            continue
        rule, why = entry.rule, entry.reason
        key = (rule, without_tensor_names(why))
        where = next(iter(entry.nodes), "")
        first = alike.get(
            key, RuleRow(rule, 0, "missed", with_tensor_name(why, where), entry.code)
        )
        alike[key] = dataclasses.replace(first, count=first.count + 1)
    raised = (
        RuleRow(error.rule, 1, "raised", error.raised, Code.RAISED) for error in trace.broken
    )
    return (*applied, *alike.values(), *raised)


@dataclass(frozen=True)
class StorageRow:
    """Weights of one group of matmuls that are stored sparse or as low-rank factors.

    ``dense`` and ``stored`` are the bytes of all these weights in dense form and as stored.
    """

    group: str
    technique: str
    count: int
    dense: int
    stored: int
    kept: bool


@dataclass(frozen=True)
class WeightRow:
    """A weight with zeros, low rank or copies that allow smaller storage.

    ``stored`` are its bytes in the original, ``potential`` those of the smaller form.  ``applied``
    is the rule that stores the smaller form, or the reason why none does.
    """

    weight: str
    structure: str
    stored: int
    potential: int
    applied: str


@dataclass(frozen=True)
class CompressionRow:
    """A layer with a matrix ``[k, n]`` that was compressed by ``technique``.

    ``size`` is the rank, the fraction of zeros, or the number of removed channels; ``kept_share``
    is the fraction of numbers and operations that are left.  Names of the new weights begin with
    one of ``marks``.  ``predicted`` and ``holdout_error`` are relative errors of the layer's
    output on calibration data and on holdout data (None without such data).  ``model_error`` is
    the predicted contribution to the error of the model's outputs, ``saved_us`` the predicted
    saving in µs.
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
        """The holdout error as a multiple of the calibration error; 1 without holdout data."""
        if not (self.holdout_error and self.predicted):
            return 1.0
        return self.holdout_error / self.predicted

    @property
    def title(self) -> str:
        """``rank 96``, ``70 % zeros`` or ``96 channels removed``."""
        if self.technique == "channels":
            return f"{self.size:.0f} channels removed"
        if self.technique == "zeros":
            return f"{100 * self.size:.0f} % zeros"
        return f"rank {self.size:.0f}"


@dataclass(frozen=True)
class TimingRow:
    """Times in ms of the original and the result, at one binding and thread count.

    ``ratio`` is original time / result time, as the median over pairs; ``low`` and ``high`` are
    its 99 % bounds.
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


_NEXT_STEPS: Mapping[Code, str] = MappingProxyType(
    {
        Code.NOT_FASTER: "--keep all applies every rewrite that verifies, faster or not.",
        Code.OUT_OF_BUDGET: "A larger --budget measures the rest.",
        Code.OUT_OF_TOLERANCE: "--max-error accepts a larger error.",
        Code.NO_REWRITE: "tracea explain MODEL lists rules that nearly applied, with reasons.",
    }
)
"""What a user can do if the original was kept, by the reason's code."""


@dataclass
class ReportRecord:
    """The outcome of an optimization: ``"improved"`` or ``"kept original"``, with a reason.

    ``reason`` is a sentence, ``code`` its identifier.  ``error`` is the largest difference from
    the original relative to ``max|y|``, ``floor`` that between ONNX Runtime with and without its
    own optimizations; ``status`` is ``passed``, ``insensitive`` (equal, but outputs hardly
    change with the inputs, so an error may not show), ``inconclusive`` or ``skipped``.
    ``holdout_error`` is the error of all compressed layers on holdout inputs, by the user's own
    metric if there is one. ``tried`` are the timings of the rejected result if the original was
    kept; ``timed_at`` is the date of timings that an equal earlier run measured; ``rejected`` the
    inputs that the original itself rejects, with its message; ``faults`` the tracebacks of rules
    that raised and were left out; ``kernel_calls`` what the policy decided about the calls of the
    result, or of the plan if the original was kept; ``retuned`` the outcome of ``bench
    --retune``; ``libraries`` the file of each platform's library, if ``library`` is not one for
    this machine alone.  The document is ``docs/schema/report.json``.
    """

    input: str
    output: str
    outcome: str
    reason: str
    library: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
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
    kernel_calls: tuple[KernelRow, ...] = ()
    compact_weights: tuple[StorageRow, ...] = ()
    weight_analysis: tuple[WeightRow, ...] = ()
    compressed: tuple[CompressionRow, ...] = ()
    holdout_error: float | None = None
    timings: tuple[TimingRow, ...] = ()
    tried: tuple[TimingRow, ...] = ()
    timed_at: str = ""
    warnings: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    manifest: LibraryManifest = field(default_factory=LibraryManifest)
    retuned: Retuned | None = None
    code: Code = Code.IMPROVED
    schema_version: Literal[1] = 1

    @property
    def improved(self) -> bool:
        """Whether the result differs from the original."""
        return self.outcome == "improved"

    @property
    def crash(self) -> str:
        """Why a worker process died with this model's kernels; empty if none did."""
        told = ((self.reason, self.code), *((group.reason, group.code) for group in self.groups))
        return next((reason for reason, code in told if code is Code.CRASHED), "")

    @property
    def gain(self) -> str:
        """The measured speed-up of the result, in words."""
        return gain_in_words(self.timings)

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the result; the last one is this report as JSON."""
        report = str(Path(self.output).with_suffix(".json"))
        found = (self.output, self.library, *self.libraries.values(), self.data, report)
        return tuple(dict.fromkeys(file for file in found if file))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Return indented JSON with sorted keys; infinite figures become null."""
        return to_json(self)

    @property
    def next_step(self) -> str:
        """What could change the outcome if the original was kept; empty otherwise."""
        if self.improved:
            return ""
        pairs = min((row.pairs for row in self.tried if math.isinf(row.high)), default=0)
        if pairs:
            return (
                f"Only {pairs} pairs were timed, too few for 99 % bounds: "
                "a larger --budget gives more."
            )
        return _NEXT_STEPS.get(self.code, "")


def gain_in_words(timings: Sequence[TimingRow]) -> str:
    """Return the measured speed-up in words: a lower bound over all timings, and their medians."""
    if not timings:
        return "not timed"
    return speedup_in_words([row.low for row in timings], [row.ratio for row in timings])


def speedup_in_words(lows: Sequence[float], medians: Sequence[float]) -> str:
    """Return the smallest lower bound and the range of the medians, in words.

    A lower bound of 0 means that there were too few runs for bounds.  Where one timing is a clear
    gain, another's lower bound may be below 1.
    """
    median = f"{speedup_range(medians)} in the median"
    if min(lows) <= 0:
        return f"{median}, with too few runs for bounds"
    if min(lows) < 1:  # "improved, at least 0.84× as fast" would contradict itself
        return f"{median}, 99 % bounds from {min(lows):.2f}× on"
    return f"at least {min(lows):.2f}× as fast, {median}"


def speedup_range(ratios: Sequence[float]) -> str:
    """Return the smallest and the largest ratio, or one figure where both round to the same."""
    ends = dict.fromkeys(f"{ratio:.2f}×" for ratio in (min(ratios), max(ratios)))
    return " to ".join(ends)


def with_explicit_folder(path: str) -> str:
    """Return a path with a folder; the dynamic loader searches its own path for a bare name."""
    return path if os.sep in path else f".{os.sep}{path}"
