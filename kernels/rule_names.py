"""Names of a backend's rules, grouped by what the pipeline does with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["RuleNames"]

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class RuleNames:
    """Rule names by purpose.

    ``rounding`` rules change only the precision.  ``fallback`` maps a rule to the rules it
    replaces if they are disabled; ``further`` maps a rule to those it builds on.
    ``precision_fallbacks`` are sets of rules to disable when the error is too large, cheapest
    first.  ``row_tiling`` rules choose the row tile of a program, largest first; the first name is
    also that of their phase.  ``packing`` rules only change how a constant is stored.
    """

    rounding: tuple[str, ...] = ()
    fallback: Mapping[str, str] = field(default_factory=lambda: _NONE)
    further: Mapping[str, str] = field(default_factory=lambda: _NONE)
    precision_fallbacks: tuple[tuple[str, ...], ...] = ()
    row_tiling: tuple[str, ...] = ()
    packing: tuple[str, ...] = ()

    def replaced(self, rule: str) -> tuple[str, ...]:
        """Return the rules that a rule replaces if they are disabled, directly or indirectly."""
        found = list[str]()
        while (rule := self.fallback.get(rule, "")) and rule not in found:
            found.append(rule)
        return tuple(found)

    def replacements(self, rule: str) -> tuple[str, ...]:
        """Return the rules that replace a disabled rule, directly or indirectly."""
        return tuple(other for other in self.fallback if rule in self.replaced(other))

    @property
    def revertible(self) -> tuple[str, ...]:
        """Rules whose removal leaves the region in its unmodified form."""
        return (*self.rounding, *self.row_tiling[:1])
