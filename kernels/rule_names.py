"""Names of a backend's rules, grouped by what the pipeline does with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["RuleNames"]

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class RuleNames:
    """Names of a backend's rules, by purpose.

    * ``rounding``: rules that change only the precision
    * ``fallback``: by rule, the other rule in whose place it applies if that one is disabled
    * ``further``: by rule, the other rule on top of which it applies
    * ``precision_fallbacks``: sets of rules to disable if the error is too large, cheapest first
    * ``row_tiling``: rules that choose the row tile of a program, largest tile first; the first
      name is also that of their phase
    * ``packing``: rules that change only how a constant is stored
    """

    rounding: tuple[str, ...] = ()
    fallback: Mapping[str, str] = field(default_factory=lambda: _NONE)
    further: Mapping[str, str] = field(default_factory=lambda: _NONE)
    precision_fallbacks: tuple[tuple[str, ...], ...] = ()
    row_tiling: tuple[str, ...] = ()
    packing: tuple[str, ...] = ()

    def replaced(self, rule: str) -> tuple[str, ...]:
        """Return the rules in whose place a rule applies, directly or indirectly."""
        found = list[str]()
        while (rule := self.fallback.get(rule, "")) and rule not in found:
            found.append(rule)
        return tuple(found)

    def replacements(self, rule: str) -> tuple[str, ...]:
        """Return the rules that apply in place of a disabled rule, directly or indirectly."""
        return tuple(other for other in self.fallback if rule in self.replaced(other))

    @property
    def revertible(self) -> tuple[str, ...]:
        """Rules that only modify a region; without them, the unmodified region runs."""
        return (*self.rounding, *self.row_tiling[:1])
