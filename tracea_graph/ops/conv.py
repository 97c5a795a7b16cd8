"""``FusedConv``: a convolution with what follows it element by element.

    acc = conv(x, W) + bias       x [N, C, spatial…], W [O, C/groups, kernel…]
    y   = epilogue(acc, extra…)   an elementwise chain; acc itself without one

An operand of the epilogue is full (the shape of the result), one number per channel (kind
``row``: ``[C, 1, 1]``, ``[N, C, 1, 1]``) or a single number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.ops.bf16 import round_bf16, split_bf16
from tracea_graph.ops.body import Body, BodyBuilder
from tracea_graph.ops.chain import COL, Chain
from tracea_graph.ops.filters import (
    BLOCK,
    DIRECT,
    IN_INT16,
    IN_PAIRS,
    LAYOUTS,
    WINOGRAD,
    spell_filters,
    unpack_filters,
    unpack_split_filters,
)
from tracea_graph.ops.finish import finish_of
from tracea_graph.ops.int16 import round_images
from tracea_graph.ops.windows import Window, windows_of

__all__ = ["ConvParams"]

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ConvParams:
    """Operands: x, W in its layout, bias, the epilogue's beyond its first (where present); of
    layouts in integers the scales of filters at last, and with ``either`` the same of filters
    that are not transformed.

    The bias of a layout in blocks is padded with zeros to whole blocks.  ``in_bf16``: x, and what
    the sum is added to first (:attr:`added`), are rounded to bf16 as they are read.
    ``rounded_filters``: filters of a depthwise one in bf16 may be rounded too, which lets kernels
    multiply two columns at once.  ``either``: filters are there transformed and as they are, and
    the size of an image decides.
    """

    channels: int
    filters: int
    window: Window
    groups: int = 1
    layout: str = "plain"
    bias: bool = False
    epilogue: Chain | None = None
    in_bf16: bool = False
    rounded_filters: bool = False
    either: bool = False

    def __post_init__(self) -> None:
        if min(self.channels, self.filters, self.groups) < 1 or self.layout not in LAYOUTS:
            raise ValueError(f"no convolution: {self}")
        if self.channels % self.groups or self.filters % self.groups:
            raise ValueError(f"{self.channels} channels do not split into {self.groups} groups")
        if self.layout != "plain" and self.window.rank > 2:
            raise ValueError("only one and two axes are stored in blocks")
        if self.layout in WINOGRAD and not self.transformable:
            raise ValueError("Winograd's transform is for 3x3 kernels padded by one all around")
        if self.either and self.layout not in DIRECT:
            raise ValueError("only transformed filters are there as they are, too")
        if self.in_bf16 != (self.layout in IN_PAIRS) and self.layout != "depthwise":
            raise ValueError("in bf16 filters are stored in pairs, or depthwise")
        if self.in_broad and (self.channels % (2 * BLOCK) or self.groups > 1):
            raise ValueError("two blocks are taken together of one group of whole ones")
        if self.rounded_filters and not (self.in_bf16 and self.layout == "depthwise"):
            raise ValueError("filters that may be rounded are depthwise ones in bf16")
        if self.layout in IN_PAIRS and self.channels % 2:
            raise ValueError("channels are taken in pairs")
        if self.epilogue and (
            self.epilogue.operands[:1] != ("full",)
            or len(self.epilogue.results) > 1
            or COL in self.epilogue.operands
        ):
            raise ValueError("an epilogue starts from the full accumulator and has one result")

    @property
    def extras(self) -> int:
        """Epilogue operands beyond the accumulator."""
        return len(self.epilogue.operands) - 1 if self.epilogue else 0

    @property
    def operands(self) -> int:
        return 2 + self.bias + self.extras + self.in_int16 + self.spare

    @property
    def spare(self) -> int:
        """Operands at the end that are read in place of others: direct filters, their scales."""
        return (1 + self.in_int16) * self.either

    @property
    def in_int16(self) -> bool:
        """True where x is rounded to integers with a scale for each image as it is read."""
        return self.layout in IN_INT16

    @property
    def in_broad(self) -> bool:
        """True where blocks of x are read by twos, as broad ones of 32 channels."""
        return self.layout == "broad"

    @property
    def in_halves(self) -> bool:
        """True where x is split into sums of two numbers in bf16 as it is read, as filters are."""
        return self.layout == "split"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the plain weights."""
        return (self.filters, self.channels // self.groups, *self.window.kernel)

    @property
    def taps(self) -> int:
        """Products per element of the result."""
        return math.prod(self.shape[1:])

    @property
    def padded_bias(self) -> bool:
        """True where the stored bias is longer than the filters are many."""
        return self.in_blocks and self.filters % BLOCK != 0

    @property
    def in_blocks(self) -> bool:
        """True for the layouts whose kernels write blocks."""
        return self.layout not in ("plain", "panels")

    @property
    def transformable(self) -> bool:
        """True for what Winograd's transform can do."""
        window = Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
        return self.window == window and self.groups == 1

    def ways(self, direct: str, spatial: Sequence[Extent]) -> Iterator[tuple[str, ...]]:
        """What filters may be kept in: ``direct``, or one of its transforms; with ``spatial``
        results of any size a transform and ``direct``, of which the runtime takes what pays.
        """
        yield (direct,)
        known = all(isinstance(d, int) for d in spatial)
        for layout in DIRECT if self.transformable else ():
            if DIRECT[layout] == direct:
                yield (layout,) if known else (layout, direct)

    @property
    def added(self) -> int | None:
        """The operand that is added to the sum in registers, if there is one."""
        add = finish_of(self.epilogue).add if self.in_blocks else None
        return None if add is None else 2 + self.bias + add

    def split(self, items: Sequence[Any]) -> tuple[Any, Any, Any | None, Sequence[Any]]:
        """Operands by role: x, W, bias or None, extras."""
        first = 2 + self.bias
        extras = items[first : first + self.extras]
        return items[0], items[1], items[2] if self.bias else None, extras

    def stored(self, items: Sequence[Any]) -> tuple[Any, str, tuple[int, ...], Any | None]:
        """Of the operands: filters, direct ones if there are any, their layout, their plain shape
        and, of integers, their scales."""
        at = len(items) - self.spare if self.either else 1
        layout = DIRECT[self.layout] if self.either else self.layout
        return items[at], layout, self.shape, items[-1] if self.in_int16 else None

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        shape = specs[0].shape
        if shape is None or len(shape) != self.window.rank + 2:
            raise ValueError("the rank of x is unknown or another")
        return (TensorSpec(DType.F32, (shape[0], self.filters, *self.window.sizes(shape[2:]))),)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        """NumPy, in the operands' precision; W in this op's layout."""
        if self.in_bf16:
            rounded = (0, self.added)
            arrays = [round_bf16(a) if i in rounded else a for i, a in enumerate(arrays)]
        x, w, bias, extras = self.split(arrays)
        if self.in_int16:
            whole, each = round_images(x)
            x = whole * each.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))
        acc = self._sums(x, unpack_filters(*self.stored(arrays)))
        if self.in_halves:  # both lower halves never meet
            (upper, lower), (first, rest) = split_bf16(x), unpack_split_filters(w, self.shape)
            acc = self._sums(upper, first + rest) + self._sums(lower, first)
        if bias is not None:
            acc = acc + bias[: self.filters].reshape(-1, *(1,) * self.window.rank)
        return self.epilogue.reference([acc, *extras]) if self.epilogue else [acc]

    def _sums(self, x: Floats, plain: Floats) -> Floats:
        inputs = np.split(x, self.groups, 1)
        filters = np.split(plain, self.groups, 0)
        axes = tuple(range(2, x.ndim))
        parts = [
            np.tensordot(
                windows_of(part, self.window, 0.0), kernels,
                ((1, *(a + self.window.rank for a in axes)), (1, *axes)),
            )
            for part, kernels in zip(inputs, filters, strict=True)
        ]  # fmt: skip
        return np.moveaxis(np.concatenate(parts, -1), -1, 1)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        x, _, bias, extras = self.split(b.inputs)
        plain = spell_filters(b, *self.stored(b.inputs))
        if bias is not None and self.padded_bias:
            bias = b.slice_last(bias, 0, self.filters, 0)
        acc = b(
            "Conv", x, plain, *([bias] if bias is not None else []),
            kernel_shape=self.window.kernel, strides=self.window.strides,
            dilations=self.window.dilations, pads=self.window.pads, group=self.groups,
        )  # fmt: skip
        return b.done(*(self.epilogue.spell(b, (acc, *extras)) if self.epilogue else (acc,)))
