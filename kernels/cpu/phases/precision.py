"""Lower precision, where the caller asked for it: products with weights in bf16.

bf16            both operands in bf16, sums in float32; attention likewise, its softmax in float32
bf16-weights    weights in bf16, everything else in float32
int16           both operands in 16-bit integers with scales: of bf16's speed and eight times as
                exact.  Products and convolutions that bf16 is too coarse for are computed so as
                well
bf16x2          both operands as sums of two numbers in bf16: three products in bf16, nearly as
                exact as float32, and faster than that on matrix tiles, where products that bf16
                is too coarse for, and convolutions no transform serves, are computed so as well
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.kernels.cpu.bitmap import round_bitmap
from tracea_graph.kernels.cpu.panels import (
    BF16_SINCE,
    BF16X2,
    BITMAP,
    BITMAP_BF16,
    INT16,
    PANEL,
    PANELS,
    VNNI2,
    WEIGHT_ONLY_BF16,
    BlockSparsePanels,
    BlockSparseVnni2Panels,
    pack_bf16x2,
    pack_block_sparse_vnni2,
    pack_int16,
    pack_scales,
    pack_vnni2,
    unpack_panels,
)
from tracea_graph.ops.attention import FEW_QUERIES, AttentionParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.region import RegionParams
from tracea_graph.ops.weights import BLOCKS, Floats, WeightLayout
from tracea_graph.passes.matmul.constant_matrices import gemm
from tracea_graph.passes.regions import fused
from tracea_graph.reasons import not_constant
from tracea_graph.rewrite import Match, Miss, PatternPass, Proposal, Rewrite
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "BF16X2_ERROR",
    "FALLBACK",
    "FURTHER",
    "INT16_ERROR",
    "LOWERING",
    "PRECISION_FALLBACKS",
    "PRODUCT_ERROR",
    "ROUNDING",
    "AttentionBf16",
    "GemmBf16",
    "GemmBf16x2",
    "GemmInt16",
    "no_bf16",
    "rounded_as_read",
    "with_lowered_weights",
]

ROUNDING = 2.0**-8
"""Relative error of one number rounded to bf16, at most: half a step, 2^-7 for numbers from 1."""
PRODUCT_ERROR = ROUNDING / 12
"""What one product brings into the outputs, of max|y|, as far as plans count it.  Roundings are
independent, their root mean square is 0.41 of the largest, and two meet in a term: of its own
result a product is off by ROUNDING / 1.7.  What a deep net leaves of that in its outputs is a half
to a tenth; the least of it stands here, for a plan only rules out what cannot be right, and
verification measures the rest."""
INT16_ERROR = PRODUCT_ERROR / 8
"""The same in 16-bit integers (``ops/int16.py``)."""
BF16X2_ERROR = PRODUCT_ERROR / 256
"""The same of sums of two numbers in bf16."""
LOWERING = (
    "gemm-bf16", "attention-bf16", "conv-bf16", "depthwise-bf16", "gemm-int16", "conv-int16",
    "gemm-bf16x2", "conv-bf16x2",
)  # fmt: skip
"""Rules that change numbers only."""
FALLBACK = MappingProxyType(
    {
        "gemm-int16": "gemm-bf16",
        "gemm-bf16x2": "gemm-bf16",
        "conv-int16": "conv-bf16",
        "conv-bf16x2": "conv-bf16",
    }
)
"""Rules that take what is left without another."""
FURTHER = MappingProxyType({"depthwise-bf16": "conv-bf16"})
"""Rules that go on where another was applied."""
PRECISION_FALLBACKS = (
    ("depthwise-bf16",), ("gemm-bf16",), ("attention-bf16",), ("conv-bf16",),
    ("depthwise-bf16", "conv-bf16"), ("gemm-bf16", "attention-bf16"),
    ("gemm-bf16", "depthwise-bf16", "conv-bf16"),
    ("gemm-bf16", "attention-bf16", "depthwise-bf16", "conv-bf16"),
    ("gemm-bf16", "attention-bf16", "depthwise-bf16", "conv-bf16", "gemm-int16"),
    ("gemm-bf16", "attention-bf16", "depthwise-bf16", "conv-bf16", "gemm-int16", "conv-int16"),
    ("gemm-bf16", "attention-bf16", "depthwise-bf16", "conv-bf16", "gemm-int16", "conv-int16",
     "gemm-bf16x2", "conv-bf16x2"),
)  # fmt: skip
"""Sets of rules to do without where the error is too large, the cheapest set first."""
_COMPUTED = (GemmParams, ElementwiseParams, NormParams)
_LAYOUTS: Mapping[str, WeightLayout] = MappingProxyType(
    {"bf16": VNNI2, "bf16-weights": WEIGHT_ONLY_BF16}
)
Lower = Callable[[TileGraph, GemmParams, str], tuple[GemmParams, Weight] | str]
"""A product over the weights of a name in lower precision, and those; or why it stays."""


def _attention(op: Any, q: Any) -> Any:
    return op.FusedAttention(q, ...)


@dataclass(frozen=True)
class AttentionBf16(PatternPass):
    """Attention: over what products computed in bf16, else over float32 that the kernel rounds,
    where a cache of keys is read by few queries not even that."""

    name: str = "attention-bf16"
    patterns = (_attention,)

    def check(self, m: Match) -> str | None:
        params: AttentionParams = m.root.params
        if params.in_bf16:
            return ""
        sizes = (params.head, params.head_v, *params.offsets, *params.widths)
        if any(size % 2 for size in sizes) or "turned" in params.layouts:
            return "its columns do not lie in pairs"
        return None

    def rewrite(self, m: Match) -> Rewrite | str:
        _, queries = m.root.params.extents(0, m.spec("q"))
        whole = _whole(m.graph, m.root)
        if whole and isinstance(queries, int) and queries <= FEW_QUERIES:
            return f"{queries} queries read its keys as they lie"
        return rounded_as_read(self.name, m.root, in_bf16=True, whole=whole)


def rounded_as_read(rule: str, region: Region, step: bool = False, **changes: Any) -> Rewrite:
    """The same operands, of which the kernel rounds more as it reads: ``changes`` says what."""
    lower = dataclasses.replace(region.params, **changes)
    new = fused(rule, lower, region.operands, region.results, [region])
    return Rewrite((new,), error=PRODUCT_ERROR, step=step)


def with_lowered_weights(
    rule: str, region: Region, lower: Any, made: Sequence[Weight], error: float
) -> Rewrite:
    """The same region with ``lower`` for its parameters: the first weight made takes the place of
    its second operand, others come last."""
    weight, *more = (w.name for w in made)
    operands = (region.operands[0], weight, *region.operands[2:], *more)
    new = fused(rule, lower, operands, region.results, [region])
    return Rewrite((new,), weights={w.name: w for w in made}, error=error)


def _whole(graph: TileGraph, region: Region) -> bool:
    """True if attention finds any of its operands in float32: a product or chain that makes one
    could round it."""
    return any(
        (source := graph.producer(value)) is None
        or graph.is_output(value)
        or not isinstance(source.params, _COMPUTED)
        for value in region.operands[:3]
    )


@dataclass(frozen=True)
class GemmBf16:
    """A product over packed float32 weights reads them in bf16 instead."""

    precision: str = "bf16"
    name: str = "gemm-bf16"

    @property
    def _able(self) -> tuple[WeightLayout, ...]:
        """Layouts that have one in this precision."""
        blocks = map(BlockSparsePanels, BLOCKS) if self.precision == "bf16" else ()
        return (PANELS, BITMAP, *blocks)

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        yield from _lowered(self.name, PRODUCT_ERROR, self._able, self._lower, graph, region)

    def _lower(
        self, graph: TileGraph, params: GemmParams, panels: str
    ) -> tuple[GemmParams, Weight] | str:
        """The same product with its panels or blocks in bf16; or why they stay in float32."""
        stored, layout = graph.weight(panels), _LAYOUTS[self.precision]
        if why := no_bf16(graph):
            return why
        if stored is None:
            return not_constant(panels)
        if layout == WEIGHT_ONLY_BF16 and params.layout == PANELS and params.k % 2:
            return f"K = {params.k} is odd"
        if params.layout == BITMAP:
            return dataclasses.replace(params, layout=BITMAP_BF16), _numbers(stored)
        if isinstance(params.layout, BlockSparsePanels):
            if params.layout.block % 2:
                return "blocks of one step do not lie in pairs"
            pairs = BlockSparseVnni2Panels(params.layout.block)
            return dataclasses.replace(params, layout=pairs), _blocks_in_pairs(stored)
        return dataclasses.replace(params, layout=layout), _in_pairs(stored, params.n)


@dataclass(frozen=True)
class GemmInt16(PatternPass):
    """A product over packed float32 weights reads 16-bit integers instead."""

    name: str = "gemm-int16"
    patterns = (gemm,)

    def check(self, m: Match) -> str | None:
        return None if m.root.params.layout == PANELS else ""

    def rewrite(self, m: Match) -> Rewrite | str:
        panels, params = m.graph.weight(m.values["w"]), m.root.params
        if panels is None:
            return not_constant(m.values["w"])
        lower = dataclasses.replace(params, layout=INT16)
        return with_lowered_weights(
            self.name, m.root, lower, _in_integers(panels, params.n), INT16_ERROR
        )


@dataclass(frozen=True)
class GemmBf16x2:
    """A product over packed float32 weights reads sums of two numbers in bf16 instead."""

    name: str = "gemm-bf16x2"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        yield from _lowered(self.name, BF16X2_ERROR, (PANELS,), self._lower, graph, region)

    def _lower(
        self, graph: TileGraph, params: GemmParams, panels: str
    ) -> tuple[GemmParams, Weight] | str:
        stored = graph.weight(panels)
        if why := no_bf16(graph):
            return why
        if stored is None:
            return not_constant(panels)
        return dataclasses.replace(params, layout=BF16X2), _in_halves(stored, params.n)


def _lowered(
    rule: str,
    error: float,
    able: Sequence[WeightLayout],
    lower: Lower,
    graph: TileGraph,
    region: Region,
) -> Iterator[Proposal | Miss]:  # fmt: skip
    """A product in one of the layouts that are ``able``, or all of one program at once: they share
    what lies between them."""
    params = region.params
    if isinstance(params, GemmParams) and params.layout in able:
        found = lower(graph, params, region.operands[1])
        if isinstance(found, str):
            yield Miss(rule, region.id, found)
            return
        lowered = with_lowered_weights(rule, region, found[0], found[1:], error)
        yield Proposal.of(rule, (region,), lowered)
    if not isinstance(params, RegionParams):
        return
    reads = Counter(v for step in params.steps for v in step.operands)
    operands, steps, made = list(region.operands), list(params.steps), dict[str, Weight]()
    for i, step in enumerate(steps):
        product = step.params
        if not isinstance(product, GemmParams) or product.layout not in able:
            continue
        at = step.operands[1]
        if at >= params.inputs or reads[at] > 1:
            continue
        found = lower(graph, product, operands[at])
        if isinstance(found, str):
            yield Miss(rule, region.id, found)
            continue
        steps[i] = dataclasses.replace(step, params=found[0])
        operands[at], made[found[1].name] = found[1].name, found[1]
    if made:
        whole = dataclasses.replace(params, steps=tuple(steps))
        new = fused(rule, whole, operands, region.results, [region])
        yield Proposal(rule, (region,), (new,), weights=made, error=error * len(made) ** 0.5)


def no_bf16(graph: TileGraph) -> str | None:
    """Why a graph's models hold no numbers in bf16, or None."""
    if graph.opset >= BF16_SINCE:
        return None
    return f"opset {graph.opset} has no bf16; {BF16_SINCE} is the first"


def _in_integers(panels: Weight, n: int) -> tuple[Weight, Weight]:
    """The same matrix in 16-bit integers, and the scales of its columns."""
    count, k, _ = panels.shape

    def matrix() -> Floats:
        return unpack_panels(np.asarray(panels.array(), np.float32), n)

    shape = INT16.shape(k, n)
    whole = Weight(f"{panels.name}_int16", DType.I16, shape, lambda: pack_int16(matrix())[0])
    columns = (count * PANEL,)
    scale = Weight(f"{panels.name}_scale", DType.F32, columns, lambda: pack_scales(matrix()))
    return whole, scale


def _in_halves(panels: Weight, n: int) -> Weight:
    """The same matrix as sums of two numbers in bf16; nothing is kept between calls."""
    k = panels.shape[1]

    def load() -> Array:
        return pack_bf16x2(unpack_panels(np.asarray(panels.array(), np.float32), n))

    return Weight(f"{panels.name}_bf16x2", DType.BF16, BF16X2.shape(k, n), load)


def _blocks_in_pairs(blocks: Weight) -> Weight:
    """Stored blocks in bf16."""
    count, block, _ = blocks.shape

    def load() -> Array:
        return pack_block_sparse_vnni2(np.asarray(blocks.array(), np.float32))

    return Weight(f"{blocks.name}_bf16", DType.BF16, (count, block // 2, PANEL, 2), load)


def _numbers(stored: Weight) -> Weight:
    """Stored numbers in bf16."""
    return Weight(
        f"{stored.name}_bf16",
        DType.BF16,
        stored.shape,
        lambda: round_bitmap(np.asarray(stored.array(), np.float32)),
    )


def _in_pairs(panels: Weight, n: int) -> Weight:
    """The same matrix in bf16; nothing is kept between calls."""
    k = panels.shape[1]

    def load() -> Array:
        return pack_vnni2(unpack_panels(np.asarray(panels.array(), np.float32), n))

    return Weight(f"{panels.name}_bf16", DType.BF16, VNNI2.shape(k, n), load)
