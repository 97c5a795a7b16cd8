"""``FusedGemm``: a matrix product with row-wise post-processing.

    acc = x · W + bias            x [..., K], W [K, N]; of 8-bit integers, exact sums
    s   = epilogue(acc, extra…)   an elementwise chain; acc itself without one
    y   = norm(s)                 layer or RMS over N, if given

W is stored in a :class:`~tracea_graph.ops.weight_layouts.WeightLayout`; if that has a second array
(a map or scales), it is the last operand, or follows W if it is adjacent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.chain import FLOATS8, Chain
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.int8_matmul import MAX_DEPTH, IntegerOperand
from tracea_graph.ops.iteration_space_parts import (
    access_map,
    aligned_access,
    region_model,
    rows_and_columns,
)
from tracea_graph.ops.norm import Norm
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ops.weight_layouts import KN, NK, Floats, WeightLayout
from tracea_graph.ttg.iteration_space import Axis, IterationSpace, index_along
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["BLOCK_ROWS", "STEP_ROWS", "GemmParams"]

MAX_SPLITS = 16

STEP_ROWS, BLOCK_ROWS = 4.0, 12.0
"""Minimum cost, in rows, of a stored step of k, and of a block of such steps
(``python -m models.sparse_costs`` measures both).
"""


@dataclass(frozen=True)
class GemmParams:
    """Parameters of a product ``x · W`` with an optional epilogue or norm.

    Operands: x, W, zero points, bias, epilogue inputs, gamma, beta, second array of W. All but x
    and W are optional.  If the layout of W says that its second array is ``adjacent``, this array
    comes directly after W. The zero points are those that ``integers`` declares as operands; with
    ``integers`` there is no bias.

    Results: with a norm, y, then s if ``keep_sum`` (s has other readers too); with an epilogue
    alone, its one or two results; with neither, column ranges of the product, whose widths are
    ``splits``.
    """

    k: int
    n: int
    layout: WeightLayout = KN
    bias: bool = False
    epilogue: Chain | None = None
    norm: Norm | None = None
    keep_sum: bool = False
    splits: tuple[int, ...] = ()
    integers: IntegerOperand | None = None

    def __post_init__(self) -> None:
        self.layout.check(self.k, self.n)
        if self.integers and (self.bias or self.k > MAX_DEPTH):
            raise ValueError(f"a product of integers must have no bias and K ≤ {MAX_DEPTH}")
        if self.splits and (sum(self.splits) != self.n or self.epilogue or self.norm):
            raise ValueError("splits must cover all columns, without epilogue or norm")
        if not len(self.splits) <= MAX_SPLITS or any(p < 1 for p in self.splits):
            raise ValueError(f"a product must have 1 to {MAX_SPLITS} splits of 1 column or more")
        if self.keep_sum and self.norm is None:
            raise ValueError("the sum before a norm can be kept only if there is a norm")
        if self.epilogue and self.epilogue.operands[:1] != ("full",):
            raise ValueError("an epilogue must start from the full accumulator")
        if self.epilogue and self.norm and self.epilogue.result_types != (DType.F32,):
            raise ValueError("an epilogue before a norm must have one result, in float32")

    @property
    def epilogue_inputs(self) -> int:
        """Number of epilogue operands beyond the accumulator."""
        return len(self.epilogue.operands) - 1 if self.epilogue else 0

    @property
    def operands(self) -> int:
        affine = self.norm.operands if self.norm else 0
        last = 0 if self.layout.adjacent else self.layout.operands - 1
        return self.first + last + self.bias + self.epilogue_inputs + affine

    @property
    def first(self) -> int:
        """Number of operands before the bias: x, W and its adjacent array, zero points."""
        return 2 + self.layout.adjacent + (self.integers.operands if self.integers else 0)

    def split(
        self, items: Sequence[Any]
    ) -> tuple[Any, Any, Any | None, Sequence[Any], Sequence[Any]]:
        """Return operands by role: x, W, bias or None, epilogue inputs, (gamma, beta)."""
        first = self.first + self.bias
        last = first + self.epilogue_inputs
        affine = items[last : last + (self.norm.operands if self.norm else 0)]
        bias = items[self.first] if self.bias else None
        return items[0], items[1], bias, items[first:last], affine

    def stored(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return those of ``items``, one per operand, whose operands hold the matrix W."""
        if self.layout.adjacent:
            return items[1:3]
        return items[1:2] if self.layout.operands == 1 else (items[1], items[-1])

    @property
    def _integers(self) -> IntegerOperand:
        """How the operands are multiplied; a layout may hold the columns' zero points itself."""
        assert self.integers is not None
        return replace(self.integers, own_zeros=self.integers.own_zeros or self.layout.own_zeros)

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return x's shape with a new last dimension per result: N, or the width of a split."""
        shape = specs[0].shape
        if shape is None:
            raise ValueError("the rank of x is unknown")
        if self.splits:
            return tuple(TensorSpec(DType.F32, (*shape[:-1], n)) for n in self.splits)
        types: tuple[DType, ...] = (DType.F32,) * (1 + self.keep_sum)
        if self.epilogue and not self.norm:
            types = self.epilogue.result_types
        return tuple(TensorSpec(dtype, (*shape[:-1], self.n)) for dtype in types)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        """Evaluate with NumPy in the operands' precision, with W in this op's layout."""
        x, _, bias, epilogue_inputs, affine = self.split(arrays)
        stored = self.stored(arrays)
        if self.integers:
            matrix, own = self.layout.integers(stored, self.k, self.n)
            zeros = (*arrays[2 : self.first], *([] if own is None else [own]))
            acc = self._integers.product(x, matrix, zeros)
        else:
            acc = self.layout.product(x, stored, self.k, self.n)
        if bias is not None:
            acc = acc + bias
        if self.splits:
            return list(np.split(acc, np.cumsum(self.splits)[:-1], axis=-1))
        done = self.epilogue.reference([acc, *epilogue_inputs]) if self.epilogue else [acc]
        if self.norm is None:
            return done
        total = done[0]
        y = self.norm.reference(total, affine)
        return [y, total] if self.keep_sum else [y]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        count = prod(result[:-1]) * self.n  # the result is the first of the splits
        beside = (
            1
            + (self.epilogue.flops if self.epilogue else 0)
            + (fit.instructions["fused norm"] if self.norm else 0)
        )
        if self.layout.scattered:
            placing = fit.instructions["fused placing"] * self.k * self.n
            product = 2.0 * count * self.k / fit.shares["FusedGemm"]
            return OpCost(product, count * beside + placing, one_pass=True)
        if block := self.layout.block_steps:
            rows, stored = prod(operands[0][:-1]), prod(operands[1])
            busy = max(rows, STEP_ROWS + BLOCK_ROWS / block)
            product = 2.0 * busy * stored / fit.shares[f"FusedGemm block {block}"]
            if self.layout.rounds:  # two steps of k per instruction
                product *= fit.shares["FusedGemm"] / fit.shares[self.layout.share]
            packing = fit.instructions["fused packing"] * rows * self.k
            return OpCost(product, count * beside + packing, one_pass=True)
        share = fit.shares["FusedGemm int8" if self.integers else self.layout.share]
        return OpCost(2.0 * count * self.k / share, count * beside, one_pass=True)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        x, _, bias, epilogue_inputs, affine = self.split(b.inputs)
        stored = self.stored(b.inputs)
        if self.integers and self.integers.dtype in FLOATS8:
            # Transpose takes no 8-bit floats in early opsets
            wide = [b("Cast", v, to=DType.F32.onnx) for v in (x, *stored)]
            acc = self.layout.product_to_onnx(b, wide[0], wide[1:], self.k, self.n)
        elif self.integers:
            name, own_name = self.layout.integers_to_onnx(b, stored, self.k, self.n)
            zeros = (*b.inputs[2 : self.first], *filter(None, (own_name,)))
            acc = self._integers.to_onnx(b, x, name, zeros)
        else:
            acc = self.layout.product_to_onnx(b, x, stored, self.k, self.n)
        if bias is not None:
            acc = b("Add", acc, bias)
        if self.splits:
            ends = [sum(self.splits[: i + 1]) for i in range(len(self.splits))]
            pairs = zip(ends, self.splits, strict=True)
            return b.done(*(b.slice_last(acc, end - n, end) for end, n in pairs))
        done = self.epilogue.to_onnx(b, (acc, *epilogue_inputs)) if self.epilogue else [acc]
        if self.norm is None:
            return b.done(*done)
        total = done[0]
        y = self.norm.to_onnx(b, total, affine)
        return b.done(*((y, total) if self.keep_sum else (y,)))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model rows of x times columns of W; with a norm every result reads a whole row of sums.

        The weight is described by its logical matrix, independent of its storage.
        """
        x, w, bias, epilogue_inputs, affine = self.split(region.operands)
        shape = graph.spec(x).shape
        if not shape:
            return None
        rows, column, axes = rows_and_columns((*shape[:-1], self.n), self.norm)
        space = IterationSpace((*axes, Axis("k", self.k, True)))
        nk = self.layout == NK
        dims, view = (index_along("k"), index_along("n")), (self.k, self.n)
        weight = access_map(graph, w, dims[::-1] if nk else dims, view[::-1] if nk else view)
        sums, outs = (*rows, "n"), (*rows, column)
        reads = [aligned_access(graph, x, (*rows, "k")), weight]
        reads += [
            aligned_access(graph, v, sums)
            for v in ((bias,) if bias else ()) + tuple(epilogue_inputs)
        ]
        reads += [aligned_access(graph, v, outs) for v in affine]
        writes = [
            aligned_access(graph, v, n) for v, n in zip(region.results, (outs, sums), strict=False)
        ]
        work = (
            LoopWork((*sums, "k"), 2),
            LoopWork(sums, (self.epilogue.flops if self.epilogue else 0) + bool(bias)),
            LoopWork(outs, (self.norm.cost if self.norm else 0)),
        )
        columns = () if self.norm else ("n",)
        return region_model(region, space, reads, writes, work, rows, columns, ("k",))
