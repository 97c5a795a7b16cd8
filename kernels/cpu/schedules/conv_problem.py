"""Convolutions as tuning problems: all that a call's time depends on, except the image count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, Extent
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.schedule import ConvSchedule
from tracea_graph.kernels.program import Attributes, Call, Program, Schedule, View
from tracea_graph.ops.chain import Chain

__all__ = ["BLOCK", "TILE", "BlockedOperand", "ConvProblem", "convolution_of"]

BLOCK = 16
"""Channels of a block."""
TILE: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("ow_tile", "oh_tile", "ic_block", "h_tasks", "oc_chunk")}
)
"""Keys of a hint's tile, and the schedule fields they set."""


@dataclass(frozen=True)
class BlockedOperand:
    """A blocked operand ``[images, blocks, rows, columns, lanes]``.

    ``dims`` omits the axis of images; ``strides``, in elements, includes it.
    """

    dims: tuple[int, int, int, int]
    strides: tuple[int, int, int, int, int]
    dtype: str

    @property
    def span(self) -> int:
        """Elements of one image, or of the whole operand if all images share it."""
        inner = zip(self.dims, self.strides[1:], strict=True)
        return self.strides[0] or 1 + sum((d - 1) * s for d, s in inner)


@dataclass(frozen=True)
class ConvProblem:
    """One convolution for any number of images, with its call's fields (``kernels/cpu/CALLS.md``).

    ``weights`` are the dims of the stored filters; ``add`` is added to the sum;
    ``epilogue_inputs`` are the other operands of the chain.
    """

    op: str
    multiplies: str
    attributes: Attributes
    x: BlockedOperand
    weights: tuple[int, ...]
    y: BlockedOperand
    bias: bool = True
    add: BlockedOperand | None = None
    epilogue: Chain | None = None
    epilogue_inputs: tuple[BlockedOperand, ...] = ()

    @property
    def kernel(self) -> str:
        return Call.name_of(self.op, self.multiplies)

    @property
    def paired(self) -> bool:
        """Whether pairs of 16-bit numbers are multiplied."""
        return self.multiplies != "f32" and not self.depthwise

    @property
    def depthwise(self) -> bool:
        return self.op == "depthwise"

    @property
    def winograd(self) -> int:
        """Outputs along a side of a Winograd tile; 0 for a direct convolution."""
        tile: int = self.attributes["tile"] if self.op == "winograd" else 0
        return tile

    @property
    def dtype(self) -> str:
        """Element type that is multiplied: ``f32``, ``bf16``, ``bf16x2`` or ``int16``."""
        return self.multiplies

    @property
    def weight_type(self) -> DType:
        """Element type of the stored filters."""
        if not self.paired:
            return DType.F32
        return DType.I16 if self.multiplies == "int16" else DType.BF16

    @property
    def weight_bytes(self) -> int:
        return prod(self.weights) * (2 if self.paired else 4)

    @property
    def defaults(self) -> tuple[Schedule, ...]:
        """One schedule for any number of images: the library's own choice."""
        return (ConvSchedule(),)

    @property
    def typical_rows(self) -> tuple[int, ...]:
        """Empty: the model determines the number of images."""
        return ()

    @property
    def unit(self) -> str:
        return "image"

    @property
    def reuses_weights(self) -> bool:
        return True

    @property
    def tile(self) -> Mapping[str, str]:
        return TILE

    @property
    def stages(self) -> str:
        return ""

    def rows_of(self, dims: Sequence[int]) -> int:
        """The number of images of a call whose x has these dims."""
        return dims[0]

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of y without its halo."""
        top, left, bottom, right = self.attributes["halo"]
        return self.y.dims[1] - top - bottom, self.y.dims[2] - left - right

    @property
    def groups(self) -> int:
        count: int = self.attributes.get("groups", 1)
        return self.filters if self.depthwise else count

    @property
    def strides(self) -> tuple[int, int]:
        steps: tuple[int, int] = self.attributes.get("strides", (1, 1))
        return steps

    @property
    def window(self) -> tuple[int, int]:
        first = 1 if self.depthwise else 2
        return (3, 3) if self.winograd else (self.weights[first], self.weights[first + 1])

    @property
    def channels(self) -> int:
        """Number of input channels, rounded up to whole blocks if there are several groups."""
        if self.depthwise:
            return self.filters
        last: int = self.attributes["ic_tail"] if self.groups == 1 else BLOCK
        return (self.x.dims[0] - 1) * BLOCK + last

    @property
    def filters(self) -> int:
        """Output channels."""
        last: int = self.attributes["tail" if self.depthwise else "oc_tail"]
        return (self.y.dims[0] - 1) * BLOCK + last

    def flops(self, rows: int) -> float:
        """Operations of a direct convolution of ``rows`` images."""
        taps = self.channels // self.groups * prod(self.window)
        return 2.0 * rows * prod(self.outputs) * self.filters * taps

    def moved(self, rows: int) -> float:
        """Bytes of the filters, x and y of ``rows`` images; each byte is counted once."""
        size = DType[self.x.dtype].size * self.x.span + DType[self.y.dtype].size * self.y.span
        return self.weight_bytes + float(rows * size)

    @property
    def sizes(self) -> dict[str, int]:
        """The problem's sizes by name, as in telemetry and entry points of candidates."""
        (height, width), (kernel_h, kernel_w) = self.outputs, self.window
        return {
            "channels": self.channels, "filters": self.filters, "height": height, "width": width,
            "kernel_h": kernel_h, "kernel_w": kernel_w,
        }  # fmt: skip

    @property
    def key(self) -> dict[str, Any]:
        """JSON-ready values that identify the problem in the cache."""
        boxes = [b and [b.dims, b.strides, b.dtype] for b in (self.x, self.y, self.add)]
        return {
            "kernel": self.kernel,
            "attributes": {name: str(value) for name, value in self.attributes.items()},
            "boxes": [*boxes, *([b.dims, b.strides, b.dtype] for b in self.epilogue_inputs)],
            "weights": list(self.weights),
            "bias": self.bias,
            "epilogue": self.epilogue.text if self.epilogue else "",
        }

    def __str__(self) -> str:
        (height, width), (kernel_h, kernel_w) = self.outputs, self.window
        kernel = f"{self.kernel} F({self.winograd})" if self.winograd else self.kernel
        return (
            f"{kernel} {self.channels}x{kernel_h}x{kernel_w} to {self.filters}x{height}x{width}"
            + (" + add" if self.add else "")
            + (" + epilogue" if self.epilogue else "")
        )


def convolution_of(program: Program, call: Call) -> ConvProblem | None:
    """The convolution of a call; None if sizes are symbolic or the filters are not an input."""
    named = CALLS.of(call).named(call)
    filters, add, inputs = named["w"], named["add"], named["inputs"]
    assert isinstance(filters, View) and isinstance(inputs, tuple)
    x, y, added = (_box(program, named[name]) for name in ("x", "y", "add"))
    if filters.buffer.kind != "input" or x is None or y is None or (add and added is None):
        return None
    dims = tuple(d for d in filters.dims if isinstance(d, int))
    boxes = tuple(box for view in inputs if (box := _box(program, view)) is not None)
    if len(dims) < len(filters.dims) or len(boxes) < len(inputs):
        return None
    return ConvProblem(
        call.op, call.dtype, call.attributes, x, dims, y, named["bias"] is not None, added,
        call.chain, boxes,
    )  # fmt: skip


def _box(program: Program, view: Any) -> BlockedOperand | None:
    """The box of a blocked view; None if there is none, or if it has symbolic sizes."""
    if not isinstance(view, View):
        return None
    dims, strides = _numbers(view.dims[1:]), _numbers(view.strides)
    if len(dims) != 4 or len(strides) != 5 or strides[-1] not in (0, 1):
        return None
    dtype = program.dtype_of(view.buffer)
    assert dtype is not None
    return BlockedOperand(
        (dims[0], dims[1], dims[2], dims[3]),
        (strides[0], strides[1], strides[2], strides[3], strides[4]),
        dtype.name,
    )


def _numbers(extents: tuple[Extent, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in extents if isinstance(extent, int))
