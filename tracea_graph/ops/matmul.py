"""``FusedMatMul``: a product of two computed tensors with an elementwise epilogue.

    acc = transpose(a) · transpose(b)     as numpy.matmul: leading axes broadcast
    y   = epilogue(acc, extra…)           an elementwise chain; acc itself without one

    acc = float32(transpose(a − zero) · transpose(b − zero))    of 8-bit integers, exact sums

Neither operand is packed ahead of time.  Kernels read both through strides: a transposition is
free if the contiguous axis stays among the last two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.ops.chain import COL, FULL, ROW, SCALAR, Chain
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.iteration_space_parts import (
    Shape,
    access_map,
    aligned_access,
    axes_named,
    region_model,
)
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import AccessMap, Axis, DimIndex, IterationSpace, index_along
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["MatMulParams", "broadcast_kind", "permuted"]

Floats = npt.NDArray[np.floating[Any]]


def permuted(shape: Sequence[Extent], perm: Sequence[int]) -> Shape:
    """Permute the axes of a shape; an empty permutation keeps their order."""
    return tuple(shape[i] for i in perm) if perm else tuple(shape)


def broadcast_kind(shape: Shape, result: Shape) -> str:
    """Return the operand kind (full, row, column, scalar) of a shape that broadcasts to a result.

    The kind describes the last two axes.
    """
    rows, columns = (1, 1, *shape)[-2:]
    tall = rows != 1 or result[-2] == 1
    wide = columns != 1 or result[-1] == 1
    return {(True, True): FULL, (False, True): ROW, (True, False): COL}.get((tall, wide), SCALAR)


@dataclass(frozen=True)
class MatMulParams:
    """Operands: a, b, epilogue inputs.  Results: those of the epilogue.

    ``a_perm`` and ``b_perm`` permute the axes of the stored tensors; empty keeps them.  ``heads``
    holds a number for a and one for b: the number of heads that the last axis is split into before
    the permutation, 0 for no split.  Kinds of the epilogue's operands refer to the last two axes.
    ``integers`` says what 8-bit integers a and b hold, and their zero points.  Raises ValueError
    for an invalid permutation, for a split without a permutation, for an epilogue that does not
    start from the product, and for zero points that are operands.
    """

    a_perm: tuple[int, ...] = ()
    b_perm: tuple[int, ...] = ()
    epilogue: Chain | None = None
    heads: tuple[int, int] = (0, 0)
    integers: tuple[IntegerOperand, IntegerOperand] | None = None

    def __post_init__(self) -> None:
        for perm in self._perms:
            if sorted(perm) != list(range(len(perm))) or len(perm) == 1:
                raise ValueError(f"{perm} is not a permutation of the axes")
        if any(h < 0 or (h and not p) for h, p in zip(self.heads, self._perms, strict=True)):
            raise ValueError("splitting heads needs a permutation")
        if self.epilogue and self.epilogue.operands[:1] != (FULL,):
            raise ValueError("an epilogue must start from the full accumulator")
        if any(one.operands for one in self.integers or ()):
            raise ValueError("zero points of a product of computed integers must be numbers")

    @property
    def _perms(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.a_perm, self.b_perm

    @property
    def epilogue_inputs(self) -> int:
        """Number of epilogue operands beyond the accumulator."""
        return len(self.epilogue.operands) - 1 if self.epilogue else 0

    @property
    def operands(self) -> int:
        return 2 + self.epilogue_inputs

    def seen(self, which: int, shape: Shape) -> Shape:
        """Return the shape of a or b as the product reads it: split into heads and permuted.

        ``which`` is 0 for a and 1 for b.  Raises ValueError if the columns do not divide into
        heads.
        """
        heads = self.heads[which]
        if heads:
            width = shape[-1]
            if not isinstance(width, int) or width % heads:
                raise ValueError(f"{heads} heads do not divide {width} columns")
            shape = (*shape[:-1], heads, width // heads)
        return permuted(shape, self._perms[which])

    def reading(self, which: int) -> IndexMap:
        """Return the map from the stored a or b (0 or 1) to the view that the product reads."""
        perm, heads = self._perms[which], self.heads[which]
        split = (ViewMove("reshape", (*[0] * (len(perm) - 2), heads, -1)),) if heads else ()
        return IndexMap((*split, *((ViewMove("transpose", perm),) if perm else ())))

    def shapes(self, specs: Sequence[TensorSpec]) -> tuple[Shape, Shape, Shape]:
        """Return the shapes of a, b and the result; a and b permuted and of rank 2 or more.

        Raises ValueError if a rank is unknown or sizes do not provably fit.
        """
        a, b = specs[0].shape, specs[1].shape
        if not a or not b:
            raise ValueError("the rank of an operand is unknown or zero")
        a, b = self.seen(0, a), self.seen(1, b)
        a, b = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
        outer = broadcast([a[:-2], b[:-2]])
        if a[-1] != b[-2] or outer is None:
            raise ValueError("operand shapes cannot be proven compatible")
        return a, b, (*outer, a[-2], b[-1])

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return a spec for each result, of the shape that NumPy's matmul gives."""
        _, _, (*outer, m, n) = self.shapes(specs)
        lone = [len(s.shape or ()) == 1 for s in specs[:2]]
        shape = (*outer, *(() if lone[0] else (m,)), *(() if lone[1] else (n,)))
        types = self.epilogue.result_types if self.epilogue else (DType.F32,)
        return tuple(TensorSpec(dtype, shape) for dtype in types)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        """Evaluate with NumPy in the operands' precision."""
        a, b, *epilogue_inputs = arrays
        a, b = self._matrices(0, a), self._matrices(1, b)
        if self.integers:
            zeros = [float(one.zero or 0) for one in self.integers]
            a, b = (np.asarray(x, np.float64) - z for x, z in zip((a, b), zeros, strict=True))
        acc = a @ b
        return self.epilogue.reference([acc, *epilogue_inputs]) if self.epilogue else [acc]

    def _matrices(self, which: int, x: Floats) -> Floats:
        perm, heads = self._perms[which], self.heads[which]
        x = x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads) if heads else x
        return x.transpose(perm) if perm else x

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        a, heads = operands[0], self.heads[0]
        a = (*a[:-1], heads, a[-1] / heads) if heads else a
        k = a[self.a_perm[-1] if self.a_perm else -1]
        beside = 1 + (self.epilogue.flops if self.epilogue else 0)
        share = fit.shares["FusedGemm int8" if self.integers else "FusedMatMul"]
        product = 2.0 * prod(result) * k / share
        return OpCost(product, prod(result) * beside, one_pass=True)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        _, _, *epilogue_inputs = b.inputs
        seen = []
        for value, perm, heads in zip(b.inputs, self._perms, self.heads, strict=False):
            if heads:
                value = b.split_last(value, len(perm) - 1, heads)
            seen.append(b("Transpose", value, perm=perm) if perm else value)
        acc = self._product_to_onnx(b, *seen)
        return b.done(
            *(self.epilogue.to_onnx(b, (acc, *epilogue_inputs)) if self.epilogue else (acc,))
        )

    def _product_to_onnx(self, b: BodyBuilder, left: str, right: str) -> str:
        if not self.integers:
            return b("MatMul", left, right)
        zeros = [b("Constant", value=one.zero_point()) for one in self.integers]
        return b.integer_product(left, right, *zeros)

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model batches of rows of a times columns of b, both in their stored layout."""
        operands = [graph.spec(v) for v in region.operands]
        try:
            a, b, full = self.shapes(operands[:2])
        except ValueError:
            return None
        if min(len(s.shape or ()) for s in operands[:2]) < 2:
            return None
        batch, space = axes_named("b", full[:-2])
        sums = (*batch, "m", "n")
        axes = (*space.axes, Axis("m", full[-2]), Axis("n", full[-1]), Axis("k", a[-1], True))
        reads = [
            _permuted_access(graph, region.operands[0], (*batch, "m", "k"), a, self, 0),
            _permuted_access(graph, region.operands[1], (*batch, "k", "n"), b, self, 1),
            *(aligned_access(graph, v, sums) for v in region.operands[2:]),
        ]
        writes = [aligned_access(graph, v, sums) for v in region.results]
        work = (
            LoopWork((*sums, "k"), 2),
            LoopWork(sums, (self.epilogue.flops if self.epilogue else 0)),
        )
        space = IterationSpace(axes)
        return region_model(region, space, reads, writes, work, ("m",), ("n",), ("k",), batch)


def _permuted_access(
    graph: TileGraph, value: str, names: tuple[str, ...], seen: Shape, p: MatMulParams, which: int
) -> AccessMap | None:
    """Access map of an operand with permuted axes and split heads."""
    perm = (p.a_perm, p.b_perm)[which]
    own = names[len(names) - len(seen) :]
    dims = [DimIndex() if e == 1 else index_along(n) for n, e in zip(own, seen, strict=True)]
    stored = [dims[perm.index(i)] for i in range(len(perm))] if perm else dims
    if p.heads[which]:
        *rest, head, column = stored
        size = seen[perm.index(len(perm) - 1)]
        assert isinstance(size, int)  # checked when the parameters were made
        terms = tuple((name, combine("mul", step, size)) for name, step in head.terms)
        stored = [*rest, DimIndex(terms + column.terms)]
    return access_map(graph, value, stored)
