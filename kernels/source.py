"""Generated source text, whatever compiles it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Source"]


@dataclass(frozen=True)
class Source:
    """One generated file: the first symbol it exports, and its text."""

    symbol: str
    text: str
