"""``FusedConcat``: elementwise parts, computed in place along an axis of their concatenation.

y = concat(part_0(x …), part_1(x …), …; axis)

A part is an elementwise op or another concatenation.  Rotary embedding is an example: its two
halves read one q or k and one table through different slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.index_map import HUGE, IndexMap, StridedLayout, ViewMove, resolve_target
from tracea_graph.ops.iteration_space_parts import Shape
from tracea_graph.ops.mapped_iteration_space import AffineIndex, mapped_space
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.loop_nest_model import RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["MAX_PARTS", "ConcatParams", "ConcatPart", "operand_layouts"]

MAX_PARTS = 16

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ConcatPart:
    """One range along the concatenated axis: the op that computes it, and the op's operands.

    ``operands`` are indices of operands of the whole concatenation.  ``like`` is the index of
    another part, or −1: this part is expanded to the sizes of that part along the other axes.
    """

    params: ElementwiseParams | ConcatParams
    operands: tuple[int, ...]
    like: int = -1


@dataclass(frozen=True)
class ConcatParams:
    """Parameters of a concatenation of computed parts.

    ``axis`` counts from the front.  ``target`` is the shape that the result is reshaped to, empty
    for none.  Raises ValueError if there are no parts or too many, if a part has several results,
    if parts differ in element type, if a part is expanded to a part that is itself expanded, or if
    no part reads some operand.
    """

    axis: int
    parts: tuple[ConcatPart, ...]
    target: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MAX_PARTS:
            raise ValueError(f"a concatenation must have 1 to {MAX_PARTS} parts")
        read = {i for part in self.parts for i in part.operands}
        if read != set(range(len(read))):
            raise ValueError("every operand of a concatenation must be read by a part")
        if any(p.params.operands != len(p.operands) for p in self.parts):
            raise ValueError("a part must read as many operands as its op takes")
        if any(p.params.target for p in self.parts):
            raise ValueError("a part must not reshape its result")
        if any(p.like >= 0 and self.parts[p.like].like >= 0 for p in self.parts):
            raise ValueError("a part may take its shape only from a part that has its own (like)")
        kinds = {p.params.result_types for p in self.parts}
        if len(kinds) != 1 or len(next(iter(kinds))) != 1:
            raise ValueError("the parts must have one result each, all of one element type")

    @property
    def operands(self) -> int:
        return 1 + max(i for part in self.parts for i in part.operands)

    @property
    def result_types(self) -> tuple[DType, ...]:
        return self.parts[0].params.result_types

    @property
    def flops(self) -> float:
        """Vector instructions per vector of results, assuming that parts have equal sizes."""
        return sum(p.params.flops for p in self.parts) / len(self.parts)

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shape of each part; raises ValueError if they do not provably fit."""
        own = [p.params.common([shapes[i] for i in p.operands]) for p in self.parts]
        found = [self._expanded(s, own[p.like]) if p.like >= 0 else s
                 for p, s in zip(self.parts, own, strict=True)]  # fmt: skip
        around = {(len(s), s[: self.axis], s[self.axis + 1 :]) for s in found}
        if len(around) != 1 or self.axis >= len(found[0]):
            raise ValueError("the shapes of the parts cannot be proven compatible")
        return found

    def _expanded(self, shape: Shape, like: Shape) -> Shape:
        """Return a shape with its sizes of 1 replaced by those of ``like``, except on the axis."""
        if len(shape) != len(like):
            raise ValueError("the shapes of the parts cannot be proven compatible")
        pairs = enumerate(zip(shape, like, strict=True))
        return tuple(w if d == 1 and a != self.axis else d for a, (d, w) in pairs)

    def common(self, shapes: Sequence[Shape]) -> Shape:
        """Return the shape of the concatenation before ``target``."""
        found = self.shapes(shapes)
        total: Extent = 0
        for shape in found:
            total = combine("add", total, shape[self.axis])
        return (*found[0][: self.axis], total, *found[0][self.axis + 1 :])

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        shapes = [s.shape for s in specs if s.shape is not None]
        if len(shapes) != len(specs):
            raise ValueError("an operand's rank is not known")
        shape = self.common(shapes)
        shape = resolve_target(shape, self.target) if self.target else shape
        return (TensorSpec(self.result_types[0], shape),)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        parts = [p.params.reference([arrays[i] for i in p.operands])[0] for p in self.parts]
        for i, part in enumerate(self.parts):
            if part.like >= 0:
                around = list(parts[part.like].shape)
                around[self.axis] = parts[i].shape[self.axis]
                parts[i] = np.broadcast_to(parts[i], around)
        reshaped = IndexMap((ViewMove("reshape", self.target),) if self.target else ())
        return [reshaped.reference(np.concatenate(parts, self.axis))]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=prod(result) * max(self.flops, 1), one_pass=True)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        return b.done(*self.to_onnx(b, b.inputs))

    def to_onnx(self, b: BodyBuilder, operands: Sequence[str]) -> list[str]:
        """Write the parts and the Concat on the named operands; return the result's name."""
        own = [p.params.to_onnx(b, [operands[i] for i in p.operands])[0] for p in self.parts]
        parts = [b("Expand", y, self._sizes_around(b, own[p.like])) if p.like >= 0 else y
                 for p, y in zip(self.parts, own, strict=True)]  # fmt: skip
        y = b("Concat", *parts, axis=self.axis)
        return [b("Reshape", y, b.ints(*self.target)) if self.target else y]

    def _sizes_around(self, b: BodyBuilder, like: str) -> str:
        """Write the sizes of a part, with 1 for the axis of the concatenation."""
        sizes = b("Shape", like)
        before = b("Slice", sizes, b.ints(0), b.ints(self.axis))
        behind = b("Slice", sizes, b.ints(self.axis + 1), b.ints(HUGE))
        return b("Concat", before, b.ints(1), behind, axis=0)

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model one point per element, with every part reading as if it covered the whole axis.

        What a part reads outside its own range may be overestimated, but never underestimated.
        """
        return mapped_space(self, region, graph)

    def reads(
        self, graph: TileGraph, names: Sequence[str], here: Sequence[AffineIndex]
    ) -> Iterator[tuple[str, IndexMap, Sequence[AffineIndex]]]:
        """Yield the operands of each part, with indices shifted to the start of the part."""
        start: Extent = 0
        shapes = self.shapes([graph.spec(v).shape or () for v in names])
        for part, shape in zip(self.parts, shapes, strict=True):
            shifted = list(here)
            back = AffineIndex((), combine("sub", 0, start) if start != 0 else 0)
            shifted[self.axis] = here[self.axis].plus(back)
            yield from part.params.reads(graph, [names[i] for i in part.operands], shifted)
            start = combine("add", start, shape[self.axis])


def operand_layouts(
    params: ElementwiseParams | ConcatParams, specs: Sequence[TensorSpec]
) -> Iterator[tuple[int, StridedLayout]]:
    """Yield, for each read of an operand, the operand's index and its view's strided layout."""
    if isinstance(params, ElementwiseParams):
        for i, (index_map, spec) in enumerate(zip(params.views, specs, strict=True)):
            yield i, index_map.view(spec.shape or ())
        return
    for part in params.parts:
        for i, layout in operand_layouts(part.params, [specs[i] for i in part.operands]):
            yield part.operands[i], layout
