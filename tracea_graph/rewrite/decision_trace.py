"""Record one line for every proposal and near miss, in the order of decisions."""

from __future__ import annotations

import traceback
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from tracea_graph.errors import RuleError
from tracea_graph.reason_codes import EXPECTED, Code, code_of

__all__ = ["DecisionTrace", "TraceEntry"]


@dataclass(frozen=True)
class TraceEntry:
    """One decision of the scheduler."""

    phase: str
    rule: str
    where: str
    verdict: str
    """``applied``, ``rejected``, ``superseded`` or ``missed``."""
    reason: str = ""
    gain_us: float = 0.0
    nodes: tuple[str, ...] = ()
    """Names of the original operators concerned, or their first results."""
    times_us: tuple[float, float] | None = None
    """Predicted times of the contested regions: with this proposal, and as they are now."""

    @property
    def code(self) -> Code:
        """The code of the reason, or of the verdict if there is no reason."""
        return _CODES.get(self.verdict) or code_of(self.reason)


_CODES = {"applied": Code.APPLIED, "superseded": Code.SUPERSEDED}


@dataclass
class DecisionTrace:
    """All decisions in order; ``broken`` holds the errors of rules that raised."""

    entries: list[TraceEntry] = field(default_factory=list)
    broken: Sequence[RuleError] = ()

    def add(self, *args: object) -> None:
        self.entries.append(TraceEntry(*args))  # type: ignore[arg-type]

    def faults(self) -> dict[str, str]:
        """Return a sentence and the traceback for each rule that was dropped because it raised."""
        return {
            f"rule {error.rule!r} is left out: it raised {error.raised} (a bug; -v shows where)":
            "".join(traceback.format_exception(error))
            for error in self.broken
        }  # fmt: skip

    def kept_exact(self) -> tuple[str, ...]:
        """Return a sentence on regions that are not computed in 16 bits; empty if there are none.

        The values of these regions exceed the range of the 16-bit type.
        """
        out = [entry for entry in self.entries if entry.code is Code.OUT_OF_RANGE]
        count = f"{len(out)} regions are" if len(out) > 1 else "one region is"
        return (f"{count} not computed in 16 bits: {out[0].reason}",) if out else ()

    def sites(self, rules: Container[str]) -> set[str]:
        """Return the values that identify where some rules were applied."""
        return {e.where for e in self.entries if e.verdict == "applied" and e.rule in rules}

    def applied(self) -> dict[str, int]:
        """Return how often each rule was applied."""
        counts: dict[str, int] = {}
        for decision in self.entries:
            if decision.verdict == "applied":
                counts[decision.rule] = counts.get(decision.rule, 0) + 1
        return counts

    def misses(self) -> dict[tuple[str, str], int]:
        """Return (rule, reason) of every near miss with its count.

        Sites that a rule is not meant for, or that have nothing to exploit, are not counted.
        """
        counts: dict[tuple[str, str], int] = {}
        for decision in self.entries:
            if decision.verdict in ("missed", "rejected") and decision.code not in EXPECTED:
                key = (decision.rule, decision.reason)
                counts[key] = counts.get(key, 0) + 1
        return counts
