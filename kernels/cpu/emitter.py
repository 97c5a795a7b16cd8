"""Generate the C++17 source of a kernel for an instruction set.

A :class:`CompilationUnit` is one C++ file.  The only project header that it includes is
``tracea_kernels.h``; the vector type and its functions are part of the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from tracea_graph.ir import DType
from tracea_graph.kernels import chain_source, generated_source
from tracea_graph.kernels.cpu.byte_lookup_tables import with_tables
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.division_by_constant_scale import quotients, rounded_stores
from tracea_graph.kernels.cpu.exported_functions import (
    ARM_KERNELS,
    KERNELS,
    ExportedFunction,
)
from tracea_graph.kernels.cpu.isa_levels import COMMON_FLAGS, isa_of, vector_level_of
from tracea_graph.kernels.cpu.variants import (
    NO_TILES,
    PANEL,
    KernelVariant,
    Tiles,
    find_variant,
    gemm_tile,
)
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import Chain

__all__ = [
    "CHAIN",
    "CompilationUnit",
    "compilation_units",
    "emit_unit",
    "kernel_functions",
    "kernels_of_call",
    "render",
    "symbols",
]


_KERNELS = {**KERNELS, **ARM_KERNELS}
CHAIN = "const tracea_chain_tile*"
"""Parameter type of every chain function."""


@dataclass(frozen=True)
class CompilationUnit(generated_source.Source):
    """One generated C++ file: its first symbol, its text, and its compiler flags."""

    flags: tuple[str, ...]


def symbols(
    kernel: str, isa: str, chain: Chain | None = None, tiles: Tiles = NO_TILES
) -> tuple[str, ...]:
    """The symbols that one unit exports, in the order of ``functions.KERNELS``.

    Raises KeyError for a kernel, level or tile that does not exist.
    """
    names = [f"chain_{chain.key:016x}"] if chain else [f.name for f in _KERNELS[kernel]]
    return tuple(_variant(kernel, isa, chain, tiles).symbol(name) for name in names)


def kernel_functions(
    kernel: str, isa: str, tiles: Tiles = NO_TILES
) -> list[tuple[str, ExportedFunction]]:
    """The functions of one kernel for one level, each with its symbol."""
    return list(zip(symbols(kernel, isa, tiles=tiles), _KERNELS[kernel], strict=True))


def kernels_of_call(call: Call) -> set[str]:
    """The kernels that a call needs in addition to its chain.

    An elementwise call also needs ``copy`` if an operand is not contiguous along the columns.
    """
    if call.op != "elementwise":
        return set(CALLS.of(call).needs)
    inner = [v.strides[-1] for v in call.views if v is not None and v.dims and v.dims[-1] != 1]
    return set() if all(s in (0, 1) for s in inner) else {"copy"}


def emit_unit(
    kernel: str, isa: str, chain: Chain | None = None, tiles: Tiles = NO_TILES
) -> CompilationUnit:
    """Render the unit of a kernel in ``functions.KERNELS``, or of ``"chain"`` with a chain."""
    variant = _variant(kernel, isa, chain, tiles)
    exported = symbols(kernel, isa, chain, tiles)
    body = render(
        variant.template,
        isa=variant.isa,
        vectors_of=vector_level_of(variant.isa),
        symbols=exported,
        **_parameters(variant, chain),
    )
    header = "\n".join(f"// {line}" for line in _header(variant, exported))
    flags = (*COMMON_FLAGS, *isa_of(variant.isa).flags, *(chain_source.FLAGS if chain else ()))
    return CompilationUnit(exported[0], f"{header}\n{body}", flags)


def render(template: str, **parameters: object) -> str:
    """Render a template in ``micro``.  Raises jinja2.UndefinedError if a parameter is missing."""
    return _environment().get_template(template).render(**parameters)


def compilation_units(
    kernels: Iterable[str],
    chains: Iterable[Chain],
    isas: Iterable[str],
    tiles: Tiles = NO_TILES,
) -> list[CompilationUnit]:
    """Every unit of a library with these kernels and chains for these levels.

    ``tiles`` overrides the default register tiles.
    """
    unique = sorted({chain.key: chain for chain in chains}.items())
    wanted = set(kernels)
    sources = (
        source
        for isa in isas
        for source in (
            *(emit_unit(kernel, isa, tiles=tiles) for kernel in _KERNELS if kernel in wanted),
            *(emit_unit("chain", isa, chain) for _, chain in unique),
        )
    )
    return list({source.symbol: source for source in sources}.values())


def _variant(kernel: str, isa: str, chain: Chain | None, tiles: Tiles) -> KernelVariant:
    """The variant of a kernel or chain; chains that store bf16 have variants for more levels."""
    rounds = chain is not None and DType.BF16 in chain.result_types
    return find_variant(Call.name_of(kernel, "bf16") if rounds else kernel, isa, tiles)


def _parameters(variant: KernelVariant, chain: Chain | None) -> dict[str, object]:
    if chain is None:
        return {"needs": variant.functions, **variant.params}
    wide, broad = isa_of(variant.isa).width > 1, vector_level_of(variant.isa) == "avx512"
    text = chain.text
    chain, tables = with_tables(chain)
    stores: dict[int, tuple[str, int | None]] = dict(rounded_stores(chain) if broad else {})
    stores |= {number: (_look_up(chain, number), None) for number in tables}
    return {
        "needs": chain_source.needed_header_sections(chain) | ({"look_up"} if tables else set()),
        "text": text,
        "tables": tables,
        "packed": broad and set(stores) == set(range(len(chain.results))),
        "vectors": chain_source.vectors_to_unroll(chain, _row(variant.isa)),
        "operands": chain_source.chain_operands(chain),
        # the scalar level rounds products before it adds
        "steps": chain_source.chain_statements(chain, quotients(chain) if wide else {}),
        "results": chain_source.chain_results(chain, stores),
    }


def _look_up(chain: Chain, number: int) -> str:
    """The expression of a result whose table is ``TABLE_<number>``."""
    return f"look_up(TABLE_{number}, v{chain.results[number] - len(chain.operands)})"


def _row(isa: str) -> int:
    """Vectors per row of the level's largest register tile; 4 for the scalar level."""
    width = isa_of(isa).width
    return gemm_tile(isa)[1] * PANEL // width if width > 1 else 4


def _header(variant: KernelVariant, exported: tuple[str, ...]) -> list[str]:
    return [
        *exported,
        f"{variant.element} {variant.kernel} for {variant.isa}, from {variant.template}",
        "Generated, do not edit.",
    ]


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("micro")),
        line_statement_prefix="//%",
        variable_start_string="${",
        variable_end_string="}",
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
