"""Generated source text, independent of its compiler."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Source"]


@dataclass(frozen=True)
class Source:
    """A generated source file: the first symbol that it exports, and its text."""

    symbol: str
    text: str
