"""Compilers, the object cache, and the packaging of custom-op libraries."""

from tracea_graph.build.compilers import Compiler, find_compiler
from tracea_graph.build.library import Library, build_library, domain_of, manifest

__all__ = ["Compiler", "Library", "build_library", "domain_of", "find_compiler", "manifest"]
