"""Compute matmuls of 8-bit integers of the same rows in one launch: queries, keys and values.

The matmuls remain calls, which architectures without the kernel and few rows use: each becomes a
part of the call that stands for all (``families/grouped_integers.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from tracea_graph.kernels.gpu.calls import CALLS, GROUP_PARTS
from tracea_graph.kernels.gpu.families.grouped_integers import numbers_of
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.row_choice import grouped_choices
from tracea_graph.kernels.program import Call

__all__ = ["group_integer_matmuls"]


def group_integer_matmuls(w: GpuProgramWriter) -> None:
    """Make matmuls of the same rows, with equal epilogues but for their numbers, parts of one."""
    groups = dict[Hashable, list[Call]]()
    for call in [c for c in w.calls if c.op == "integer_gemm"]:
        key = _key(call)
        if key is not None:
            groups.setdefault(key, []).append(call)
    for group in groups.values():
        matmuls = group[: len(GROUP_PARTS)]
        if len(matmuls) > 1 and not _is_read_between(w.calls, matmuls):
            _replace(w, matmuls)


def _named(call: Call) -> dict[str, Any]:
    return dict(CALLS.of(call).named(call))


def _key(call: Call) -> Hashable | None:
    """Return what matmuls of a group have in common; None for one that is in no group."""
    named, chain = _named(call), call.chain
    if chain is None or len(named["y"]) != 1 or named["w_zeros"] is not None:
        return None
    (y,) = named["y"]
    sizes = tuple((v.dims, v.strides) for v in (named["w"], y))
    types = (*chain.operands, *chain.operand_types, *chain.result_types)
    rows = call.dtype, named["x"], named["x_zero"], tuple(call.attributes.items())
    return (*rows, named["column_sums"] is None, *sizes, types, numbers_of(call)[0])


def _is_read_between(calls: Sequence[Call], matmuls: Sequence[Call]) -> bool:
    """Whether a result is read, or x written again, before the last of the matmuls."""
    places = [next(i for i, one in enumerate(calls) if one is m) for m in matmuls]
    uses = BufferUses(list(calls[places[0] : places[-1] + 1]))
    results = [_named(m)["y"][0].buffer for m in matmuls]
    again = uses.writers.get(_named(matmuls[0])["x"].buffer)
    several = len(set(results)) < len(results)
    return bool(again) or several or any(uses.readers.get(buffer) for buffer in results)


def _replace(w: GpuProgramWriter, matmuls: Sequence[Call]) -> None:
    """Replace matmuls by the parts of one call, if a kernel computes it at some size."""
    named = [_named(m) for m in matmuls]
    summed = [n["column_sums"] for n in named if n["column_sums"] is not None]
    vectors = [view for n in named for view in n["inputs"]]
    numbers = tuple(number for m in matmuls for number in numbers_of(m)[1])
    parts = [
        CALLS.make(
            "grouped_integer_gemm", own.dtype, x=named[0]["x"], w=[n["w"] for n in named],
            x_zero=named[0]["x_zero"], column_sums=summed, inputs=vectors,
            y=[n["y"][0] for n in named], chain=own.chain, part=part, matrices=len(matmuls),
            summed=len(summed), vectors=len(vectors), numbers=numbers, **own.attributes,
        )
        for part, own in zip(GROUP_PARTS, matmuls, strict=False)
    ]  # fmt: skip
    if not grouped_choices(parts[-1]):
        return
    for part, own in zip(parts, matmuls, strict=True):
        at = next(i for i, one in enumerate(w.calls) if one is own)
        w.calls[at] = replace(part, step=own.step)
