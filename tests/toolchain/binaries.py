"""Read shared libraries of three systems: what they need, how old a system, their signature."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["AD_HOC", "MachO", "mach_o", "needed"]

AD_HOC = 0x2
"""The flag of a code directory that no certificate signs."""
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS = 1, 5
_SYMBOLS, _LOAD_DYLIB, _SIGNATURE, _VERSION_MIN, _BUILD_VERSION = 0x2, 0xC, 0x1D, 0x24, 0x32
_EXTERNAL, _PRIVATE, _SECTION = 0x01, 0x10, 0x0E
_EMBEDDED_SIGNATURE, _CODE_DIRECTORY = 0xFADE0CC0, 0xFADE0C02


@dataclass(frozen=True)
class MachO:
    """What the load commands of a Mach-O file say; ``signing`` are the code directory's flags.

    ``exported`` are names of symbols, without the underscore that the system puts before them.
    """

    needed: tuple[str, ...]
    oldest: tuple[int, int]
    signing: int | None
    exported: tuple[str, ...]


def needed(data: bytes) -> tuple[str, ...]:
    """The libraries that a loader loads with this one, in lower case."""
    found = _elf(data) if data[:4] == b"\x7fELF" else None
    found = found or (_pe(data) if data[:2] == b"MZ" else mach_o(data).needed)
    return tuple(name.lower() for name in found)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _elf(data: bytes) -> tuple[str, ...]:
    (first,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQ", data, first + i * size) for i in range(count)]
    begin, length = next((s[2], s[5]) for s in segments if s[0] == _DYNAMIC)
    entries = list(struct.iter_unpack("<QQ", data[begin : begin + length]))
    address = dict(entries)[_STRINGS]
    strings = next(
        address - s[3] + s[2] for s in segments if s[0] == _LOAD and 0 <= address - s[3] < s[5]
    )
    return tuple(_text(data, strings + value) for tag, value in entries if tag == _NEEDED)


def _pe(data: bytes) -> tuple[str, ...]:
    (header,) = struct.unpack_from("<I", data, 60)
    count, optional = struct.unpack_from("<H12xH", data, header + 6)
    (imports,) = struct.unpack_from("<I", data, header + 24 + 120)
    table = header + 24 + optional
    sections = [struct.unpack_from("<8xIIII", data, table + 40 * i) for i in range(count)]

    def offset_of(address: int) -> int:
        return next(
            address - start + raw
            for size, start, _, raw in sections
            if 0 <= address - start < size
        )

    return tuple(_text(data, offset_of(name)) for name in _imported(data, offset_of(imports)))


def _imported(data: bytes, at: int) -> Iterator[int]:
    while name := struct.unpack_from("<12xI4x", data, at)[0]:
        yield name
        at += 20


def mach_o(data: bytes) -> MachO:
    """The load commands of a 64-bit Mach-O file."""
    libraries, oldest, signing, at = [], (0, 0), None, 32
    exported: list[str] = []
    for _ in range(struct.unpack_from("<I", data, 16)[0]):
        kind, size, value, other = struct.unpack_from("<IIII", data, at)
        if kind == _LOAD_DYLIB:
            libraries.append(_text(data, at + value))
        elif kind == _SYMBOLS:
            strings, count = struct.unpack_from("<I", data, at + 16)[0], other
            symbols = struct.iter_unpack("<IB11x", data[value : value + 16 * count])
            exported += [
                _text(data, strings + name).removeprefix("_")
                for name, flags in symbols
                if flags & (_EXTERNAL | _PRIVATE | _SECTION) == _EXTERNAL | _SECTION
            ]
        elif kind in (_VERSION_MIN, _BUILD_VERSION):
            version = value if kind == _VERSION_MIN else other
            oldest = version >> 16, version >> 8 & 255
        elif kind == _SIGNATURE:
            signing = _signing(data[value : value + other])
        at += size
    return MachO(tuple(libraries), oldest, signing, tuple(exported))


def _signing(signature: bytes) -> int:
    magic, _, count = struct.unpack_from(">III", signature)
    assert magic == _EMBEDDED_SIGNATURE
    for i in range(count):
        (at,) = struct.unpack_from(">4xI", signature, 12 + 8 * i)
        kind, flags = struct.unpack_from(">I8xI", signature, at)
        if kind == _CODE_DIRECTORY:
            return int(flags)
    raise AssertionError("a signature without a code directory")
