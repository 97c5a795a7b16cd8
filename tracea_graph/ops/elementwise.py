"""``FusedElementwise``: one elementwise chain over broadcast operands, each read through a map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Expr, Extent, TensorSpec
from tracea_graph.ops.chain import FULL, Chain
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.index_map import IndexMap, ViewMove, resolve_target
from tracea_graph.ops.iteration_space_parts import Shape
from tracea_graph.ops.mapped_iteration_space import AffineIndex, mapped_space
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.loop_nest_model import RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = [
    "IDENTITY", "MAX_RANK", "ElementwiseParams", "Shape", "broadcast", "identity", "is_clipped",
    "is_pure_reshape",
]  # fmt: skip

MAX_RANK = 6
"""Maximum number of axes a kernel loops over."""

IDENTITY = Chain((FULL,), (), (0,))
"""Identity chain; together with a map it only moves data."""

Floats = npt.NDArray[np.floating[Any]]


def identity(dtype: DType) -> Chain:
    """Return the identity chain of an element type."""
    return Chain((FULL,), (), (0,), (dtype,), (dtype,))


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the common shape by NumPy's rules, or None if the symbols leave it undetermined."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    result: list[Extent] = []
    for dims in zip(*padded, strict=True):
        wide = {d for d in dims if d != 1}
        whole = {d for d in wide if not any(is_clipped(d, other) for other in wide)}
        if len(whole) > 1:
            return None
        result.append(whole.pop() if whole else 1)
    return tuple(result)


def is_clipped(dim: Extent, other: Extent) -> bool:
    """Whether ``dim`` is min(``other``, c) with c ≥ 2, and must therefore equal ``other``.

    ``dim`` and ``other`` are broadcast with each other.  If they differed, ``dim`` would be c,
    which is neither 1 nor ``other``, and the original model would fail.
    """
    if not isinstance(dim, Expr) or dim.op != "min" or other not in dim.args:
        return False
    return all(a == other or (isinstance(a, int) and a >= 2) for a in dim.args)


@dataclass(frozen=True)
class ElementwiseParams:
    """Parameters of an elementwise op; its operands and results are those of ``chain``.

    Operand kinds refer to the last two axes.  ``maps`` holds the view through which each operand
    is read; empty if all operands are read as stored.  ``target`` is a shape, as in ONNX's
    Reshape, that the results get; empty if they keep the common shape of the operands.
    """

    chain: Chain
    maps: tuple[IndexMap, ...] = ()
    target: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not any(self.maps):
            # canonical form, which makes equal ops compare equal
            object.__setattr__(self, "maps", ())
        elif len(self.maps) != self.operands:
            raise ValueError("an elementwise op must have one map per operand")

    @property
    def operands(self) -> int:
        return len(self.chain.operands)

    @property
    def result_types(self) -> tuple[DType, ...]:
        return self.chain.result_types

    @property
    def flops(self) -> float:
        """Vector instructions per element vector."""
        return self.chain.flops

    @property
    def moves_only(self) -> bool:
        """Whether results are copies of operands."""
        types = self.chain.operand_types
        return len(types) == 1 and self.chain == identity(types[0])

    @property
    def moves(self) -> bool:
        """Whether an operand is read through a view, or a result is reshaped."""
        return bool(self.maps or self.target)

    @property
    def reshapes_only(self) -> bool:
        """Whether the result is its operand, byte for byte, with another shape."""
        return self.moves_only and all(
            move.op in ("reshape", "squeeze", "unsqueeze") for move in self.views[0].moves
        )

    @property
    def views(self) -> tuple[IndexMap, ...]:
        """Map of each operand."""
        return self.maps or (IndexMap(),) * self.operands

    def common(self, shapes: Sequence[Shape]) -> Shape:
        """Return the views' broadcast shape; raises ValueError if it is undetermined."""
        seen = [m.shape(s) for m, s in zip(self.views, shapes, strict=True)]
        shape = broadcast(seen)
        if shape is None:
            raise ValueError("operand shapes cannot be proven to broadcast")
        return shape

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the broadcast shape for each result; raises ValueError if it is undetermined."""
        shapes = [s.shape for s in specs if s.shape is not None]
        if len(shapes) != len(specs):
            raise ValueError("operand shapes cannot be proven to broadcast")
        shape = self.common(shapes)
        shape = resolve_target(shape, self.target) if self.target else shape
        return tuple(TensorSpec(dtype, shape) for dtype in self.chain.result_types)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        seen = [m.reference(a) for m, a in zip(self.views, arrays, strict=True)]
        results = self.chain.reference(seen)
        reshaped = IndexMap((ViewMove("reshape", self.target),) if self.target else ())
        return [reshaped.reference(y) for y in results]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=prod(result) * max(self.flops, 1), one_pass=True)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        return b.done(*self.to_onnx(b, b.inputs))

    def to_onnx(self, b: BodyBuilder, operands: Sequence[str]) -> list[str]:
        """Write maps and chain as ONNX nodes on the named operands; return the results' names."""
        seen = [m.to_onnx(b, v) for m, v in zip(self.views, operands, strict=True)]
        results = self.chain.to_onnx(b, seen)
        return [b("Reshape", y, b.ints(*self.target)) for y in results] if self.target else results

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model one point per element of the result; operands are read through their maps."""
        return mapped_space(self, region, graph)

    def reads(
        self, graph: TileGraph, names: Sequence[str], here: Sequence[AffineIndex]
    ) -> Iterator[tuple[str, IndexMap, Sequence[AffineIndex]]]:
        """Yield each operand with its map."""
        for name, index_map in zip(names, self.views, strict=True):
            yield name, index_map, here


def is_pure_reshape(params: object) -> bool:
    """Return True if the op is a pure reshape; no kernel call is emitted for it."""
    return isinstance(params, ElementwiseParams) and params.reshapes_only
