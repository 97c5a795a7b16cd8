"""Link libraries reproducibly and without the C++ standard library."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from tracea_graph.errors import BuildError
from tracea_graph.toolchain.compilers import COMPILE_SECONDS, Compiler
from tracea_graph.toolchain.library_artifact import Library, LibraryPart
from tracea_graph.toolchain.object_cache import write_atomically
from tracea_graph.toolchain.platforms import HERE, Platform

__all__ = [
    "ENTRY", "LINK_FLAGS", "OWN_LINK_FLAGS", "entry_flags", "link_flags",
    "link_parts", "read_output",
]  # fmt: skip

ENTRY = "RegisterCustomOps"
"""The function of a library that ONNX Runtime calls."""

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


_ENTRIES = """// Registers the op types of every part, the last one's first.
struct OrtStatus;
struct OrtSessionOptions;
struct OrtApiBase;
extern "C" OrtStatus *{first}(OrtSessionOptions*, const OrtApiBase*);
extern "C" OrtStatus *{second}(OrtSessionOptions*, const OrtApiBase*);
extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {{
  OrtStatus* const status = {second}(options, base);
  return status ? status : {first}(options, base);
}}
"""


def link_flags(platform: Platform) -> tuple[str, ...]:
    """Return the flags that link a library for a platform."""
    return LINK_FLAGS if platform == HERE else platform.link_flags


def entry_flags(entry: str) -> tuple[str, ...]:
    """Return the compiler flags that make ``entry`` the name of a runtime's entry point."""
    return () if entry == ENTRY else (f"-DTRACEA_ENTRY={entry}",)


def link_parts(
    parts: Sequence[LibraryPart],
    out: Path,
    compiler: Compiler,
    folder: Path,
    seconds: float = COMPILE_SECONDS,
    platform: Platform = HERE,
) -> Library:
    """Link a library from one part, or from a fallback part and the part that uses it.

    The library is moved to ``out`` when it is complete.  ``folder`` is for temporary files,
    ``seconds`` is the time limit.  The returned build time is 0; the caller sets it.  On failure,
    BuildError is raised and no file is left at ``out``.
    """
    objects = [str(path) for part in parts for path in part.objects]
    last = parts[-1]
    if len(parts) > 1:
        first, second = (part.entry for part in parts)
        (folder / "entry.cpp").write_text(
            _ENTRIES.format(first=first, second=second), encoding="utf-8"
        )
        compiler.run(("-O2", "-fPIC", "-c", "entry.cpp", "-o", "entry.o"), folder, seconds)
        objects.append("entry.o")
    own = OWN_LINK_FLAGS[compiler.family]
    own += platform.libraries if compiler.family == "zig" else ()
    named = dict.fromkeys(name for part in parts for name in part.libraries)
    flags, library = link_flags(platform), f"library{platform.suffix}"
    compiler.run((*flags, "-o", library, *objects, *own, *named), folder, seconds)
    data = read_output(compiler, folder / library, "library")
    write_atomically(out, data, mode=0o755)
    manifest, fallback = last.manifest, ""
    if len(parts) > 1:
        manifest, fallback = {**manifest, "fallback": {**parts[0].manifest}}, parts[0].domain
    return Library(
        out, last.domain, hashlib.sha256(data).hexdigest(),
        tuple(level for part in parts for level in part.levels), 0.0,
        sum(part.compiled_units for part in parts), manifest, fallback,
    )  # fmt: skip


def read_output(compiler: Compiler, path: Path, what: str) -> bytes:
    """Return the file that a compiler wrote.  Raises BuildError if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        name = compiler.command[0]
        message = f"The compiler {name} reported success but wrote no {what}; check CXX."
        raise BuildError(message) from None
