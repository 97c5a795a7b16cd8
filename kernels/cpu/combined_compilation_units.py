"""Reduce the compile time of a library: fewer files for its chains, and less optimization.

Starting the compiler and reading the header of vector intrinsics takes longer than compiling a
chain.  Chains with equal flags are therefore merged into one file, each in its own namespace.
Only their symbols decide which are merged, so adding a chain recompiles just one file.  Kernels
stay apart: they take longer to compile than the compiler to start, and a library with other
kernels finds the objects of those that both have in the cache.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from tracea_graph.kernels import chain_source
from tracea_graph.kernels.cpu.emitter import CompilationUnit

__all__ = ["combined_units"]

_SMALL = 16 << 10
"""Length in characters below which a chain is merged with others."""
_TOGETHER = 16
"""Approximate number of chains per file."""
_INCLUDE = re.compile(r"^\s*#\s*include\b.*$", re.MULTILINE)


def combined_units(units: Sequence[CompilationUnit]) -> list[CompilationUnit]:
    """Merge chains into fewer units; all units are to be compiled with ``-O1``."""
    small: dict[tuple[str, ...], list[CompilationUnit]] = {}
    rest: list[CompilationUnit] = []
    for unit in units:
        flags = tuple("-O1" if flag in ("-O2", "-O3") else flag for flag in unit.flags)
        cheap = CompilationUnit(unit.symbol, unit.text, flags)
        merges = set(chain_source.FLAGS) <= set(flags) and len(unit.text) < _SMALL
        (small.setdefault(flags, []) if merges else rest).append(cheap)
    return [*rest, *(part for group in small.values() for part in _merged(group))]


def _merged(units: Sequence[CompilationUnit]) -> list[CompilationUnit]:
    """Merge chains of equal flags into about ``len(units) / _TOGETHER`` files."""
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
