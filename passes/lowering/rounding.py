"""Which values of a region are kept in bf16: those whose readers round them anyway.

A value that is read in bf16 only never exists in float32; one that is read either way is written
twice by the step that makes it, while it is in registers.  Sums before a norm, statistics and
whatever leaves the region stay in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gemm import ROUNDED, GemmParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.region import RegionParams, RegionStep
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.passes.lowering.layout import Layout

__all__ = ["Rounding"]


@dataclass(frozen=True)
class Rounding:
    """Values that exist ``only`` in bf16, and those that exist in bf16 ``too``.

    ``views`` are results that nobody writes: their operand, under another shape.
    """

    only: frozenset[int]
    too: frozenset[int]
    views: frozenset[int]

    @classmethod
    def plan(cls, p: RegionParams, specs: Sequence[TensorSpec], layout: Layout) -> Rounding:
        """Of a region whose values have ``specs``, its inputs first.

        What lies in blocks is stored once: as its readers want it if they agree.
        """
        wanted, exact, able = set[int](), set(p.results), set[int]()
        blocked = {v for v in layout.blocked if layout.alone(v)}
        views, maxima = dict[int, int](), dict[int, int]()
        value = p.inputs
        for step in p.steps:
            if _reshapes(step) and value not in {*p.results, *layout.blocked}:
                views[value] = step.operands[0]
                value += 1
                continue
            if _is_maximum(step) and {value, *step.operands} <= blocked:
                maxima[value] = step.operands[0]
                able.add(value)
                value += 1
                continue
            rounds = _rounds(step)
            # of what else a resize names only the size is asked for
            read = step.operands[:1] if isinstance(step.params, ResizeParams) else step.operands
            for i, v in enumerate(read):
                fits = (v in blocked) == isinstance(step.params, ConvParams)
                (wanted if i in rounds and fits else exact).add(v)
            whole = value not in layout.blocked or value in blocked
            if whole and _can_round(step) and specs[value].dtype is DType.F32:
                able.add(value)
            value += step.results
        for value, source in reversed(views.items()):  # asked of a view, asked of what it shows
            if value in wanted:
                (exact if source in layout.blocked else wanted).add(source)
            if value in exact:
                exact.add(source)
        only = _with_maxima(maxima, wanted, exact, able)
        return cls(only, frozenset(wanted & able & exact - layout.blocked), frozenset(views))


def _with_maxima(
    maxima: dict[int, int], wanted: set[int], exact: set[int], able: set[int]
) -> frozenset[int]:
    """Values that exist only in bf16, where the largest of some numbers rounded is their largest
    rounded: ``maxima`` and what they are over are both so, or neither is.  Says in ``exact`` what
    is asked for otherwise."""
    kept = dict(maxima)
    while True:
        asked = wanted | {source for result, source in kept.items()}
        only = asked & able - exact
        dropped = [r for r, source in kept.items() if not {r, source} <= only]
        if not dropped:
            return frozenset(only)
        for result in dropped:
            exact |= {result, kept.pop(result)}


def _is_maximum(step: RegionStep) -> bool:
    params = step.params
    return isinstance(params, PoolParams) and params.kind == "max" and params.window is not None


def _reshapes(step: RegionStep) -> bool:
    return isinstance(step.params, ElementwiseParams) and step.params.reshapes_only


def _rounds(step: RegionStep) -> Collection[int | None]:
    """The operands a step reads in bf16."""
    params = step.params
    if isinstance(params, ConvParams) and params.in_bf16:
        return (0, params.added)
    if isinstance(params, GemmParams) and params.layout in ROUNDED and params.k % 2 == 0:
        return range(1)
    if isinstance(params, AttentionParams) and params.in_bf16 and not params.whole:
        return range(3)
    return range(0)


def _can_round(step: RegionStep) -> bool:
    """True if the kernel that writes a step's first result can round it."""
    params = step.params
    if isinstance(params, GemmParams) and params.norm is None:
        return step.results == 1 and not params.parts
    if isinstance(params, ConvParams):
        return params.in_bf16 or params.in_halves or params.layout == "stem"
    if isinstance(params, EmbeddingParams):
        return params.norm is not None
    if isinstance(params, AttentionParams):
        return params.in_bf16 and not params.whole
    if isinstance(params, ElementwiseParams):
        return step.results == 1
    return isinstance(params, (GemmParams, NormParams))
