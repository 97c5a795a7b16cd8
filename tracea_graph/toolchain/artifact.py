"""Build artifact: the custom-op library of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

__all__ = ["Library", "Manifest"]


class Manifest(TypedDict, total=False):
    """Everything a library's domain is a digest of; a backend writes the keys it needs.

    ``isas`` or ``levels`` are what the library has code for, ``types`` the operator types with the
    ONNX element types of their inputs and outputs, ``flags`` the compiler flags, ``sources`` a
    digest per translation unit, ``runtime`` the digest of the host loop, ``driver`` the minimum
    driver version.
    """

    version: str
    isas: list[str]
    levels: list[str]
    types: list[list[Any]]
    flags: list[str]
    sources: dict[str, str]
    runtime: str
    driver: int


@dataclass(frozen=True)
class Library:
    """A built library; ``seconds`` is wall time, ``compiled_units`` the number of cache misses.

    ``manifest`` determined its domain.
    """

    path: Path
    domain: str
    sha256: str
    levels: tuple[str, ...]
    seconds: float
    compiled_units: int
    manifest: Manifest = field(default_factory=Manifest, repr=False)
