"""How libraries are linked: without a C++ library, the same bytes from the same objects."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from tracea_graph.errors import BuildError
from tracea_graph.toolchain.compilers import Compiler

__all__ = ["LINK_FLAGS", "OWN_LINK_FLAGS", "made_by"]

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
"""What each compiler family needs to link without a C++ library; they come after the objects."""


def made_by(compiler: Compiler, path: Path, what: str) -> bytes:
    """The bytes a compiler wrote.  Raises BuildError where there are none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        name = compiler.command[0]
        message = f"The compiler {name} reported success but wrote no {what}; check CXX."
        raise BuildError(message) from None
