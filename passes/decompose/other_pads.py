"""Write paddings for which there are no kernels as those for which there are.

Pad by reflection or edges along sequences    ->    Pad of an image of one row
Pad of more than two neighbouring axes        ->    Pad of two axes, then of the others
Pad by a number that is not zero              ->    Pad by zeros, then Where with a constant mask
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tracea_graph.ir import Array, DType, Extent, TensorSpec, combine
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder
from tracea_graph.passes.prove_extents import constant_ints
from tracea_graph.rewrite import constant_number

__all__ = ["decompose_other_pads"]

_OPSET = 11
"""Opset from which Pad takes its amounts as an operand."""
_LARGEST_MASK = 1 << 22
"""Maximum number of elements of a constant mask."""
Pairs = list[tuple[int, int]]


def decompose_other_pads(s: OnnxBuilder) -> OnnxBuilder:
    x, pads, value, named = s.operands[:4]
    shape = s.image(x)
    amounts = constant_ints(s.graph, pads) if s.graph.opset >= _OPSET and pads else None
    axes = constant_ints(s.graph, named) if named else tuple(range(len(shape)))
    if amounts is None or axes is None or min(amounts, default=0) < 0:
        raise CannotDecompose("its amounts of padding are not known, or negative")
    given = {a % len(shape): (amounts[i], amounts[len(axes) + i]) for i, a in enumerate(axes)}
    pairs = [given.get(i, (0, 0)) for i in range(len(shape))]
    mode, number = str(s.attribute("mode", "constant")), 0.0
    if mode == "constant" and value:
        found = constant_number(s.graph, value)
        if found is None:
            raise CannotDecompose("the number that it pads with is not constant")
        number = float(found)
    padded = [i for i, pair in enumerate(pairs) if any(pair)]
    if mode in ("reflect", "edge") and len(shape) == 3 and padded == [2]:
        image = s.unsqueezed(x, 2)
        made = _padded(s, image, [*pairs[:2], (0, 0), pairs[2]], mode)
        s.squeezed(made, 2)
    elif mode == "constant" and number:
        _fill(s, x, pairs, padded, number)
    elif mode == "constant" and padded and padded[-1] - padded[0] > 1:
        first = [pair if i == padded[0] else (0, 0) for i, pair in enumerate(pairs)]
        rest = [(0, 0) if i == padded[0] else pair for i, pair in enumerate(pairs)]
        _padded(s, _padded(s, x, first), rest)
    else:
        raise CannotDecompose("")
    return s


def _padded(s: OnnxBuilder, x: str, pairs: Pairs, mode: str = "constant") -> str:
    shape = s.spec(x).shape or ()
    wide = tuple(_grown(d, pair) for d, pair in zip(shape, pairs, strict=True))
    amounts = s.indices(*(before for before, _ in pairs), *(after for _, after in pairs))
    return s("Pad", x, amounts, spec=TensorSpec(DType.F32, wide), mode=mode)


def _grown(size: Extent, pair: tuple[int, int]) -> Extent:
    return combine("add", size, sum(pair)) if any(pair) else size


def _fill(s: OnnxBuilder, x: str, pairs: Pairs, padded: Sequence[int], number: float) -> None:
    """Pad with zeros, and put the number where the mask says that an element is padding."""
    sizes = [(s.spec(x).shape or ())[i] for i in padded]
    if not padded or not all(isinstance(d, int) for d in sizes):
        raise CannotDecompose("the size of a padded axis is not known")
    whole = [1] * len(pairs)
    for i, size in zip(padded, sizes, strict=True):
        whole[i] = int(str(size)) + sum(pairs[i])
    if math.prod(whole) > _LARGEST_MASK:
        raise CannotDecompose("its mask would be too large")
    inner = tuple(
        slice(pairs[i][0], d - pairs[i][1]) if i in padded else slice(None)
        for i, d in enumerate(whole)
    )

    def mask() -> Array:
        outside = np.ones(whole, np.bool_)
        outside[inner] = False
        return outside

    made = _padded(s, x, pairs)
    s("Where", s.entered(DType.BOOL, tuple(whole), mask), number, made, spec=s.spec(made))
