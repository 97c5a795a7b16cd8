"""Rewrite padding along any two neighbouring axes as padding of an image's rows and columns.

Pad(x [B,H,W,C]) along H and W  ->  Reshape to [B,1,H,W·C], Pad of rows and columns, Reshape back

Image padding is a step of a program, and so are the Reshapes around it.
"""

from __future__ import annotations

import math

from tracea_graph.ir import DType, Extent, TensorSpec, combine, product
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder
from tracea_graph.passes.prove_extents import constant_ints, reshape_target
from tracea_graph.rewrite import constant_number

__all__ = ["decompose_pad"]

_OPSET = 11
"""Opset from which Pad takes its amounts as an operand."""
_TAKE_PADDING = frozenset((
    "AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool",
))  # fmt: skip
"""Operators that can take over the padding of their input."""

Shape = tuple[Extent, ...]


def decompose_pad(s: OnnxBuilder) -> OnnxBuilder:
    shape, amounts = _zeros(s)
    places = [i for i, (before, after) in enumerate(amounts) if before or after]
    rank = len(shape)
    if not places or rank < 2 or (rank == 4 and places[0] >= 2):
        raise CannotDecompose("")
    first = min(places[0], rank - 2)
    if places[-1] > first + 1:
        raise CannotDecompose("the padded axes are not two neighbouring ones")
    inner = shape[first + 2 :]
    if not all(isinstance(d, int) for d in inner):
        raise CannotDecompose("an extent behind the padded axes is not known")
    width = math.prod(d for d in inner if isinstance(d, int))
    lead = product(shape[:first])
    image = (lead, 1, shape[first], combine("mul", shape[first + 1], width))
    rows, (left, right) = amounts[first], amounts[first + 1]
    columns = (left * width, right * width)
    wider = (*image[:2], _grown(image[2], rows), _grown(image[3], columns))
    result = tuple(_grown(d, pair) for d, pair in zip(shape, amounts, strict=True))
    alone = rank == 3 and first == 1
    x = s.operands[0]
    y = s.unsqueezed(x, 1) if alone else _reshaped(s, x, shape, image)
    pads = s.indices(0, 0, rows[0], columns[0], 0, 0, rows[1], columns[1])
    y = s("Pad", y, pads, spec=TensorSpec(DType.F32, wider), mode="constant")
    if alone:
        s.squeezed(y, 1)
    else:
        _reshaped(s, y, wider, result)
    return s


def _zeros(s: OnnxBuilder) -> tuple[Shape, list[tuple[int, int]]]:
    """Return the shape of the padded value and the zeros before and after each axis."""
    x, pads, value, axes = s.operands[:4]
    spec, mode = s.spec(x), s.attribute("mode", "constant")
    numbers = constant_ints(s.graph, pads) if s.graph.opset >= _OPSET and pads else None
    readers = (use.region.op for use in s.graph.uses(s.region.results[0]))
    if mode not in ("constant", b"constant") or spec.dtype is not DType.F32 or spec.shape is None:
        raise CannotDecompose("")
    if numbers is None or any(op in _TAKE_PADDING for op in readers):
        raise CannotDecompose("")
    if min(numbers, default=0) < 0:
        raise CannotDecompose("an amount of padding is negative")
    if value and constant_number(s.graph, value) != 0.0:
        raise CannotDecompose("the padding is not zero")
    rank = len(spec.shape)
    named = constant_ints(s.graph, axes) if axes else tuple(range(rank))
    if named is None:
        raise CannotDecompose("its operand of axes is not constant")
    pairs = zip(numbers[: len(named)], numbers[len(named) :], strict=True)
    found = dict(zip((a % rank for a in named), pairs, strict=True))
    return spec.shape, [found.get(i, (0, 0)) for i in range(rank)]


def _grown(size: Extent, pair: tuple[int, int]) -> Extent:
    return combine("add", size, sum(pair))


def _reshaped(s: OnnxBuilder, x: str, before: Shape, after: Shape) -> str:
    target = reshape_target(before, after)
    if target is None or {0, -1} <= {*target}:  # -1 is ambiguous if a copied size is 0
        raise CannotDecompose("the sizes of its axes are not known")
    return s("Reshape", x, s.indices(*target), spec=TensorSpec(DType.F32, tuple(after)))
