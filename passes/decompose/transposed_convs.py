"""Write transposed convolutions in the form that ``conv-transpose`` converts, or as a convolution.

dilated filters            ->  filters with zeros between their taps
output_shape, SAME padding ->  the padding that they mean
phases of unequal size     ->  filters that end in zeros, then Slice
small groups               ->  one group, whose filters hold zeros for the other groups
volumes                    ->  Conv with a filter for each phase of the strides, then interleave
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, DType, Extent, TensorSpec, Weight, combine
from tracea_graph.ops.weight_layouts import ALIGNED
from tracea_graph.passes.convolution.conv_transpose import phases_of
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["decompose_conv_transpose"]

_LARGEST = 1 << 24
"""Maximum number of elements of filters that hold zeros."""
_END = 2**31 - 1
"""End of a slice that keeps the last element."""


@dataclass(frozen=True)
class _Axis:
    """One axis: its filter's taps and what follows from them.

    * ``taps``: taps of the filter, ``dilation`` apart
    * ``kernel``: taps with zeros between and behind them
    * ``before``, ``after``: padding that ConvTranspose removes
    * ``extra``: its output_padding
    * ``start``, ``rest``: elements of its result that are cut off at the start and the end
    """

    taps: int
    dilation: int
    stride: int
    kernel: int
    before: int
    after: int
    extra: int
    start: int = 0
    rest: int = 0


def decompose_conv_transpose(s: OnnxBuilder) -> OnnxBuilder:
    x, w, bias = s.operands[:3]
    weight, shape = s.graph.weight(w), s.image(x)
    stored = s.graph.weight(bias) if bias else None
    if weight is None or weight.dtype is not DType.F32 or (bias and stored is None):
        raise CannotDecompose("its filters or its bias are not constant float32")
    rank = len(shape) - 2
    if rank < 1 or len(weight.shape) != rank + 2:
        raise CannotDecompose("its filters do not have the axes of its input")
    given = _given(s, weight, shape[2:])
    group = int(s.attribute("group", 1))
    dense = group > 1 and not _fits(group, weight, rank)
    axes = given if rank < 3 and all(map(_converted, given)) else tuple(map(_cut_off, given))
    same = _is_plain(s, given)
    if rank < 3 and not dense and same and axes == given:
        raise CannotDecompose("")
    filters = _filters(s, weight, axes, group if dense else 1)
    if rank == 3:
        _interleaved(s, filters, stored, axes, shape)
        return s
    made = (shape[0], _count(weight, group), *map(_full, shape[2:], axes))
    y = s(
        "ConvTranspose", x, filters, *([bias] if bias else []), group=1 if dense else group,
        strides=tuple(a.stride for a in axes), kernel_shape=tuple(a.kernel for a in axes),
        pads=(*(a.before for a in axes), *(a.after for a in axes)),
        output_padding=tuple(a.extra for a in axes), spec=TensorSpec(DType.F32, made),
    )  # fmt: skip
    _sliced(s, y, axes)
    return s


def _given(s: OnnxBuilder, weight: Weight, space: Sequence[Extent]) -> tuple[_Axis, ...]:
    """Return the axes as the operator has them, with the padding that its sizes mean."""
    rank = len(space)
    strides, dilations, extra = (
        tuple(map(int, s.attribute(name, ()))) or (default,) * rank
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    pads = tuple(map(int, s.attribute("pads", ()))) or (0,) * (2 * rank)
    auto, sizes = str(s.attribute("auto_pad", "NOTSET")), tuple(s.attribute("output_shape", ()))
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    found = []
    for i, (size, stride) in enumerate(zip(space, strides, strict=True)):
        taps, kernel = weight.shape[2 + i], dilations[i] * (weight.shape[2 + i] - 1) + 1
        before, after = pads[i], pads[rank + i]
        if "SAME" in auto or sizes:
            if not isinstance(size, int):
                raise CannotDecompose("its padding depends on a size that is not known")
            wanted = int(sizes[len(sizes) - rank + i]) if sizes else size * stride
            total = stride * (size - 1) + extra[i] + kernel - wanted
            before = total // 2 if auto == "SAME_UPPER" else total - total // 2
            after = total - before
        if min(before, after) < 0:
            raise CannotDecompose("its result is larger than what its windows reach")
        found.append(_Axis(taps, dilations[i], stride, kernel, before, after, extra[i]))
    return tuple(found)


def _converted(axis: _Axis) -> bool:
    """Return whether the phases of an axis are convolutions of equal size."""
    found = phases_of(axis.kernel, axis.stride, (axis.before, axis.after), axis.extra)
    return not isinstance(found, str)


def _cut_off(axis: _Axis) -> _Axis:
    """Return an axis with whole phases and no padding; more of its result is cut off instead."""
    kernel = -(-max(axis.kernel, axis.stride) // axis.stride) * axis.stride
    while (rest := kernel - axis.kernel - axis.extra + axis.after) < 0:
        kernel += axis.stride
    return _Axis(axis.taps, axis.dilation, axis.stride, kernel, 0, 0, 0, axis.before, rest)


def _is_plain(s: OnnxBuilder, axes: Sequence[_Axis]) -> bool:
    """Return whether the operator states its padding and has no dilation."""
    stated = s.attribute("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    apart = any(a.dilation > 1 and a.taps > 1 for a in axes)
    return stated and not s.attribute("output_shape", ()) and not apart


def _fits(group: int, weight: Weight, rank: int) -> bool:
    """Return whether groups are converted as they are: single channels, or whole vectors."""
    channels, filters = weight.shape[0] // group, weight.shape[1]
    whole = channels % ALIGNED == 0 and filters % ALIGNED == 0
    return rank < 3 and (channels == filters == 1 or whole)


def _count(weight: Weight, group: int) -> int:
    return weight.shape[1] * group


def _full(size: Extent, axis: _Axis) -> Extent:
    """Return the size of the result before it is cut off."""
    more = axis.kernel - axis.stride + axis.extra - axis.before - axis.after
    wide = combine("mul", size, axis.stride)
    return combine("sub", wide, -more) if more < 0 else combine("add", wide, more)


def _filters(s: OnnxBuilder, weight: Weight, axes: Sequence[_Axis], group: int) -> str:
    """Return ``[C, O, kernel…]`` with zeros between taps, behind them and for other groups."""
    channels, each, *_ = weight.shape
    kernel = tuple(a.kernel for a in axes)
    shape = (channels, each * group, *kernel)
    if math.prod(shape) > _LARGEST and math.prod(shape) > math.prod(weight.shape):
        raise CannotDecompose("its filters would be too large with zeros")
    load, own = weight.load, channels // group

    def made() -> Array:
        taps, wide = np.asarray(load(), np.float32), np.zeros(shape, np.float32)
        places = tuple(slice(0, a.dilation * (a.taps - 1) + 1, a.dilation) for a in axes)
        for g in range(group):
            rows, cols = slice(g * own, (g + 1) * own), slice(g * each, (g + 1) * each)
            wide[(rows, cols, *places)] = taps[rows]
        return wide

    return s.entered(DType.F32, shape, made)


def _sliced(s: OnnxBuilder, y: str, axes: Sequence[_Axis]) -> None:
    """Cut the result off, if there is anything to cut off."""
    cut = [(i, a) for i, a in enumerate(axes, 2) if a.start or a.rest]
    if not cut:
        return
    starts, ends = [a.start for _, a in cut], [-a.rest if a.rest else _END for _, a in cut]
    spec = s.graph.spec(s.region.results[0])
    where = s.indices(*(i for i, _ in cut))
    s("Slice", y, s.indices(*starts), s.indices(*ends), where, spec=spec)


def _interleaved(
    s: OnnxBuilder, filters: str, bias: Weight | None, axes: Sequence[_Axis],
    shape: Sequence[Extent],
) -> None:  # fmt: skip
    """Convolve volumes with a filter for each phase, and put their results side by side."""
    batch, *space = shape
    if not all(isinstance(d, int) and d > 0 for d in space[1:]):
        raise CannotDecompose("the sizes of its volumes are not known")
    stored, strides = s.weights.pop(filters), tuple(a.stride for a in axes)
    lengths = tuple(a.kernel // a.stride for a in axes)
    channels, count, *_ = stored.shape
    phases, load = math.prod(strides), stored.load

    def made() -> Array:
        parts = [n for pair in zip(lengths, strides, strict=True) for n in pair]
        split = load().reshape(channels, count, *parts)[:, :, ::-1, :, ::-1, :, ::-1]
        order = split.transpose(3, 5, 7, 1, 0, 2, 4, 6)  # phases, filters, channels, taps
        return np.ascontiguousarray(order).reshape(phases * count, channels, *lengths)

    w = s.entered(DType.F32, (phases * count, channels, *lengths), made)
    more = [s.constant(np.tile(np.asarray(bias.load(), np.float32), phases))] if bias else []
    d, h, v = (int(str(n)) + length - 1 for n, length in zip(space[1:], lengths, strict=True))
    pads = tuple(length - 1 for length in lengths) * 2
    y = s("Conv", s.operands[0], w, *more, pads=pads, kernel_shape=lengths,
          spec=TensorSpec(DType.F32, (batch, phases * count, d, h, v)))  # fmt: skip
    deep, down, across = strides
    if phases > 1:
        # channels last, so that one copy is of runs of a line's results
        y = _transposed(s, y, (batch, phases * count, d, h, v), (0, 2, 3, 4, 1))
        sizes: tuple[Extent, ...] = (combine("mul", batch, d), h, v, deep, down, across * count)
        y = _transposed(s, s.reshaped(y, *sizes), sizes, (0, 3, 1, 4, 2, 5))
        sizes = batch, d * deep, h * down, v * across, count
        y = _transposed(s, s.reshaped(y, *sizes), sizes, (0, 4, 1, 2, 3))
    _sliced(s, y, axes)


def _transposed(s: OnnxBuilder, y: str, shape: Sequence[Extent], order: Sequence[int]) -> str:
    """Transpose a value of the given shape."""
    spec = TensorSpec(DType.F32, tuple(shape[axis] for axis in order))
    return s("Transpose", y, perm=tuple(order), spec=spec)
