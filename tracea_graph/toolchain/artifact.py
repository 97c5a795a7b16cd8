"""What a toolchain makes: the custom-op library of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

__all__ = ["Library", "Manifest"]


class Manifest(TypedDict, total=False):
    """What decides a library's domain; a backend writes the keys that it has.

    ``isas`` or ``levels`` are what the library holds code for, ``types`` the operator types with
    the ONNX element types of their inputs and outputs, ``flags`` the compiler's, ``sources`` a
    digest for each unit, ``runtime`` that of the host loop, ``driver`` the oldest driver.
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
    """A built library; ``seconds`` is wall time, ``compiled_units`` what the cache lacked.

    ``manifest`` is what decided its domain.
    """

    path: Path
    domain: str
    sha256: str
    levels: tuple[str, ...]
    seconds: float
    compiled_units: int
    manifest: Manifest = field(default_factory=Manifest, repr=False)
