"""Compiling many kernels in little time: few files, and little optimization.

The header of the vector intrinsics takes the compiler longer than a chain does, so small units of
equal flags become one file, each in a namespace of its own.  Which go together depends on nothing
but their symbols: a suite that gains a chain compiles one file anew.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from tracea_graph.kernels.cpu.emitter import CompilationUnit

__all__ = ["combined_units"]

_SMALL = 16 << 10
"""Characters of a unit that is not worth a file of its own."""
_TOGETHER = 16
"""Units a file holds, about."""
_INCLUDE = re.compile(r"^\s*#\s*include\b.*$", re.MULTILINE)


def combined_units(units: Sequence[CompilationUnit]) -> list[CompilationUnit]:
    """The same kernels in fewer units, compiled with ``-O1``."""
    small: dict[tuple[str, ...], list[CompilationUnit]] = {}
    rest: list[CompilationUnit] = []
    for unit in units:
        flags = tuple("-O1" if flag in ("-O2", "-O3") else flag for flag in unit.flags)
        cheap = CompilationUnit(unit.symbol, unit.text, flags)
        (small.setdefault(flags, []) if len(unit.text) < _SMALL else rest).append(cheap)
    return [*rest, *(part for group in small.values() for part in _merged(group))]


def _merged(units: Sequence[CompilationUnit]) -> list[CompilationUnit]:
    """Units of equal flags in about ``1 / _TOGETHER`` as many files."""
    parts = 1 << max(0, (len(units) // _TOGETHER).bit_length() - 1)
    files: dict[int, list[CompilationUnit]] = {}
    for unit in units:
        files.setdefault(zlib.crc32(unit.symbol.encode()) % parts, []).append(unit)
    return [_one(found) for _, found in sorted(files.items())]


def _one(units: Sequence[CompilationUnit]) -> CompilationUnit:
    includes = dict.fromkeys(line.strip() for u in units for line in _INCLUDE.findall(u.text))
    spaces = (
        f"namespace part_{i} {{\n{_INCLUDE.sub('', unit.text)}}}  // namespace part_{i}\n"
        for i, unit in enumerate(units)
    )
    return CompilationUnit(units[0].symbol, "\n".join([*includes, *spaces]), units[0].flags)
