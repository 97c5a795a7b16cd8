"""What a toolchain makes: the custom-op library of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Library"]


@dataclass(frozen=True)
class Library:
    """A built library; ``seconds`` is wall time, ``compiled_units`` what the cache lacked.

    ``manifest`` is what decided its domain: sources, flags, types, levels.
    """

    path: Path
    domain: str
    sha256: str
    levels: tuple[str, ...]
    seconds: float
    compiled_units: int
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
