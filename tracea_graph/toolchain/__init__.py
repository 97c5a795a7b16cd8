"""Compilers, linking, the object cache and its trust checks, shared by all backends."""

from tracea_graph.toolchain.compilers import Compiler, find_compiler
from tracea_graph.toolchain.library_artifact import (
    Counted,
    Library,
    LibraryPart,
    Manifest,
    uncounted,
)

__all__ = [
    "Compiler", "Counted", "Library", "LibraryPart", "Manifest", "find_compiler", "uncounted",
]  # fmt: skip
