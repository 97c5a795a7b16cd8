"""The header of the vector intrinsics, parsed once: it takes a compiler longer than most kernels.

gcc keeps what it parsed as a precompiled header, which gives the same objects as the header's
text.  It is an entry of the object cache like any other, so one that is damaged is made anew; a
gcc that cannot make or use one compiles as it would without.  clang and zig tie theirs to the
folder and the moment it was made in: they take the text.
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
"""Compilations with equal flags that make up for the precompiled header's own."""
_TEXT = "#include <immintrin.h>\n"
_NAME = "intrinsics.h"
_SCHEDULING = "-fsched"
"""Start of flags that say how gcc schedules instructions."""


def takes_intrinsics(text: str) -> bool:
    """Whether a source includes the header."""
    return _TEXT in text


def header_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags of the header for units compiled with ``flags``.

    gcc takes a precompiled header whatever the scheduling of instructions, so units that differ
    in it alone share one.
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
    """Flags by which a source compiled with ``flags`` takes the header as it was parsed before.

    The header lies in ``folder`` then, which is made if need be and holds nothing else.  Empty
    where the compiler gives none, or where the cache has none and ``make`` is false.  ``seconds``
    limits the compiler's run.
    """
    if compiler.family != "gcc":
        return ()
    key = sha256_of_parts("precompiled", compiler.identity, *compiler.command, *flags, _TEXT)
    header = folder / _NAME
    ready = header.with_suffix(".h.gch")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        header.write_text(_TEXT)
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
