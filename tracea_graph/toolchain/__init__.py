"""What toolchains share: compilers, and the object cache with the trust it takes."""

from tracea_graph.toolchain.artifact import Library, Manifest
from tracea_graph.toolchain.compilers import Compiler, find_compiler

__all__ = ["Compiler", "Library", "Manifest", "find_compiler"]
