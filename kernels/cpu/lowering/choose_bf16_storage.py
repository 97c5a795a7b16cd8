"""Choose the values of a region to store in bf16: those whose consumers round them anyway.

A value that is only read in bf16 never exists in float32; one that is read in both types is
written twice by its producer, from registers.  A value that is only moved or max-pooled takes the
type of the result.  Sums before a norm, statistics and results of the region stay in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.cpu.filters import (
    BLOCK,
    Bf16x2Filters,
    Filters,
    FirstLayerFilters,
    Nchw32cFilters,
)
from tracea_graph.kernels.cpu.lowering.channel_blocked_values import NCHW32C
from tracea_graph.kernels.cpu.lowering.choose_layouts import RegionLayout
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams, is_pure_reshape
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.layout_op import BORDERS, LayoutParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.resize import ResizeParams

__all__ = ["StoredTypes", "accepts_nchw32c_epilogue"]


@dataclass(frozen=True)
class StoredTypes:
    """The element types that a region's values are stored in.

    * ``only``: values stored only in bf16
    * ``too``: values stored both in float32 and in bf16
    * ``views``: results that are reshaped aliases of their operand
    * ``apart``: parts of a concatenation that cannot share its buffer, because their type differs
    * ``nchw32c``: members of ``only`` that are stored in nchw32c
    """

    only: frozenset[int]
    too: frozenset[int]
    views: frozenset[int]
    apart: frozenset[int]
    nchw32c: frozenset[int]

    @classmethod
    def plan(
        cls, p: RegionParams, specs: Sequence[TensorSpec], layout: RegionLayout
    ) -> StoredTypes:
        """Choose the types of a region's values; ``specs`` lists all values, inputs first.

        Blocked values are stored once: in bf16 if all their readers agree.
        """
        wanted, exact, able = set[int](), set(p.results), set[int]()
        views, carried = dict[int, int](), dict[int, _Carried]()
        value = p.inputs
        for step in p.steps:
            if is_pure_reshape(step.params) and value not in {*p.results, *layout.blocked}:
                views[value] = step.operands[0]
                value += 1
                continue
            if (held := _held(step, value, layout)) is not None:
                carried[value] = held
                able.add(value)
                value += 1
                continue
            rounds = _rounds(step)
            for i, v in enumerate(_read(step)):
                fits = (v in layout.blocked) == isinstance(step.params, ConvParams)
                (wanted if i in rounds and fits else exact).add(v)
            if _can_round(step) and specs[value].dtype is DType.F32:
                able.add(value)
            value += step.results
        for value, source in reversed(views.items()):  # a view passes requests to its source
            if value in wanted:
                (exact if source in layout.blocked else wanted).add(source)
            if value in exact:
                exact.add(source)
        only = _only(carried, wanted, exact, able)
        apart = {v for v, (whole, _) in layout.within.items() if (v in only) != (whole in only)}
        too = wanted & able & exact - layout.blocked
        within = {v: place for v, place in layout.within.items() if v not in apart}
        by_two = {v for v in only & layout.blocked if layout.channels(v) % NCHW32C == 0}
        nchw32c = _nchw32c(p, carried, within, by_two)
        return cls(only, frozenset(too), frozenset(views), frozenset(apart), nchw32c)


@dataclass(frozen=True)
class _Carried:
    """A blocked result that holds elements of ``sources``, moved or max-pooled.

    ``alike``: the result must have the type of its sources; otherwise the step can round them.
    """

    sources: tuple[int, ...]
    alike: bool
    concat: bool = False


def _held(step: RegionStep, value: int, layout: RegionLayout) -> _Carried | None:
    """Describe a step that only moves or max-pools blocked values; None for other steps."""
    params, sources = step.params, _read(step)
    if not {value, *sources} <= layout.blocked:
        return None
    if isinstance(params, PoolParams):
        largest = params.kind == "max" and params.window is not None
        return _Carried(sources, True) if largest else None
    if not isinstance(params, LayoutParams):
        return None
    if params.kind == "concat":
        whole = not any(layout.channels(v) % BLOCK for v in sources[:-1])
        return _Carried(sources, False, True) if whole else None
    if params.kind in ("spread", "pad"):
        return _Carried(sources, False)
    there = params.kind in ("repeat", *BORDERS) or value in layout.within
    return _Carried(sources, True) if there else None


def _only(
    carried: dict[int, _Carried], wanted: set[int], exact: set[int], able: set[int]
) -> frozenset[int]:
    """Values stored only in bf16: all consumers read bf16, or pass it on unchanged."""
    exact = set(exact)
    while True:
        asked, refused = set(wanted), set(exact)
        for result, held in reversed(carried.items()):
            (asked if result in asked - refused else refused).update(held.sources)
        only = asked & able - refused
        broken = {r for r in only & carried.keys() if carried[r].alike}
        broken -= {r for r in broken if only.issuperset(carried[r].sources)}
        if not broken:
            return frozenset(only)
        exact |= broken


def accepts_nchw32c_epilogue(params: ConvParams) -> bool:
    """Return whether a convolution's kernel accepts nchw32c for added operands and results."""
    return isinstance(params.layout, Filters) and params.layout.nchw32c and params.groups == 1


def _nchw32c(
    p: RegionParams, carried: dict[int, _Carried], within: dict[int, tuple[int, int]],
    able: set[int],
) -> frozenset[int]:  # fmt: skip
    """Members of ``able`` that convolutions read in nchw32c, where the whole buffer allows it."""
    wanted, value = set[int](), p.inputs
    for step in p.steps:
        params = step.params
        if isinstance(params, ConvParams):
            if isinstance(params.layout, Nchw32cFilters):
                wanted.add(step.operands[0])
            else:
                able = able - {step.operands[0]}
            others = step.operands[1:] if accepts_nchw32c_epilogue(params) else step.operands[:0]
            able = able - set(step.operands[1:]).difference(others)
        if value not in carried and not (
            isinstance(params, ConvParams) and accepts_nchw32c_epilogue(params)
        ):
            able = able - {value}
        value += step.results
    for result, held in reversed(carried.items()):
        if result in wanted:
            wanted.update(held.sources)
    found = wanted & able
    while True:
        broken = {
            v
            for v, (w, first) in within.items()
            if (v in found) != (w in found) or first % NCHW32C
        }
        broken |= {within[v][0] for v in broken}
        for result, held in carried.items():
            together = {result, *held.sources}
            if not held.concat and together & found and not together <= found:
                broken |= together
        if not broken & found:
            return frozenset(found)
        found = found - broken


def _read(step: RegionStep) -> tuple[int, ...]:
    """Operands whose elements a step reads, not only their sizes."""
    params = step.params
    if isinstance(params, IotaParams):
        return ()
    sizes = isinstance(params, ResizeParams) or (
        isinstance(params, LayoutParams) and params.kind == "pad"
    )
    return step.operands[:1] if sizes else step.operands


def _rounds(step: RegionStep) -> Collection[int | None]:
    """The operands that a step reads in bf16."""
    params = step.params
    if isinstance(params, ConvParams) and params.layout.rounds:
        return (0, params.added)
    if isinstance(params, GemmParams) and params.layout.rounds and params.k % 2 == 0:
        return range(1)
    if isinstance(params, AttentionParams) and params.in_bf16 and not params.whole:
        return range(3)
    return range(0)


def _can_round(step: RegionStep) -> bool:
    """True if the kernel that writes a step's first result can round it."""
    params = step.params
    if isinstance(params, GemmParams) and params.norm is None:
        return step.results == 1 and not params.splits
    if isinstance(params, ConvParams):
        return params.layout.rounds or isinstance(params.layout, Bf16x2Filters | FirstLayerFilters)
    if isinstance(params, EmbeddingParams):
        return params.norm is not None
    if isinstance(params, AttentionParams):
        return params.in_bf16 and not params.whole
    if isinstance(params, ElementwiseParams):
        return step.results == 1
    return isinstance(params, (GemmParams, NormParams))
