"""Build artifact: the custom-op library of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from tracea_graph.toolchain.platforms import HERE

__all__ = ["Counted", "Library", "LibraryPart", "Manifest", "ignore_progress"]

Counted = Callable[[int, int], None]
"""Called with the number of finished parts of a step, and of all its parts."""


def ignore_progress(done: int, total: int) -> None:
    """Ignore how far a step is."""


class Manifest(TypedDict, total=False):
    """Everything a library's domain is a digest of; a backend writes the keys it needs.

    ``isas`` or ``levels`` are what the library has code for, ``types`` the operator types with the
    ONNX element types of their inputs and outputs, ``flags`` the compiler flags, ``sources`` a
    digest per translation unit, ``runtime`` the digest of the host loop, ``driver`` the minimum
    driver version, ``fallback`` the manifest of the kernels that function bodies call,
    ``platforms`` that of each platform's library if it is not for this machine alone.
    """

    version: str
    isas: list[str]
    levels: list[str]
    types: list[list[Any]]
    flags: list[str]
    sources: dict[str, str]
    runtime: str
    driver: int
    fallback: dict[str, Any]
    platforms: dict[str, Any]


@dataclass(frozen=True)
class LibraryPart:
    """The object files of one backend's share of a library; ``entry`` registers its op types.

    ``libraries`` are the flags that name what it is linked with, ``compiled_units`` the number of
    cache misses.  ``manifest`` determined its domain.
    """

    entry: str
    domain: str
    levels: tuple[str, ...]
    objects: tuple[Path, ...]
    compiled_units: int
    manifest: Manifest = field(repr=False)
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Library:
    """A built library; ``seconds`` is wall time, ``compiled_units`` the number of cache misses.

    ``manifest`` determined its domain.  ``fallback`` is the domain of the kernels that function
    bodies call; empty if there are none.  ``platform`` is empty if it was built for this machine
    alone; else ``others`` are the libraries of the same kernels for further platforms.
    """

    path: Path
    domain: str
    sha256: str
    levels: tuple[str, ...]
    seconds: float
    compiled_units: int
    manifest: Manifest = field(default_factory=Manifest, repr=False)
    fallback: str = ""
    platform: str = ""
    others: tuple[Library, ...] = ()

    @property
    def runs_here(self) -> bool:
        """Whether this machine can load the library."""
        return self.platform in ("", HERE.name)

    @property
    def all(self) -> tuple[Library, ...]:
        """The library and those for further platforms."""
        return (self, *self.others)
