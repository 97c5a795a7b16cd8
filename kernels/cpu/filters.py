"""Filter layouts that the CPU kernels read in place.

``O`` filters of ``I`` channels each (``I`` = channels / groups), Ob = ⌈O/16⌉, Ib = ⌈I/16⌉:

=========  ========================  ===============================================
layout     stored as                 for
=========  ========================  ===============================================
blocked    ``[Ob, Ib, kh, kw, 16, 16]``  (in, out) lanes innermost; groups of whole blocks
vnni2      ``[Ob, Ib, kh, kw, 8, 16, 2]``  blocked in bf16, pairs of input channels innermost
first_layer ``[Ob, I, kh, kw, 16]``   few input channels
depthwise  ``[Ob, kh, kw, 16]``      one channel per filter
panels     ``[Ob, I, 16]``           1x1 over a single position: a matrix product
winograd2  ``[16, Ob, Ib, 16, 16]``  3x3, transformed for F(2x2, 3x3)
winograd4  ``[36, Ob, Ib, 16, 16]``  3x3, transformed for F(4x4, 3x3)
winograd2_vnni2  ``[16, Ob, Ib, 8, 16, 2]``  winograd2 in bf16, pairs of input channels innermost
int16, winograd2_int16  like vnni2, winograd2_vnni2  scales ``[16·Ob]``, ``[16·Ob·16]``
bf16x2     ``[Ob, Ib, kh, kw, 16, 16, 2]``  vnni2 of a block's low terms, then of its high ones
nchw32c    ``[Ob, Ib/2, kh, kw, 16, 16, 2]``  vnni2 with two channel blocks per tap
=========  ========================  ===============================================

Blocks are padded with zeros.  A kernel over one axis has kh = 1.
:class:`DispatchFilters` stores a transformed and a direct layout; the runtime picks by image size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.winograd import recover_filters, recover_filters_to_onnx, transform
from tracea_graph.ops.bf16 import split_bf16
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.filter_layouts import FilterLayout, Sums
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.int16 import k_run_length, round_columns, round_images
from tracea_graph.ops.weight_layouts import Floats, Numbers

__all__ = [
    "BF16X2", "BLOCK", "BLOCKED", "DEPTHWISE", "FIRST_LAYER", "INT16", "LAYOUTS", "NCHW32C",
    "PANELS", "VNNI2", "WINOGRAD2", "WINOGRAD2_INT16", "WINOGRAD2_VNNI2", "WINOGRAD4",
    "BlockedFilters", "DepthwiseFilters", "DispatchFilters", "Filters", "Int16Filters",
    "LaneFilters", "Stored", "Vnni2Filters", "WinogradFilters", "blocks", "transformable",
]  # fmt: skip

BLOCK = 16
"""Channels of a block."""
Stored = tuple[DType, tuple[int, ...]]
"""Element type and shape of a stored array."""
_TRANSFORMED = 4.0
"""Growth bound of winograd2 input transforms, relative to the largest input element."""
_TOGETHER = (0, 1, 3, 4, 2, 5, 6, 7)
"""``[Ob, Ib/2, 2, kh, kw, 8, 16, 2]`` with both blocks of a tap adjacent; inverse: ``_APART``."""
_APART = (0, 1, 4, 2, 3, 5, 6, 7)


def blocks(channels: int) -> int:
    return -(-channels // BLOCK)


def transformable(window: ConvWindow, groups: int) -> bool:
    """Whether the Winograd transforms apply: 3 x 3, stride 1, pad 1, one group."""
    return groups == 1 and window == ConvWindow((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))


class Filters(FilterLayout):
    """A filter layout of the CPU kernels, which multiply elements of type ``product_type``.

    If ``nchw32c``, kernels can also add operands and write results in the layout nchw32c.
    """

    product_type: ClassVar[str] = "f32"
    nchw32c: ClassVar[bool] = False

    @property
    def direct(self) -> Filters | None:
        """The untransformed layout of Winograd filters; None for any other layout."""
        return None

    def check(self, shape: Sequence[int], groups: int, window: ConvWindow) -> None:
        super().check(shape, groups, window)
        if window.rank > 2:
            raise ValueError("only filters over one or two axes can be packed")

    @abstractmethod
    def arrays(self, shape: Sequence[int]) -> tuple[Stored, ...]:
        """Element type and shape of each stored array."""

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.arrays(shape)[0][1]

    @abstractmethod
    def pack(self, plain: Floats) -> tuple[Numbers, ...]:
        """Pack plain filters ``[O, I, kernel…]``; the result has the order of :meth:`arrays`."""


@dataclass(frozen=True)
class _Nchw16cFilters(Filters):
    """Filters of a convolution that reads and writes blocked values."""

    reads_reordered: ClassVar[bool] = True
    writes_reordered: ClassVar[bool] = True

    def biases(self, filters: int) -> int:
        return BLOCK * blocks(filters)


@dataclass(frozen=True)
class LaneFilters(Filters):
    """Filters in blocks of 16 output channels; input channels and taps keep their order."""

    def arrays(self, shape: Sequence[int]) -> tuple[Stored, ...]:
        return ((DType.F32, self._shape(shape)),)

    @abstractmethod
    def _shape(self, shape: Sequence[int]) -> tuple[int, ...]: ...

    def pack(self, plain: Floats) -> tuple[Numbers, ...]:
        o, i, kh, kw = _four(plain.shape)
        padded = np.zeros((BLOCK * blocks(o), i, kh, kw), plain.dtype)
        padded[:o] = plain.reshape(o, i, kh, kw)
        split = padded.reshape(blocks(o), BLOCK, i, kh, kw).transpose(0, 2, 3, 4, 1)
        return (np.ascontiguousarray(split).reshape(self._shape(plain.shape)),)

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        o, i, kh, kw = _four(shape)
        split = stored[0].reshape(blocks(o), i, kh, kw, BLOCK).transpose(0, 4, 1, 2, 3)
        plain: Floats = split.reshape(-1, i, kh, kw)[:o].reshape(shape)
        return plain

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        o, i, *kernel = shape
        rank = len(self._shape(shape))
        transposed = b("Transpose", stored[0], perm=(0, rank - 1, *range(1, rank - 1)))
        plain = b("Reshape", transposed, b.ints(-1, i, *kernel))
        return b.slice_last(plain, 0, o, 0) if o % BLOCK else plain

    def packed_to_onnx(self, b: BodyBuilder, plain: str, shape: Sequence[int]) -> str:
        """Emit the nodes that pack plain filters."""
        o, i, kh, kw = _four(shape)
        split = b("Reshape", plain, b.ints(o, i, kh, kw))
        padded = b.pad(split, (0,) * 4, (BLOCK * blocks(o) - o, 0, 0, 0))
        lanes = b("Reshape", padded, b.ints(blocks(o), BLOCK, i, kh, kw))
        transposed = b("Transpose", lanes, perm=(0, 2, 3, 4, 1))
        return b("Reshape", transposed, b.ints(*self._shape(shape)))


@dataclass(frozen=True)
class FirstLayerFilters(LaneFilters):
    """Filters of a first layer, whose few input channels are read from an unblocked image."""

    name: ClassVar[str] = "first_layer"
    writes_reordered: ClassVar[bool] = True

    def biases(self, filters: int) -> int:
        return BLOCK * blocks(filters)

    def _shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        o, i, kh, kw = _four(shape)
        return blocks(o), i, kh, kw, BLOCK


@dataclass(frozen=True)
class DepthwiseFilters(LaneFilters, _Nchw16cFilters):
    """Depthwise filters; x is bf16 if ``in_bf16``, the filters are too if ``rounded``."""

    name: ClassVar[str] = "depthwise"
    in_bf16: bool = False
    rounded: bool = False  # lets kernels multiply two columns at once

    @property
    def rounds(self) -> bool:
        return self.in_bf16

    @property
    def product_type(self) -> str:  # type: ignore[override]
        return "bf16" if self.in_bf16 else "f32"

    def check(self, shape: Sequence[int], groups: int, window: ConvWindow) -> None:
        super().check(shape, groups, window)
        if self.rounded and not self.in_bf16:
            raise ValueError("filters may be rounded only if x is read in bf16")

    def _shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        o, _, kh, kw = _four(shape)
        return blocks(o), kh, kw, BLOCK


@dataclass(frozen=True)
class PointwiseFilters(LaneFilters):
    """Filters of a 1x1 convolution over a single position, which is a matrix product."""

    name: ClassVar[str] = "panels"

    def _shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return blocks(shape[0]), shape[1], BLOCK


@dataclass(frozen=True)
class BlockedFilters(_Nchw16cFilters):
    """Filters in blocks of 16 x 16 channels; input, then output channels are innermost."""

    name: ClassVar[str] = "blocked"

    def arrays(self, shape: Sequence[int]) -> tuple[Stored, ...]:
        o, i, kh, kw = _four(shape)
        return ((DType.F32, (blocks(o), blocks(i), kh, kw, BLOCK, BLOCK)),)

    def pack(self, plain: Floats) -> tuple[Numbers, ...]:
        o, i, kh, kw = _four(plain.shape)
        padded = np.zeros((BLOCK * blocks(o), BLOCK * blocks(i), kh, kw), plain.dtype)
        padded[:o, :i] = plain.reshape(o, i, kh, kw)
        split = padded.reshape(blocks(o), BLOCK, blocks(i), BLOCK, kh, kw)
        return (np.ascontiguousarray(split.transpose(0, 2, 4, 5, 3, 1)),)

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        o, i, kh, kw = _four(shape)
        split = stored[0].transpose(0, 5, 1, 4, 2, 3)
        wide = split.reshape(blocks(o) * BLOCK, blocks(i) * BLOCK, kh, kw)
        plain: Floats = wide[:o, :i].reshape(shape)
        return plain

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        _, i, *kernel = shape
        transposed = b("Transpose", stored[0], perm=(0, 5, 1, 4, 2, 3))
        plain = b("Reshape", transposed, b.ints(-1, BLOCK * blocks(i), *kernel))
        return _unpadded(b, plain, shape)

    def packed_to_onnx(self, b: BodyBuilder, plain: str, shape: Sequence[int]) -> str:
        """Emit the nodes that pack plain filters."""
        o, i, kh, kw = _four(shape)
        split = b("Reshape", plain, b.ints(o, i, kh, kw))
        padded = b.pad(split, (0,) * 4, (BLOCK * blocks(o) - o, BLOCK * blocks(i) - i, 0, 0))
        lanes = b("Reshape", padded, b.ints(blocks(o), BLOCK, blocks(i), BLOCK, kh, kw))
        return b("Transpose", lanes, perm=(0, 2, 4, 5, 3, 1))


@dataclass(frozen=True)
class WinogradFilters(_Nchw16cFilters):
    """Filters transformed for Winograd's F(``tile`` x ``tile``, 3x3)."""

    tile: int

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"winograd{self.tile}"

    @property
    def side(self) -> int:
        return self.tile

    @property
    def direct(self) -> Filters:
        return BLOCKED

    def check(self, shape: Sequence[int], groups: int, window: ConvWindow) -> None:
        super().check(shape, groups, window)
        if not transformable(window, groups):
            raise ValueError("Winograd needs 3x3 windows of stride 1 and padding 1, in one group")

    def arrays(self, shape: Sequence[int]) -> tuple[Stored, ...]:
        o, i = map(blocks, shape[:2])
        return ((DType.F32, ((self.tile + 2) ** 2, o, i, BLOCK, BLOCK)),)

    def pack(self, plain: Floats) -> tuple[Numbers, ...]:
        return (transform(plain, self.tile),)

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        return recover_filters(stored[0], self.tile)[: shape[0], : shape[1]]

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        return _unpadded(
            b, recover_filters_to_onnx(b, stored[0], self.tile, blocks(shape[1])), shape
        )


@dataclass(frozen=True)
class Vnni2Filters(_Nchw16cFilters):
    """Filters in bf16, in the layout ``of`` with pairs of input channels innermost, for bf16 x."""

    of: BlockedFilters | WinogradFilters
    product_type: ClassVar[str] = "bf16"

    @property
    def name(self) -> str:  # type: ignore[override]
        return "vnni2" if self.of == BLOCKED else f"{self.of.name}_vnni2"

    @property
    def nchw32c(self) -> bool:  # type: ignore[override]
        return self.of == BLOCKED

    @property
    def rounds(self) -> bool:
        return True

    @property
    def side(self) -> int:
        return self.of.side

    @property
    def direct(self) -> Filters | None:
        return None if self.of == BLOCKED else VNNI2

    def check(self, shape: Sequence[int], groups: int, window: ConvWindow) -> None:
        self.of.check(shape, groups, window)
        if groups * shape[1] % 2:
            raise ValueError("the number of channels must be even")

    def arrays(self, shape: Sequence[int]) -> tuple[Stored, ...]:
        *outer, _, _ = self.of.shape(shape)
        return ((DType.BF16, (*outer, BLOCK // 2, BLOCK, 2)),)

    def pack(self, plain: Floats) -> tuple[Numbers, ...]:
        return (_in_pairs(self.of.pack(plain)[0]),)

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        wide = stored[0] if stored[0].dtype == np.float64 else np.asarray(stored[0], np.float32)
        return self.of.filters((wide.swapaxes(-1, -2).reshape(self.of.shape(shape)),), shape)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        rank = len(self.shape(shape))
        turn = (*range(rank - 2), rank - 1, rank - 2)
        split = b("Transpose", b("Cast", stored[0], to=DType.F32.onnx), perm=turn)
        whole = b("Reshape", split, b.ints(*self.of.shape(shape)))
        return self.of.to_onnx(b, (whole,), shape)


@dataclass(frozen=True)
class Nchw32cFilters(_Nchw16cFilters):
    """Filters for x in blocks of 32 channels, in bf16; two input blocks of a tap are adjacent."""

    name: ClassVar[str] = "nchw32c"
    product_type: ClassVar[str] = "bf16"
    nchw32c: ClassVar[bool] = True

    @property
    def rounds(self) -> bool:
        return True

    def check(self, shape: Sequence[int], groups: int, window: ConvWindow) -> None:
        super().check(shape, groups, window)
        if shape[1] % (2 * BLOCK) or groups > 1:
            raise ValueError("nchw32c needs one group whose channels are a multiple of 32")

    def arrays(self, shape: Sequence[int]) -> tuple[Stored, ...]:
        o, i, kh, kw = _four(shape)
        stored = (blocks(o), i // (2 * BLOCK), kh, kw, BLOCK, BLOCK, 2)
        return ((DType.BF16, stored),)

    def pack(self, plain: Floats) -> tuple[Numbers, ...]:
        (pairs,) = VNNI2.pack(plain)
        o, i, kh, kw, *lanes = pairs.shape
        together = pairs.reshape(o, i // 2, 2, kh, kw, *lanes).transpose(_TOGETHER)
        return (np.ascontiguousarray(together).reshape(self.shape(plain.shape)),)

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        halves = stored[0].reshape(*self.shape(shape)[:4], 2, BLOCK // 2, BLOCK, 2)
        return VNNI2.filters((halves.transpose(_APART).reshape(VNNI2.shape(shape)),), shape)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        *taps, _, _, _ = self.shape(shape)
        lanes = b.ints(*taps, 2, BLOCK // 2, BLOCK, 2)
        wide = b("Reshape", b("Cast", stored[0], to=DType.F32.onnx), lanes)
        apart = b("Transpose", wide, perm=_APART)
        return VNNI2.to_onnx(b, (b("Reshape", apart, b.ints(*VNNI2.shape(shape))),), shape)


@dataclass(frozen=True)
class Bf16x2Filters(_Nchw16cFilters):
    """Filters and x split into two bf16 terms."""

    name: ClassVar[str] = "bf16x2"
    product_type: ClassVar[str] = "bf16x2"

    def arrays(self, shape: Sequence[int]) -> tuple[Stored, ...]:
        o, i, kh, kw = _four(shape)
        return ((DType.BF16, (blocks(o), blocks(i), kh, kw, BLOCK, BLOCK, 2)),)

    def pack(self, plain: Floats) -> tuple[Numbers, ...]:
        upper, lower = split_bf16(BLOCKED.pack(plain)[0])
        return (np.concatenate((_in_pairs(lower), _in_pairs(upper)), 4),)

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        upper, lower = self._halves(stored, shape)
        return upper + lower

    def convolve(
        self, x: Floats, stored: Sequence[Numbers], shape: Sequence[int], sums: Sums
    ) -> Floats:
        """Convolve without the product of the two low terms, which the kernel omits too."""
        (upper, lower), (first, rest) = split_bf16(x), self._halves(stored, shape)
        acc: Floats = sums(upper, first + rest) + sums(lower, first)
        return acc

    def _halves(self, stored: Sequence[Numbers], shape: Sequence[int]) -> tuple[Floats, Floats]:
        """The high and the low terms, ``[O, I, kernel…]`` each."""
        lower, upper = (VNNI2.filters((h,), shape) for h in np.split(stored[0], 2, 4))
        return upper, lower

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        wide = b("Cast", stored[0], to=DType.F32.onnx)  # bf16 cannot be sliced
        halves = [b.slice_last(wide, i, i + BLOCK // 2, 4) for i in (0, BLOCK // 2)]
        return b("Add", *(VNNI2.to_onnx(b, (half,), shape) for half in halves))


@dataclass(frozen=True)
class Int16Filters(_Nchw16cFilters):
    """Filters in int16, in the layout ``of``, and their scales; x is rounded to int16 too.

    There is one scale per filter, or per plane and filter of a transform, including the factor
    that keeps the transformed input in range.
    """

    of: BlockedFilters | WinogradFilters
    product_type: ClassVar[str] = "int16"

    @property
    def name(self) -> str:  # type: ignore[override]
        return "int16" if self.of == BLOCKED else f"{self.of.name}_int16"

    @property
    def operands(self) -> int:
        return 2

    @property
    def side(self) -> int:
        return self.of.side

    @property
    def direct(self) -> Filters | None:
        return None if self.of == BLOCKED else INT16

    @property
    def _pairs(self) -> Vnni2Filters:
        return Vnni2Filters(self.of)

    @property
    def _times(self) -> float:
        return 1.0 if self.direct is None else _TRANSFORMED

    def check(self, shape: Sequence[int], groups: int, window: ConvWindow) -> None:
        self.of.check(shape, groups, window)

    def arrays(self, shape: Sequence[int]) -> tuple[Stored, ...]:
        stored = self._pairs.shape(shape)
        count = BLOCK * blocks(shape[0]) * (stored[0] if self.direct else 1)
        return (DType.I16, stored), (DType.F32, (count,))

    def pack(self, plain: Floats) -> tuple[Numbers, ...]:
        whole = self.of.pack(plain)[0]  # […, Ib, kh, kw, 16, 16], last out
        planes = whole if self.direct else whole[None]
        taps = 1 if self.direct else prod(whole.shape[2:-2])
        numbers, scales = np.empty(planes.shape, np.int16), []
        for plane, made in zip(planes, numbers, strict=True):
            for filters, place in zip(plane, made, strict=True):
                fitted, scale = round_columns(filters.reshape(-1, BLOCK), k_run_length(taps))
                place[...] = fitted.reshape(filters.shape)
                scales.append(scale)
        scale = np.concatenate(scales) * np.float32(self._times)
        split = numbers.reshape(*numbers.shape[:-2], BLOCK // 2, 2, BLOCK).swapaxes(-1, -2)
        return np.ascontiguousarray(split).reshape(self.shape(plain.shape)), scale

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        whole, scale = stored
        each = (scale / np.float32(self._times)).reshape(self._over(shape))
        return self._pairs.filters((whole * each,), shape)

    def convolve(
        self, x: Floats, stored: Sequence[Numbers], shape: Sequence[int], sums: Sums
    ) -> Floats:
        whole, each = round_images(x)
        wide = whole * each.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))
        return super().convolve(wide, stored, shape, sums)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        whole, scale = stored
        wide = b("Reshape", scale, b.ints(*self._over(shape)))
        if self.direct:
            wide = b("Mul", wide, b("Constant", value=np.array(1 / self._times, np.float32)))
        return self._pairs.to_onnx(
            b, (b("Mul", b("Cast", whole, to=DType.F32.onnx), wide),), shape
        )

    def _over(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape that broadcasts scales over ``[Ob, …, 16, 2]`` or ``[16, Ob, …, 16, 2]``."""
        stored = self.shape(shape)
        outer = stored[: 2 if self.direct else 1]
        return (*outer, *(1,) * (len(stored) - 2 - len(outer)), BLOCK, 1)


@dataclass(frozen=True)
class DispatchFilters(_Nchw16cFilters):
    """Winograd and direct filters; the runtime uses those that suit the size of the image."""

    transformed: WinogradFilters | Vnni2Filters | Int16Filters

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.transformed.name

    @property
    def product_type(self) -> str:  # type: ignore[override]
        return self.transformed.product_type

    @property
    def operands(self) -> int:
        return self.transformed.operands + self.fallbacks

    @property
    def fallbacks(self) -> int:
        return self.direct.operands

    @property
    def rounds(self) -> bool:
        return self.transformed.rounds

    @property
    def side(self) -> int:
        return self.transformed.side

    @property
    def direct(self) -> Filters:
        found = self.transformed.direct
        assert found is not None, f"{self.transformed.name} is not a transformed layout"
        return found

    def check(self, shape: Sequence[int], groups: int, window: ConvWindow) -> None:
        if self.transformed.direct is None:
            raise ValueError("only transformed filters have a direct form to fall back on")
        self.transformed.check(shape, groups, window)

    def arrays(self, shape: Sequence[int]) -> tuple[Stored, ...]:
        return (*self.transformed.arrays(shape), *self.direct.arrays(shape))

    def pack(self, plain: Floats) -> tuple[Numbers, ...]:
        return (*self.transformed.pack(plain), *self.direct.pack(plain))

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        return self.direct.filters(stored[-self.fallbacks :], shape)

    def convolve(
        self, x: Floats, stored: Sequence[Numbers], shape: Sequence[int], sums: Sums
    ) -> Floats:
        return self.direct.convolve(x, stored[-self.fallbacks :], shape, sums)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        return self.direct.to_onnx(b, stored[-self.fallbacks :], shape)


def _four(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """The plain filters' shape as ``[O, I, kh, kw]``."""
    o, i, *kernel = shape
    kh, kw = (1, *kernel)[-2:]
    return o, i, kh, kw


def _in_pairs(stored: Numbers) -> Numbers:
    """Filters ``[…, 16 (in), 16 (out)]`` in bf16 as ``[…, 8, 16 (out), 2 (in)]``."""
    import ml_dtypes

    split = np.asarray(stored, np.float32).reshape(*stored.shape[:-2], BLOCK // 2, 2, BLOCK)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(split.swapaxes(-1, -2)).astype(ml_dtypes.bfloat16)


def _unpadded(b: BodyBuilder, wide: str, shape: Sequence[int]) -> str:
    """Filters padded to whole blocks, cut to ``[O, I, kernel…]``."""
    o, i = shape[:2]
    if i % BLOCK:
        wide = b.slice_last(wide, 0, i, 1)
    return b.slice_last(wide, 0, o, 0) if o % BLOCK else wide


BLOCKED, FIRST_LAYER, DEPTHWISE, PANELS = (
    BlockedFilters(),
    FirstLayerFilters(),
    DepthwiseFilters(),
    PointwiseFilters(),
)
WINOGRAD2, WINOGRAD4 = WinogradFilters(2), WinogradFilters(4)
VNNI2, WINOGRAD2_VNNI2 = Vnni2Filters(BLOCKED), Vnni2Filters(WINOGRAD2)
INT16, WINOGRAD2_INT16 = Int16Filters(BLOCKED), Int16Filters(WINOGRAD2)
BF16X2, NCHW32C = Bf16x2Filters(), Nchw32cFilters()
LAYOUTS: Mapping[str, Filters] = MappingProxyType(
    {
        layout.name: layout
        for layout in (
            BLOCKED, FIRST_LAYER, DEPTHWISE, PANELS, WINOGRAD2, WINOGRAD4, VNNI2,
            WINOGRAD2_VNNI2, INT16,
            WINOGRAD2_INT16, BF16X2, NCHW32C,
        )
    }
)  # fmt: skip
"""Filter layouts by name."""
