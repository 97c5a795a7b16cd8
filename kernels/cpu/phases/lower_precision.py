"""Lower the precision of products and attention, on request.

bf16            both operands in bf16, sums in float32; attention too, with softmax in float32
bf16-weights    weights in bf16, everything else in float32
int8            both operands in 8-bit integers with scales (``gemm_int8``); attention in bf16
int4-weights    weights in 4 bits with a scale and a zero point for each block of k (``gemm_int4``)
fp16            both operands in fp16, on Arm (``fp16_products.py``)
int16           both operands in 16-bit integers with scales: as fast as bf16, an eighth of its
                error; also the fallback for products and convolutions that bf16 is too coarse for
bf16x2          both operands split into two bf16 terms: three bf16 products, nearly as exact as
                float32; on matrix tiles also faster than float32, and there the fallback for
                products, and for convolutions without a Winograd transform
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
from tracea_graph.kernels.cpu.bitmap_sparse_format import round_bitmap
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
    BlockSparseBf16Panels,
    BlockSparsePanels,
    pack_bf16x2,
    pack_block_sparse_vnni2,
    pack_int16,
    pack_scales,
    pack_vnni2,
    unpack_panels,
)
from tracea_graph.ops.attention import FEW_QUERIES, AttentionParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.weight_layouts import BLOCKS, Floats, WeightLayout
from tracea_graph.passes.matmul.constant_matrices import gemm_pattern
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.reason_codes import not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Match, Miss, PatternPass, Proposal, Rewrite
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "BF16X2_ERROR",
    "FALLBACK",
    "FP16_ERROR",
    "FURTHER",
    "INT4_ERROR",
    "INT8_ERROR",
    "INT16_ERROR",
    "LOWERING",
    "PRECISION_FALLBACKS",
    "PRODUCT_ERROR",
    "ROUNDING",
    "AttentionBf16",
    "GemmBf16",
    "GemmBf16x2",
    "GemmInt16",
    "lowered_products",
    "no_bf16",
    "rounded_as_read",
    "with_lowered_weights",
]

ROUNDING = 2.0**-8
"""Largest relative error of rounding to bf16: half of its epsilon, 2^-7."""
PRODUCT_ERROR = ROUNDING / 12
"""Error that one bf16 product adds to the outputs, relative to max|y|, as plans estimate it.

Rounding errors are independent, and two meet in each term, so the product's own result is off by
about ROUNDING / 1.7.  Deep networks attenuate that by a factor of 2 to 10.  The estimate is at the
low end: plans only exclude what cannot be within tolerance; verification measures the rest."""
INT4_ERROR = PRODUCT_ERROR * 4
"""PRODUCT_ERROR of a product with a matrix in 4 bits."""
INT8_ERROR = PRODUCT_ERROR * 2
"""PRODUCT_ERROR of a product in 8-bit integers, of rows and columns of similar numbers."""
FP16_ERROR = PRODUCT_ERROR / 2
"""PRODUCT_ERROR of a product in fp16 with short sums in fp16."""
INT16_ERROR = PRODUCT_ERROR / 8
"""PRODUCT_ERROR of a product in 16-bit integers (``ops/int16.py``)."""
BF16X2_ERROR = PRODUCT_ERROR / 256
"""PRODUCT_ERROR of a product in bf16x2."""
LOWERING = (
    "gemm-int4", "gemm-int8", "gemm-bf16", "attention-bf16", "conv-int8", "conv-bf16",
    "depthwise-bf16", "gemm-int16", "conv-int16", "gemm-bf16x2", "conv-bf16x2",
    "gemm-fp16", "conv-fp16",
)  # fmt: skip
"""Rules that change only the precision of a region."""
FALLBACK = MappingProxyType(
    {
        "gemm-int8": "gemm-int4",
        "gemm-bf16": "gemm-int8",
        "gemm-int16": "gemm-bf16",
        "gemm-bf16x2": "gemm-bf16",
        "conv-bf16": "conv-int8",
        "conv-int16": "conv-bf16",
        "conv-bf16x2": "conv-bf16",
    }
)
"""Fallback rules: a key applies where its value, another rule, was not applied."""
FURTHER = MappingProxyType({"depthwise-bf16": "conv-bf16"})
"""Further rules: a key applies on top of its value, another rule."""
_INTEGERS = ("gemm-int8", "conv-int8")
_LOWEST = (*_INTEGERS, "gemm-bf16", "attention-bf16", "depthwise-bf16", "conv-bf16")
PRECISION_FALLBACKS = (
    ("gemm-fp16",), ("conv-fp16",), ("gemm-fp16", "conv-fp16"),
    ("gemm-int4",), ("gemm-int4", "gemm-bf16"),
    ("depthwise-bf16",), ("gemm-int8",), ("conv-int8",), _INTEGERS,
    ("gemm-bf16",), ("attention-bf16",), ("conv-bf16",),
    ("depthwise-bf16", "conv-bf16"), ("gemm-int8", "attention-bf16"),
    ("gemm-bf16", "attention-bf16"), ("gemm-bf16", "depthwise-bf16", "conv-bf16"),
    ("gemm-int8", "gemm-bf16", "attention-bf16"), (*_INTEGERS, "conv-bf16"),
    _LOWEST,
    (*_LOWEST, "gemm-int16"), (*_LOWEST, "gemm-int16", "conv-int16"),
    (*_LOWEST, "gemm-int4", "gemm-int16", "conv-int16", "gemm-bf16x2", "conv-bf16x2",
     "gemm-fp16", "conv-fp16"),
)  # fmt: skip
"""Sets of rules to drop if the error is too large, in order of lost speed, least first."""
_COMPUTED = (GemmParams, ElementwiseParams, NormParams)
_LAYOUTS: Mapping[str, WeightLayout] = MappingProxyType(
    {"bf16": VNNI2, "bf16-weights": WEIGHT_ONLY_BF16}
)
Lower = Callable[[TileGraph, GemmParams, str], tuple[GemmParams, Weight] | str]
"""Lower one product with weights of the given name.

Returns the new parameters and weights, or the reason why the product stays in float32."""


def _attention(op: Any, q: Any) -> Any:
    return op.FusedAttention(q, ...)


@dataclass(frozen=True)
class AttentionBf16(PatternPass):
    """Let attention multiply bf16.

    Operands are stored in bf16 by the products that compute them; the kernel rounds those that are
    float32.  The rule does not apply if only a few queries would read rounded operands, as with a
    key cache: rounding would take longer than it saves.
    """

    name: str = "attention-bf16"
    patterns = (_attention,)

    def check(self, m: Match) -> str | None:
        params: AttentionParams = m.root.params
        if params.in_bf16:
            return unsuited_reason("it multiplies bf16 already")
        if params.stored != "f32":
            return f"its keys and values are read as they are stored, in {params.stored}"
        sizes = (params.head, params.head_v, *params.offsets, *params.widths)
        if any(size % 2 for size in sizes) or "transposed" in params.layouts:
            return "an operand is transposed, or a size or offset of its columns is odd"
        return None

    def rewrite(self, m: Match) -> Rewrite | str:
        _, queries = m.root.params.extents(0, m.spec("q"))
        whole = _whole(m.graph, m.root)
        if whole and isinstance(queries, int) and queries <= FEW_QUERIES:
            return f"with {queries} queries, rounding the keys takes longer than it saves"
        return rounded_as_read(self.name, m.root, in_bf16=True, whole=whole)


def rounded_as_read(rule: str, region: Region, step: bool = False, **changes: Any) -> Rewrite:
    """Return a rewrite that makes ``changes`` to a region's parameters.

    With these, the region's kernel rounds float32 operands when it reads them.
    """
    lower = dataclasses.replace(region.params, **changes)
    new = fused_region(rule, lower, region.operands, region.results, [region])
    return Rewrite((new,), error=PRODUCT_ERROR, step=step)


def with_lowered_weights(
    rule: str, region: Region, lower: Any, made: Sequence[Weight], error: float
) -> Rewrite:
    """Rewrite a region to the parameters ``lower`` and the weights ``made``.

    The first weight replaces operand 1; the others are appended.
    """
    weight, *more = (w.name for w in made)
    operands = (region.operands[0], weight, *region.operands[2:], *more)
    new = fused_region(rule, lower, operands, region.results, [region])
    return Rewrite((new,), weights={w.name: w for w in made}, error=error)


def _whole(graph: TileGraph, region: Region) -> bool:
    """Return True if attention must read an operand in float32.

    That is an operand which no product, chain or norm computes, or which is a graph output too.
    """
    return any(
        (source := graph.producer(value)) is None
        or graph.is_output(value)
        or not isinstance(source.params, _COMPUTED)
        for value in region.operands[:3]
    )


@dataclass(frozen=True)
class GemmBf16:
    """Convert the packed float32 weights of a product to bf16."""

    precision: str = "bf16"
    name: str = "gemm-bf16"

    @property
    def _able(self) -> tuple[WeightLayout, ...]:
        """Layouts that have a counterpart in this precision."""
        blocks = map(BlockSparsePanels, BLOCKS) if self.precision == "bf16" else ()
        return (PANELS, BITMAP, *blocks)

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        yield from lowered_products(
            self.name, PRODUCT_ERROR, self._able, self._lower, graph, region
        )

    def _lower(
        self, graph: TileGraph, params: GemmParams, panels: str
    ) -> tuple[GemmParams, Weight] | str:
        """Convert panels or blocks to bf16, or give the reason why they stay in float32."""
        stored, layout = graph.weight(panels), _LAYOUTS[self.precision]
        if why := no_bf16(graph):
            return why
        if stored is None:
            return not_constant_reason(panels)
        if layout == WEIGHT_ONLY_BF16 and params.layout == PANELS and params.k % 2:
            return f"K = {params.k} is odd"
        if params.layout == BITMAP:
            return dataclasses.replace(params, layout=BITMAP_BF16), _numbers(stored)
        if isinstance(params.layout, BlockSparsePanels):
            if params.layout.block % 2:
                return "blocks of one step of k hold no pairs"
            pairs = BlockSparseBf16Panels(params.layout.block)
            return dataclasses.replace(params, layout=pairs), _blocks_in_pairs(stored)
        return dataclasses.replace(params, layout=layout), _in_pairs(stored, params.n)


@dataclass(frozen=True)
class GemmInt16(PatternPass):
    """Convert the packed float32 weights of a product to 16-bit integers with scales."""

    name: str = "gemm-int16"
    patterns = (gemm_pattern,)

    def check(self, m: Match) -> str | None:
        panels = m.root.params.layout == PANELS
        return (
            None if panels else unsuited_reason(f"{m.root.operands[1]!r} is not packed in float32")
        )

    def rewrite(self, m: Match) -> Rewrite | str:
        panels, params = m.graph.weight(m.values["w"]), m.root.params
        if panels is None:
            return not_constant_reason(m.values["w"])
        lower = dataclasses.replace(params, layout=INT16)
        return with_lowered_weights(
            self.name, m.root, lower, _in_integers(panels, params.n), INT16_ERROR
        )


@dataclass(frozen=True)
class GemmBf16x2:
    """Split the packed float32 weights of a product into two bf16 terms."""

    name: str = "gemm-bf16x2"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        yield from lowered_products(self.name, BF16X2_ERROR, (PANELS,), self._lower, graph, region)

    def _lower(
        self, graph: TileGraph, params: GemmParams, panels: str
    ) -> tuple[GemmParams, Weight] | str:
        stored = graph.weight(panels)
        if why := no_bf16(graph):
            return why
        if stored is None:
            return not_constant_reason(panels)
        return dataclasses.replace(params, layout=BF16X2), _in_halves(stored, params.n)


def lowered_products(
    rule: str,
    error: float,
    able: Sequence[WeightLayout],
    lower: Lower,
    graph: TileGraph,
    region: Region,
) -> Iterator[Proposal | Miss]:  # fmt: skip
    """Propose lowering a product whose layout is in ``able``, or all such products of a program.

    The products of one program are lowered together because they share intermediate values.
    """
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
        new = fused_region(rule, whole, operands, region.results, [region])
        yield Proposal(rule, (region,), (new,), weights=made, error=error * len(made) ** 0.5)


def no_bf16(graph: TileGraph) -> str | None:
    """Return why a graph's opset cannot express bf16; None if it can."""
    if graph.opset >= BF16_SINCE:
        return None
    return f"opset {graph.opset} has no bf16; {BF16_SINCE} is the first"


def _in_integers(panels: Weight, n: int) -> tuple[Weight, Weight]:
    """The matrix of ``panels`` in 16-bit integers, and the scales of its columns."""
    count, k, _ = panels.shape

    def matrix() -> Floats:
        return unpack_panels(np.asarray(panels.array(), np.float32), n)

    shape = INT16.shape(k, n)
    whole = Weight(f"{panels.name}_int16", DType.I16, shape, lambda: pack_int16(matrix())[0])
    columns = (count * PANEL,)
    scale = Weight(f"{panels.name}_scale", DType.F32, columns, lambda: pack_scales(matrix()))
    return whole, scale


def _in_halves(panels: Weight, n: int) -> Weight:
    """The matrix of ``panels`` split into two bf16 terms, computed on demand."""
    k = panels.shape[1]

    def load() -> Array:
        return pack_bf16x2(unpack_panels(np.asarray(panels.array(), np.float32), n))

    return Weight(f"{panels.name}_bf16x2", DType.BF16, BF16X2.shape(k, n), load)


def _blocks_in_pairs(blocks: Weight) -> Weight:
    """The stored blocks of a block-sparse matrix in bf16."""
    count, block, _ = blocks.shape

    def load() -> Array:
        return pack_block_sparse_vnni2(np.asarray(blocks.array(), np.float32))

    return Weight(f"{blocks.name}_bf16", DType.BF16, (count, block // 2, PANEL, 2), load)


def _numbers(stored: Weight) -> Weight:
    """The nonzero elements of a bitmap matrix in bf16."""
    return Weight(
        f"{stored.name}_bf16",
        DType.BF16,
        stored.shape,
        lambda: round_bitmap(np.asarray(stored.array(), np.float32)),
    )


def _in_pairs(panels: Weight, n: int) -> Weight:
    """The matrix of ``panels`` in bf16, computed on demand."""
    k = panels.shape[1]

    def load() -> Array:
        return pack_vnni2(unpack_panels(np.asarray(panels.array(), np.float32), n))

    return Weight(f"{panels.name}_bf16", DType.BF16, VNNI2.shape(k, n), load)
