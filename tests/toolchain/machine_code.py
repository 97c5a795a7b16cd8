"""Machine code of libraries of other systems: rules of each system that no loader checks."""

from __future__ import annotations

import bisect
import re
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from models.modelled_tiles import llvm_tool

__all__ = ["OBJDUMP", "WindowsFunction", "instructions", "overwritten", "windows_functions"]

OBJDUMP = llvm_tool("llvm-objdump")
_KEPT = range(6, 16)  # xmm6 to xmm15: a function on Windows leaves them as it found them
_WRITTEN = re.compile(r"%[xyz]mm(\d+)(?:\s*\{[^}]*\})*$")
_SAVED = re.compile(r"v?mov[ad](?:ps|pd|qa)\s+%xmm(\d+), \S*\(%r[bs]p\)$")
_SLOTS = {0: 1, 1: 2, 2: 1, 3: 1, 4: 2, 5: 3, 8: 2, 9: 3, 10: 1}
"""Slots of two bytes that an operation of unwinding takes, by its number."""
_LARGE, _XMM, _FAR_XMM, _CHAINED, _HANDLERS = 1, 8, 9, 4, 3


@cache
def instructions(library: Path) -> tuple[tuple[int, str], ...]:
    """Address and text of every instruction of a library, in the order of addresses."""
    assert OBJDUMP is not None
    command = (OBJDUMP, "-d", "--no-show-raw-insn", str(library))
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s*([0-9a-f]+):\s+(\S.*)$", text, re.MULTILINE)
    return tuple(
        (int(address, 16), " ".join(re.split(r"\s[#;]|//|<", code)[0].split()))
        for address, code in found
    )


@dataclass(frozen=True)
class WindowsFunction:
    """A function of a DLL: its addresses, the vector registers it saves, whether it handles
    exceptions."""

    begin: int
    end: int
    saved: frozenset[int]
    handles: bool


def windows_functions(data: bytes) -> tuple[WindowsFunction, ...]:
    """The functions that a DLL for x86-64 tells how to unwind, in the order of addresses."""
    (header,) = struct.unpack_from("<I", data, 60)
    count, optional = struct.unpack_from("<H12xH", data, header + 6)
    (base,) = struct.unpack_from("<Q", data, header + 48)
    table, size = struct.unpack_from("<II", data, header + 24 + 112 + 24)
    sections = [
        struct.unpack_from("<8xIIII", data, header + 24 + optional + 40 * i) for i in range(count)
    ]

    def offset_of(address: int) -> int:
        return next(
            address - start + raw
            for length, start, _, raw in sections
            if 0 <= address - start < length
        )

    def unwinding(at: int) -> tuple[frozenset[int], bool]:
        first, _, slots, _ = struct.unpack_from("4B", data, at)
        flags, codes = first >> 3, data[at + 4 : at + 4 + 2 * slots]
        own, handles = frozenset(_vectors(codes)), bool(flags & _HANDLERS)
        if not flags & _CHAINED:
            return own, handles
        (parent,) = struct.unpack_from("<8xI", data, at + 4 + 2 * (slots + slots % 2))
        more, also = unwinding(offset_of(parent))
        return own | more, handles or also

    rows = struct.iter_unpack("<III", data[offset_of(table) : offset_of(table) + size])
    return tuple(
        WindowsFunction(base + begin, base + end, *unwinding(offset_of(at)))
        for begin, end, at in rows
    )


def _vectors(codes: bytes) -> Iterator[int]:
    """The vector registers that operations of unwinding restore."""
    at = 0
    while at < len(codes):
        operation, info = codes[at + 1] & 15, codes[at + 1] >> 4
        if operation in (_XMM, _FAR_XMM):
            yield info
        at += 2 * (_SLOTS[operation] + (operation == _LARGE and info > 0))


def overwritten(library: Path) -> dict[int, set[int]]:
    """By address of code, the registers of its caller that it writes and does not save.

    A DLL's own functions say in their unwinding data what they save.  Those of the compiler's
    library have none: there a store to the stack counts.
    """
    functions = windows_functions(library.read_bytes())
    begins = [function.begin for function in functions]
    lost: dict[int, set[int]] = {}
    saved: set[int] = set()
    for address, code in instructions(library):
        i = bisect.bisect_right(begins, address) - 1
        known = functions[i] if i >= 0 and address < functions[i].end else None
        if code == "int3":  # fills the space between functions
            saved = set()
        elif store := _SAVED.match(code):
            saved.add(int(store[1]))
        elif (register := _WRITTEN.search(code)) and int(register[1]) in _KEPT:
            number = int(register[1])
            if number not in (known.saved if known else saved):
                lost.setdefault(known.begin if known else address, set()).add(number)
    return lost
