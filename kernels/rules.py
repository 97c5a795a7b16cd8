"""What the pipeline must know of the rules in a backend's phases, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["RuleNames"]

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class RuleNames:
    """Names of rules, by what they are for.

    ``rounding`` rules change numbers only.  ``fallback`` maps rules to those whose places they
    take when these are not used; ``further`` maps rules to those they go on from.
    ``precision_fallbacks`` are sets of rules to do without where the error is too large, the
    cheapest set first.

    ``row_tiling`` rules say how many rows the steps of a program make at a time, those that make
    most first; the first one's name is that of their phase.  ``packing`` rules only store a
    constant otherwise.
    """

    rounding: tuple[str, ...] = ()
    fallback: Mapping[str, str] = field(default_factory=lambda: _NONE)
    further: Mapping[str, str] = field(default_factory=lambda: _NONE)
    precision_fallbacks: tuple[tuple[str, ...], ...] = ()
    row_tiling: tuple[str, ...] = ()
    packing: tuple[str, ...] = ()

    @property
    def revertible(self) -> tuple[str, ...]:
        """Rules that give a region another form: without them it is there in its plain one."""
        return (*self.rounding, *self.row_tiling[:1])
