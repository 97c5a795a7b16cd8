"""Compilers, linking, the object cache and its trust checks, shared by all backends."""

from tracea_graph.toolchain.compilers import Compiler, find_compiler
from tracea_graph.toolchain.library_artifact import (
    Counted,
    Library,
    LibraryManifest,
    LibraryPart,
    ignore_progress,
)

__all__ = [
    "Compiler",
    "Counted",
    "Library",
    "LibraryManifest",
    "LibraryPart",
    "find_compiler",
    "ignore_progress",
]  # fmt: skip
