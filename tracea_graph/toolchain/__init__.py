"""Compilers, linking, the object cache and its trust checks, shared by all backends."""

from tracea_graph.toolchain.artifact import Library, LibraryPart, Manifest
from tracea_graph.toolchain.compilers import Compiler, find_compiler

__all__ = ["Compiler", "Library", "LibraryPart", "Manifest", "find_compiler"]
