"""Precompile the header of the vector intrinsics, which takes longer to parse than most kernels.

gcc makes the same objects from a precompiled header as from the header's text.  The precompiled
header is an entry of the object cache like any other, so a damaged one is made again; a gcc that
cannot make or use one compiles without it.  clang and zig tie theirs to the folder and time in
which it was made, so they get the text.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tracea_graph.errors import BuildError
from tracea_graph.toolchain.compilers import Compiler
from tracea_graph.toolchain.object_cache import ObjectCache, sha256_of_parts

__all__ = ["USES", "header_flags", "precompiled", "takes_intrinsics"]

USES = 3
"""Number of compilations with equal flags from which on a precompiled header saves time."""
_TEXT = "#include <immintrin.h>\n"
_NAME = "intrinsics.h"
_SCHEDULING = "-fsched"
"""Start of flags that say how gcc schedules instructions."""


def takes_intrinsics(text: str) -> bool:
    """Whether a source includes the header of vector intrinsics."""
    return _TEXT in text


def header_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags to precompile the header with, for units compiled with ``flags``.

    gcc accepts a precompiled header if only flags for instruction scheduling differ, so units that
    differ in nothing else share one header.
    """
    return tuple(flag for flag in flags if not flag.startswith(_SCHEDULING))


def precompiled(
    compiler: Compiler,
    cache: ObjectCache,
    flags: Sequence[str],
    folder: Path,
    seconds: float,
    *,
    make: bool = True,
) -> tuple[str, ...]:
    """Return the flags that add a precompiled header to a compilation with ``flags``.

    The header is put into ``folder``, which is created if missing and holds nothing else.  Returns
    no flags if the compiler cannot precompile it, or if the cache lacks it and ``make`` is false.
    ``seconds`` limits the run of the compiler.
    """
    if compiler.family != "gcc":
        return ()
    key = sha256_of_parts("precompiled", compiler.identity, *compiler.command, *flags, _TEXT)
    header = folder / _NAME
    ready = header.with_suffix(".h.gch")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        header.write_text(_TEXT, encoding="utf-8")
        with cache.making(key):
            if (packed := cache.get(key)) is not None:
                ready.write_bytes(zlib.decompress(packed))
            elif make:
                to_header = ("-x", "c++-header", _NAME, "-o", ready.name)
                compiler.run((*flags, *to_header), folder, seconds)
                cache.put(key, zlib.compress(ready.read_bytes(), 1))
            else:
                return ()
    except (BuildError, OSError, zlib.error):
        with suppress(OSError):
            ready.unlink(missing_ok=True)  # half of one
        return ()
    return ("-include", str(header.resolve()))
