"""Read the resource usage of compiled kernels from a cubin, without a driver or NVIDIA's tools.

A cubin is an ELF file.  Sections ``.nv.info`` hold attributes as (format, attribute, size, value);
the attribute numbers are those that cuobjdump and the driver use.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tracea_graph.errors import BuildError
from tracea_graph.kernels.gpu.architecture import Architecture, Occupancy

__all__ = ["KernelFacts", "opcodes", "read_cubin", "why_not_launchable"]

_MAGIC = b"\x7fELF\x02\x01"
_SECTION, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_SYMBOLS = 2
_SIZED = 4
"""Format code of an attribute that is followed by a value of a stated size in bytes."""
_REGISTERS, _FRAME, _LEAST_STACK, _THREADS, _PARAMETER, _BARRIERS = (
    0x2F, 0x11, 0x12, 0x05, 0x17, 0x4C,
)  # fmt: skip
_RESERVED_SECTION = ".nv.shared.reserved.0"
_MAX_PARAMETERS = 4096
_INSTRUCTION = 16
"""Bytes of a machine instruction."""


@dataclass(frozen=True)
class KernelFacts:
    """Resource usage of one kernel in a cubin.

    ``registers`` is per thread.  ``stack`` is the local memory of a thread in bytes, which holds
    spilled registers, and arrays that are not in registers.  ``shared`` is the static shared
    memory of a block in bytes.  ``threads`` is the maximum block size, 0 if none was
    declared.  ``parameters`` has the offset and size of each parameter.  ``code`` is the size of
    the instructions in bytes.
    """

    symbol: str
    registers: int
    stack: int
    shared: int
    threads: int
    barriers: int
    parameters: tuple[tuple[int, int], ...]
    code: int

    def occupancy(self, architecture: Architecture, threads: int, dynamic: int = 0) -> Occupancy:
        """Compute the occupancy with ``dynamic`` bytes of dynamic shared memory per block."""
        return architecture.occupancy(self.registers, self.shared + dynamic, threads)


def why_not_launchable(
    facts: KernelFacts, architecture: Architecture, threads: int, dynamic: int = 0
) -> str | None:
    """Return why a kernel must not be launched with this configuration, or None if it may.

    ``threads`` is the block size, ``dynamic`` the dynamic shared memory of a block in bytes.
    """
    name, shared = f"{facts.symbol} on {architecture.name}", facts.shared + dynamic
    if facts.stack:
        return f"{name} keeps {facts.stack} bytes a thread in local memory."
    if shared > architecture.block_shared:
        most = architecture.block_shared
        return f"{name} takes {shared} bytes of shared memory; a block has {most} at most."
    if threads > architecture.block_threads:
        return f"{name} has {threads} threads a block; the limit is {architecture.block_threads}."
    if facts.threads and threads > facts.threads:
        return f"{name} is compiled for {facts.threads} threads a block, not {threads}."
    if not facts.occupancy(architecture, threads, dynamic).blocks:
        return f"{name}: {facts.registers} registers for {threads} threads do not fit an SM."
    if sum(size for _, size in facts.parameters) > _MAX_PARAMETERS:
        return f"{name} takes more than {_MAX_PARAMETERS} bytes of parameters."
    return None


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def read_cubin(data: bytes) -> tuple[KernelFacts, ...]:
    """Read every kernel of a cubin, sorted by symbol.  Raises BuildError if it cannot be read."""
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise BuildError(f"A cubin of {len(data)} bytes cannot be read ({error!r}).") from error


def opcodes(data: bytes, symbol: str) -> Counter[int]:
    """Count the machine instructions of a kernel by opcode: the lowest 12 of their 128 bits."""
    (text,) = (s for s in _sections(data) if s.name == f".text.{symbol}")
    places = range(text.offset, text.offset + text.size, _INSTRUCTION)
    return Counter(int.from_bytes(data[at : at + 2], "little") & 0xFFF for at in places)


def _read(data: bytes) -> tuple[KernelFacts, ...]:
    if data[:6] != _MAGIC:
        raise ValueError("it is not a 64-bit ELF file")
    sections = {s.name: s for s in _sections(data)}
    symbols = _symbols(data, sections)
    common: dict[int, dict[str, int]] = {}
    for attribute, value in _attributes(data, sections.get(".nv.info")):
        if attribute in (_REGISTERS, _FRAME, _LEAST_STACK):
            symbol, number = struct.unpack("<II", value)
            common.setdefault(attribute, {})[symbols[symbol]] = number
    kernels = [name[6:] for name in sections if name.startswith(".text.")]
    reserved = 1024 if _RESERVED_SECTION in sections else 0
    return tuple(_kernel(data, sections, common, name, reserved) for name in sorted(kernels))


def _kernel(
    data: bytes,
    sections: dict[str, _Section],
    common: dict[int, dict[str, int]],
    name: str,
    reserved: int,
) -> KernelFacts:
    shared = sections.get(f".nv.shared.{name}")
    threads, barriers, parameters = 0, 0, dict[int, tuple[int, int]]()
    for attribute, value in _attributes(data, sections.get(f".nv.info.{name}")):
        if attribute == _THREADS:
            x, y, z = struct.unpack("<III", value)
            threads = x * y * z
        elif attribute == _PARAMETER:
            _, ordinal, offset, packed = struct.unpack("<IHHI", value)
            parameters[ordinal] = offset, packed >> 18
        elif attribute == _BARRIERS:
            barriers = int.from_bytes(value, "little")
    frames = (common.get(kind, {}).get(name, 0) for kind in (_FRAME, _LEAST_STACK))
    return KernelFacts(
        symbol=name,
        registers=common[_REGISTERS][name],
        stack=max(frames),
        shared=max(0, shared.size - reserved) if shared else 0,
        threads=threads,
        barriers=barriers,
        parameters=tuple(parameters[i] for i in range(len(parameters))),
        code=sections[f".text.{name}"].size,
    )


def _sections(data: bytes) -> Iterator[_Section]:
    (start,) = struct.unpack_from("<Q", data, 0x28)
    count, names = struct.unpack_from("<HH", data, 0x3C)
    rows = [_SECTION.unpack_from(data, start + i * _SECTION.size) for i in range(count)]
    text = rows[names][4]
    for row in rows:
        yield _Section(_word(data, text + row[0]), row[1], row[4], row[5], row[6])


def _symbols(data: bytes, sections: dict[str, _Section]) -> list[str]:
    table = sections[".symtab"]
    text = sections[".strtab"].offset
    assert table.kind == _SYMBOLS
    return [
        _word(data, text + _SYMBOL.unpack_from(data, at)[0])
        for at in range(table.offset, table.offset + table.size, _SYMBOL.size)
    ]


def _attributes(data: bytes, section: _Section | None) -> Iterator[tuple[int, bytes]]:
    if section is None:
        return
    at, end = section.offset, section.offset + section.size
    while at < end:
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        value = data[at + 2 : at + 4]
        at += 4
        if form == _SIZED:
            value, at = data[at : at + size], at + size
        yield attribute, value


def _word(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
