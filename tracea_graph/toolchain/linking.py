"""Link libraries reproducibly and without the C++ standard library."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from tracea_graph.errors import BuildError
from tracea_graph.toolchain.compilers import Compiler

__all__ = ["LINK_FLAGS", "OWN_LINK_FLAGS", "read_output"]

LINK_FLAGS = ("-shared", "-s", "-Wl,--build-id=none", "-Wl,-z,relro", "-Wl,-z,now")
OWN_LINK_FLAGS = MappingProxyType(
    {
        "gcc": (
            *("-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,--as-needed"),
            *("-nodefaultlibs", "-lm", "-lc", "-lgcc"),
        ),
        "clang": ("-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,--as-needed", "-nostdlib++"),
        "zig": ("-nostdlib++",),
    }
)
"""Flags for linking without a C++ library, per compiler family; they follow the objects."""


def read_output(compiler: Compiler, path: Path, what: str) -> bytes:
    """Return the file that a compiler wrote.  Raises BuildError if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        name = compiler.command[0]
        message = f"The compiler {name} reported success but wrote no {what}; check CXX."
        raise BuildError(message) from None
