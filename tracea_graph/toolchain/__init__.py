"""Compilers, linking, the object cache and its trust checks, shared by all backends."""

from tracea_graph.toolchain.artifact import Library, Manifest
from tracea_graph.toolchain.compilers import Compiler, find_compiler

__all__ = ["Compiler", "Library", "Manifest", "find_compiler"]
