"""Lower the matmuls of an attention's queries, keys and values together, as one call.

Only block-quantized matrices are handled here: others are merged before the plan is made, by
``passes/matmul/merge_gemms.py``.  Attention over caches reads its parts of the merged rows in
place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracea_graph.kernels.gpu.lowering.block_quantized import (
    block_quantized_params,
    lower_side_by_side,
)
from tracea_graph.kernels.gpu.lowering.cached_attention import CachedAttention
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams

__all__ = ["Projections", "lower_projections", "projections_of"]


@dataclass(frozen=True)
class Projections:
    """Steps that multiply the same rows by matrices of one layout, and their result's numbers."""

    steps: tuple[int, ...]
    results: tuple[int, ...]


def projections_of(
    p: RegionParams, attentions: Iterable[CachedAttention]
) -> dict[int, Projections]:
    """Return the matmuls to merge, by the number of the first step of each merged call."""
    starts, made, readers = p.starts, p.makers, p.readers
    found = dict[int, Projections]()
    for attention in attentions:
        values = [rows.value for rows in (attention.q, attention.keys, attention.values)]
        numbers = [made[v] for v in values if v in made]
        steps = [p.steps[n] for n in numbers]
        whole = len(set(numbers)) == len(values) and not set(values) & set(p.results)
        if whole and all(readers[v] == 1 for v in values) and _alike(p, steps):
            numbers.sort()
            found[numbers[0]] = Projections(tuple(numbers), tuple(starts[n] for n in numbers))
    return found


def _alike(p: RegionParams, steps: list[RegionStep]) -> bool:
    """Whether steps are plain matmuls of the same rows by block-quantized matrices."""
    first = steps[0]
    for step in steps:
        own = block_quantized_params(step)
        if own is None or own.epilogue:
            return False
        assert isinstance(first.params, GemmParams)
        if own.layout != first.params.layout or step.narrow != first.narrow:
            return False
        if step.operands[0] != first.operands[0] or any(i >= p.inputs for i in step.operands[1:]):
            return False
    return True


def lower_projections(
    w: GpuProgramWriter, p: RegionParams, merged: Projections, values: dict[int, Value]
) -> None:
    """Write the call and add its results to ``values``; ``w.narrow`` is the steps' type."""
    steps = [p.steps[n] for n in merged.steps]
    params = [step.params for step in steps if isinstance(step.params, GemmParams)]
    operands = [[values[i] for i in step.operands] for step in steps]
    stored = [own.stored(each) for own, each in zip(params, operands, strict=True)]
    results = lower_side_by_side(w, params, operands[0][0], [(s[0], s[1]) for s in stored])
    values.update(zip(merged.results, results, strict=True))
