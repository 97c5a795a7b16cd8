"""Generate ``table.cpp``: which op types, instruction-set levels and chains a library holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tracea_graph.errors import GraphError
from tracea_graph.kernels.cpu import emitter
from tracea_graph.kernels.cpu.added_bytes import NOTHING_ADDED, AddedBytes, added_bytes
from tracea_graph.kernels.cpu.byte_lookup_tables import looked_up_rows, rounded_twice
from tracea_graph.kernels.cpu.division_by_constant_scale import zero_of_rounded_rows
from tracea_graph.kernels.cpu.exported_functions import ARM_KERNELS, KERNELS
from tracea_graph.kernels.cpu.host_loop_units import LOOP_UNITS, units_for
from tracea_graph.kernels.cpu.isa_levels import LEVELS
from tracea_graph.kernels.cpu.variants import (
    NO_TILES,
    Tiles,
    conv_bf16_tile,
    conv_tile,
    gemm_bf16_tile,
    gemm_int8_tile,
    gemm_nbits_tile,
    gemm_tile,
)
from tracea_graph.kernels.program import LibraryContents, OpType
from tracea_graph.ops.chain import KINDS, MAX_OPERANDS, MAX_RESULTS, Chain

__all__ = ["table_source"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_DOMAIN = re.compile(r"tracea\.[0-9a-f]{10}")


def table_source(
    domain: str,
    contents: LibraryContents,
    isas: Iterable[str],
    tiles: Tiles = NO_TILES,
) -> str:
    """Return the text of ``table.cpp``; ``tiles`` are the requested tiles of its kernels.

    Types, kernels, chains and levels are sorted, so their order does not matter.  Raises
    GraphError if a domain or name is not a plain identifier, or if two types have the same name.
    """
    chosen, held = set(isas), frozenset(contents.kernels)
    levels = [isa.name for isa in LEVELS if isa.name in chosen]
    unique = [
        chain for _, chain in sorted({chain.key: chain for chain in contents.chains}.items())
    ]
    kinds = sorted(contents.types, key=lambda t: t.name)
    _check(domain, kinds)
    digest = _digest(domain, levels, held, unique, kinds, tiles)
    parts = [
        '#include "runtime/table.h"\n',
        _declarations(levels, held, unique, tiles),
        _chain_types(unique),
        *(_chains_of(level, unique) for level in levels),
        _levels(levels, held, len(unique), tiles),
        *(_codes(i, t) for i, t in enumerate(kinds)),
        _types(kinds),
        _loop_tables(held),
        f'extern "C" const uint64_t tracea_table_digest = {digest}ULL;\n',
        f'extern "C" const tracea_library tracea_library_table = {{\n'
        f'    "{domain}", {len(levels)}, levels, {len(kinds)}, types}};\n',
    ]
    return "\n".join(parts)


def _loop_tables(held: frozenset[str]) -> str:
    """The units of host loops that the library has, after the runtime's own."""
    has = units_for(held)
    tables = ["nullptr", *(f"&tracea::{u}_loops" if u in has else "nullptr" for u in LOOP_UNITS)]
    return (
        'extern "C" const tracea::LoopTable* const tracea_loop_tables[] = '
        f"{{{', '.join(tables)}}};"
    )


def _digest(
    domain: str,
    levels: Sequence[str],
    held: frozenset[str],
    chains: Sequence[Chain],
    types: Sequence[OpType],
    tiles: Tiles,
) -> int:
    """FNV-1a over all names and numbers, in the order ``runtime/validate.h`` reads them."""
    parts: list[str | int] = [domain, len(levels), len(types), len(chains)]
    for chain in chains:
        parts += [chain.key, len(chain.operands), len(chain.results)]
        for i in range(MAX_OPERANDS):
            used = i < len(chain.operands)
            parts.append(KINDS.index(chain.operands[i]) if used else 0)
            parts.append(chain.operand_types[i].onnx if used else 0)
        room = MAX_RESULTS - len(chain.result_types)
        how, zero, added, table = _rounding(chain)
        parts += [*(d.onnx for d in chain.result_types), *[0] * room, how, zero, *added.bits()]
        parts += [number % 256 for number in table]
    for level in levels:
        parts += [level, *_sides(level, tiles)]
        parts += [int(k in held) for k in KERNELS for _ in emitter.symbols(k, level)]
    for t in types:
        parts += [t.name, len(t.inputs), len(t.outputs), *(d.onnx for d in t.inputs + t.outputs)]
    value = 0xCBF29CE484222325
    for part in parts:
        data = f"{part}\0".encode() if isinstance(part, str) else part.to_bytes(8, "little")
        for byte in data:
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def _check(domain: str, types: Sequence[OpType]) -> None:
    if not _DOMAIN.fullmatch(domain):
        raise GraphError(f"A library's domain is tracea.<10 hex digits>, not {domain!r}.")
    for t in types:
        if not _NAME.fullmatch(t.name):
            raise GraphError(f"An op type's name must be an identifier, not {t.name!r}.")
    names = [t.name for t in types]
    if len(set(names)) != len(names):
        raise GraphError(f"Two op types of a library share a name: {', '.join(names)}.")


def _declarations(
    levels: Sequence[str], held: frozenset[str], chains: Sequence[Chain], tiles: Tiles
) -> str:
    lines = ['extern "C" {']
    for level in levels:
        lines += [
            f"{function.gives} {symbol}({function.takes});"
            for kernel in (*KERNELS, *ARM_KERNELS)
            if kernel in held
            for symbol, function in emitter.kernel_functions(kernel, level, tiles)
        ]
        lines += [f"void {_chain(level, chain)}({emitter.CHAIN});" for chain in chains]
    return "\n".join([*lines, "}\n"])


def _chain(level: str, chain: Chain) -> str:
    return emitter.symbols("chain", level, chain)[0]


def _chain_types(chains: Sequence[Chain]) -> str:
    rows, tables = [], []
    for chain in chains:
        kinds = _codes_of([KINDS.index(kind) for kind in chain.operands], MAX_OPERANDS)
        types = _codes_of([d.onnx for d in chain.operand_types], MAX_OPERANDS)
        results = _codes_of([d.onnx for d in chain.result_types], MAX_RESULTS)
        how, zero, added, table = _rounding(chain)
        name = f"table_{chain.key:x}" if table else "nullptr"
        if table:
            numbers = ", ".join(str(number % 256) for number in table)
            tables.append(f"static const uint8_t {name}[] = {{{numbers}}};")
        rows.append(
            f"    {{{chain.key}, {len(chain.operands)}, {len(chain.results)},\n"
            f"     {kinds}, {types}, {results}, {how}, {zero}, {added.as_c()}, {name}}},"
        )
    return "\n".join(
        [
            *tables,
            'extern "C" const tracea_chain_type tracea_chain_types[] = {',
            *rows,
            "    {}};",
            f'extern "C" const int32_t tracea_chain_count = {len(chains)};',
            _array("int64_t", "chain_keys", [str(chain.key) for chain in chains]),
        ]
    )


def _rounding(chain: Chain) -> tuple[int, int, AddedBytes, tuple[int, ...]]:
    """Whether kernels may round sums to bytes instead of this chain, what they add, how, and the
    table in which the bytes are looked up."""
    zero, added, table = zero_of_rounded_rows(chain), added_bytes(chain), looked_up_rows(chain)
    if added is not None:
        return 2, 0, added, ()
    if table is not None:
        return 3, table[0], NOTHING_ADDED, table[1]
    if (twice := rounded_twice(chain)) is not None:
        return 4, *twice
    return (0, 0, NOTHING_ADDED, ()) if zero is None else (1, zero, NOTHING_ADDED, ())


def _codes_of(codes: Sequence[int], room: int) -> str:
    """An array of small numbers, zeros at the end."""
    return f"{{{', '.join(map(str, [*codes, *[0] * (room - len(codes))]))}}}"


def _chains_of(level: str, chains: Sequence[Chain]) -> str:
    return _array("tracea_chain_fn", f"chains_{level}", [_chain(level, c) for c in chains])


def _levels(levels: Sequence[str], held: frozenset[str], chains: int, tiles: Tiles) -> str:
    """One row a level; null for functions of kernels the library does not hold."""
    rows = []
    for level in levels:
        sides = ", ".join(map(str, _sides(level, tiles)))
        functions = [
            symbol if kernel in held else "nullptr"
            for kernel in KERNELS
            for symbol in emitter.symbols(kernel, level, tiles=tiles)
        ]
        on_arm = [
            symbol
            for kernel, its in ARM_KERNELS.items()
            for symbol in (
                emitter.symbols(kernel, level, tiles=tiles)
                if kernel in held
                else ["nullptr"] * len(its)
            )
        ]
        last = f", {', '.join(on_arm)}" if held & ARM_KERNELS.keys() else ""
        rows.append(
            f'    {{"{level}", {sides}, {", ".join(functions)},\n'
            f"     {chains}, chain_keys, chains_{level}{last}}}"
        )
    return _array("tracea_isa_table", "levels", rows, "\n")


def _sides(level: str, tiles: Tiles) -> tuple[int, ...]:
    """Sides of the level's largest register tiles, in the order of ``tracea_isa_table``."""
    pixels, _ = conv_bf16_tile(level, tiles)
    wide = (
        gemm_tile(level, tiles), gemm_bf16_tile(level, tiles), gemm_int8_tile(level, tiles),
        gemm_nbits_tile(level, tiles), conv_tile(level, tiles),
    )  # fmt: skip
    return (*(side for tile in wide for side in tile), pixels)


def _codes(index: int, t: OpType) -> str:
    return _array("int32_t", f"elements_{index}", [str(d.onnx) for d in (*t.inputs, *t.outputs)])


def _types(types: Sequence[OpType]) -> str:
    rows = [
        f'    {{"{t.name}", {len(t.inputs)}, {len(t.outputs)}, elements_{i}}}'
        for i, t in enumerate(types)
    ]
    return _array("tracea_op_type", "types", rows, "\n")


def _array(kind: str, name: str, items: Sequence[str], gap: str = " ") -> str:
    """A static array; one empty item stands in for none."""
    values = f",{gap}".join(items) or "{}"
    return f"static const {kind} {name}[] = {{{gap.strip(' ')}{values}}};\n"
