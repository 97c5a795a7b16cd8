"""Build artifact: the custom-op library of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from tracea_graph.toolchain.platforms import HERE

__all__ = ["Counted", "Library", "LibraryManifest", "LibraryPart", "ignore_progress"]

Counted = Callable[[int, int], None]
"""Called with the number of finished parts of a step, and of all its parts."""


def ignore_progress(done: int, total: int) -> None:
    """Do nothing; the default for callbacks that are called with the progress of a build."""


class LibraryManifest(TypedDict, total=False):
    """What a library was built from; its domain is a digest of this.

    A backend writes only the keys it needs.  ``isas`` or ``levels`` are what the library has code
    for, ``types`` the operator types with the ONNX element types of their inputs and outputs,
    ``flags`` the compiler flags, ``sources`` a digest per translation unit, ``runtime`` the digest
    of the host loop, and ``driver`` the minimum driver version.  ``fallback`` is the manifest of
    the kernels that function bodies call.  ``platforms`` has the manifest for each platform of a
    library that is built for several.
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
    """Object files with one backend's share of a library.

    * ``entry``: name of the function that registers the op types.
    * ``domain``: operator domain, a digest of ``manifest``.
    * ``compiled_units``: number of translation units that were not in the cache.
    * ``libraries``: linker flags for the libraries that the objects need.
    """

    entry: str
    domain: str
    levels: tuple[str, ...]
    objects: tuple[Path, ...]
    compiled_units: int
    manifest: LibraryManifest = field(repr=False)
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Library:
    """A built library.

    * ``domain``: operator domain, a digest of ``manifest``.
    * ``seconds``: wall time of the build.
    * ``compiled_units``: number of translation units that were not in the cache.
    * ``fallback``: domain of the kernels that function bodies call; empty if they call none.
    * ``platform``: platform it is built for; empty if it is built for this machine alone.
    * ``others``: libraries with the same kernels for further platforms.
    """

    path: Path
    domain: str
    sha256: str
    levels: tuple[str, ...]
    seconds: float
    compiled_units: int
    manifest: LibraryManifest = field(default_factory=LibraryManifest, repr=False)
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
