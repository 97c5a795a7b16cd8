"""Let matmuls of many rows write sums of their rows, from which later matmuls compute norms.

The epilogue of a warpgroup kernel adds up its tile's part of each row.  The matmul after the norm
adds up the parts, so that no launch computes the norm alone.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import with_sums
from tracea_graph.kernels.gpu.families.warpgroup_matmul import MOST_PARTS
from tracea_graph.kernels.gpu.kernel_selection import WARPGROUPS, variants_of
from tracea_graph.kernels.gpu.lowering.program_writer import HALVES, GpuProgramWriter, NormedRows
from tracea_graph.kernels.gpu.structured_choice import TWO_OF_FOUR
from tracea_graph.kernels.gpu.tile_choice import LEAST_SIDE, WARPGROUP_TILES, WIDE
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.gemm import GemmParams

__all__ = ["likely_width", "sums_of_rows"]

_SUMMING = (WARPGROUPS, TWO_OF_FOUR)
"""Kernels that write sums of rows."""


def sums_of_rows(w: GpuProgramWriter, p: GemmParams, held: NormedRows) -> View | None:
    """Let the matmul that computes a norm's rows write their sums; return the sums.

    The matmul ``p``, which reads the norm, can then compute the norm itself.  Returns None if one
    of the two has no warpgroup kernel, or if ``p`` has very many columns: it then needs the
    largest tiles, which leave no registers for a norm and save more time than a launch takes.
    """
    if p.n >= WIDE or w.narrow not in HALVES or p.k % 64 or min(p.n, p.k) < LEAST_SIDE:
        return None
    if held.sums is None:
        held.sums = _asked(w, held)
    return held.sums


def _asked(w: GpuProgramWriter, held: NormedRows) -> View | None:
    """Let the matmul that computes a norm's rows write their sums; return the sums, or None."""
    for place in reversed(range(len(w.calls))):
        call = w.calls[place]
        named: dict[str, Any] = CALLS.of(call).named(call)
        made = named["y"] if isinstance(named.get("y"), tuple) else (named.get("y"),)
        if held.rows.view in made:
            break
    else:
        return None
    if call.op not in ("gemm", "gemm_two_of_four") or call.dtype not in ("f16", "bf16"):
        return None
    if made[0] != held.rows.view:
        return None
    columns, rows = held.rows.shape[-1], held.rows.shape[0]
    likely = likely_width(w, call)
    if not likely or not isinstance(columns, int):
        return None
    for width in dict.fromkeys((likely, *(n for _, n, *_ in WARPGROUP_TILES))):
        if columns % width or columns // width > MOST_PARTS:
            continue
        parts = columns // width
        asked = with_sums(call, View.dense(held.rows.view.buffer, (rows, parts, 2)))
        if any(v.template in _SUMMING for v, _ in variants_of(asked)):
            sums = w.temp(DType.F32, (rows, parts, 2)).view
            w.calls[place] = with_sums(call, sums)
            return sums
    return None


def likely_width(w: GpuProgramWriter, call: Call) -> int:
    """Return the columns of a matmul's tile at the likely sizes; 0 if not a warpgroup kernel's."""
    for variant, when in variants_of(call):
        if (w.about(when) or 0) > 0:
            return variant.params["n"] if variant.template in _SUMMING else 0
    return 0
