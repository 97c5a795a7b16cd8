"""What one optimization did: the record behind the table, the JSON and the manifest."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["GroupRow", "Report", "RuleRow", "TimingRow"]


@dataclass(frozen=True)
class GroupRow:
    """One group of equal rewrites and what was decided about it."""

    group: str
    rule: str
    count: int
    kept: bool
    reason: str
    originals: tuple[str, ...] = ()


@dataclass(frozen=True)
class RuleRow:
    """How often a rule was applied, or the reason it was not."""

    rule: str
    count: int
    verdict: str
    reason: str = ""


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
    low: float
    high: float
    pairs: int


@dataclass
class Report:
    """``outcome`` is ``"improved"`` or ``"kept original"``; ``reason`` says why in a sentence.

    ``error`` is the largest difference from the original as a share of ``max|y|``; ``status`` is
    ``passed``, ``inconclusive`` or ``skipped``.
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
    error: float | None = None
    floor: float | None = None
    isas: tuple[str, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    rules: tuple[RuleRow, ...] = ()
    timings: tuple[TimingRow, ...] = ()
    warnings: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Indented JSON with sorted keys."""
        return json.dumps(self.to_dict(), indent=1, sort_keys=True, default=_plain) + "\n"

    def _repr_html_(self) -> str:
        from tracea_graph.views.html import report_page

        return report_page(self)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else repr(value)
