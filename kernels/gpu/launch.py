"""Launch configurations: kernel, grid, and parameters.

Sizes are extents, so one :class:`Launch` serves every shape; :meth:`Launch.blocks` and
:meth:`Launch.words` evaluate it for given sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Extent, evaluate
from tracea_graph.kernels.program import Buffer, View

__all__ = [
    "MOST",
    "Argument",
    "Launch",
    "TensorMap",
    "Window",
    "constant_buffer_flag",
    "divisor",
    "divisor_words",
    "f32",
    "i32",
    "late",
    "pixel_map",
    "pointer",
    "tensor_map",
]

MAP_BYTES, MAP_ALIGN = 128, 16
"""Bytes of a tensor map, and the alignment of its tensor's addresses and strides in bytes."""
MOST = 2**31 - 1
"""Maximum number of elements of a view and of threads along an axis: kernels count in int32."""


@dataclass(frozen=True)
class Window:
    """The pixels of an image or a volume at which filters start.

    Numbers are those along (width, height) or (width, height, depth).  The first start is
    ``before`` pixels ahead of the image, in the padding.  The last start is ``after`` pixels
    beyond the last pixel.  Starts are ``steps`` pixels apart.
    """

    before: tuple[Extent, ...]
    after: tuple[Extent, ...]
    steps: tuple[int, ...]

    def at(self, sizes: Mapping[str, int]) -> Window:
        """Return the window of given sizes."""
        before, after = (
            tuple(evaluate(n, sizes) for n in side) for side in (self.before, self.after)
        )
        return Window(before, after, self.steps)


@dataclass(frozen=True)
class TensorMap:
    """Arguments of ``cuTensorMapEncodeTiled``: a tensor, and the box that one copy transfers.

    Axes are innermost first.  ``strides`` are in bytes, from axis 1 on; axis 0 is contiguous.
    Rows of the box have 128 or 64 bytes and are swizzled.  If there is a ``window``, the fields
    are arguments of ``cuTensorMapEncodeIm2col`` instead: the tensor is an image, and the box has
    channels and pixels.  Floats may be ``rounded`` to tf32 by the copy.
    """

    address: int
    dtype: DType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    window: Window | None = None
    rounded: bool = False

    @property
    def line(self) -> int:
        """Number of bytes of a row of the box."""
        return self.box[0] * int(self.dtype.size)

    @property
    def fits(self) -> bool:
        """Whether the hardware can copy from this tensor."""
        numbers = (self.address, *self.strides)
        return min(self.dims) > 0 and not any(n % MAP_ALIGN for n in numbers)


Encode = Callable[[TensorMap], bytes]
"""Encode a tensor map as the driver does."""


@dataclass(frozen=True)
class Argument:
    """One parameter of a kernel.

    ``kind`` says how ``value`` is passed:

    * ``pointer``: the address of a view's first element, or a null pointer for None;
    * ``i32``, ``f32``: a 32-bit number;
    * ``divisor``: the constants that replace a division by an extent;
    * ``late``: 0 if the next kernel may start before this one waits for the previous one, else 1;
    * ``fixed``: 1 if a view's buffer is constant while a model runs, else 0;
    * ``map``: a tensor map of a view; a copy transfers ``box`` elements along each axis;
    * ``pixels``: a tensor map of an image; a copy transfers a box of pixels and channels.

    ``dtype`` is a view's element type.  Copies may round float32 numbers to tf32 (``rounded``).
    """

    kind: str
    value: View | Extent | float | None
    dtype: DType = DType.F32
    box: tuple[int, ...] = ()
    window: Window | None = None
    rounded: bool = False

    def map(self, sizes: Mapping[str, int], address: Callable[[Buffer], int]) -> TensorMap:
        """Return the tensor map of a view for given sizes and addresses."""
        view = self.value
        assert isinstance(view, View)
        size = int(self.dtype.size)
        dims = tuple(evaluate(d, sizes) for d in view.dims[::-1])
        strides = tuple(evaluate(s, sizes) * size for s in view.strides[-2::-1])
        at = address(view.buffer) + evaluate(view.offset, sizes) * size
        window = self.window.at(sizes) if self.window else None
        return TensorMap(at, self.dtype, dims, strides, self.box[::-1], window, self.rounded)

    def words(
        self, sizes: Mapping[str, int], address: Callable[[Buffer], int], encode: Encode | None
    ) -> bytes:
        """Return the parameter's bytes for given sizes of symbols and addresses of buffers.

        Raises GraphError for a number that does not fit int32.
        """
        value = self.value
        if self.kind in ("map", "pixels"):
            assert encode is not None
            return encode(self.map(sizes, address))
        if self.kind == "pointer":
            if not isinstance(value, View):
                return struct.pack("<Q", 0)
            _check_span(value, sizes)
            first = int(evaluate(value.offset, sizes) * self.dtype.size)
            return struct.pack("<Q", address(value.buffer) + first)
        if self.kind == "f32":
            assert isinstance(value, float)
            return struct.pack("<f", value)
        if self.kind == "fixed":
            return struct.pack("<i", 1)
        assert not isinstance(value, View | float | None)
        number = evaluate(value, sizes)
        if abs(number) > MOST:
            raise GraphError(f"{number} exceeds {MOST}, the largest number that GPU kernels take.")
        if self.kind == "divisor":
            return struct.pack("<III", *divisor_words(max(number, 1)))
        return struct.pack("<i", number)


def pointer(view: View | None, dtype: DType) -> Argument:
    """Pass the address of a view's first element."""
    return Argument("pointer", view, dtype)


def tensor_map(view: View, dtype: DType, box: tuple[int, ...]) -> Argument:
    """Pass a tensor map of a view; its last axis is contiguous, ``box`` has a size per axis."""
    return Argument("map", view, dtype, box)


def pixel_map(view: View, dtype: DType, box: tuple[int, int], window: Window) -> Argument:
    """Pass a tensor map of an image ``[N, H, W, C]`` or of a volume ``[N, D, H, W, C]``.

    Copies transfer the pixels of a window.
    """
    return Argument("pixels", view, dtype, box, window)


def i32(extent: Extent) -> Argument:
    """Pass an integer."""
    return Argument("i32", extent)


def f32(value: float) -> Argument:
    """Pass a float."""
    return Argument("f32", value)


def constant_buffer_flag(view: View) -> Argument:
    """Pass 1 if the view's buffer is constant while a model runs, else 0."""
    return Argument("fixed", view)


def late() -> Argument:
    """Pass 1, unless :mod:`release_choice` lets the next kernel start before this one waits."""
    return Argument("late", 1)


def divisor(extent: Extent) -> Argument:
    """Pass the constants by which kernels divide by an extent without a division."""
    return Argument("divisor", extent)


def divisor_words(d: int) -> tuple[int, int, int]:
    """Return ``(d, m, s)`` with ``n // d == n * m >> 32 + s`` for n below 2^31; m is 0 for d = 1.

    m is 2^(31+p) / d rounded up, for the least p with 2^p ≥ d, so that its error times n stays
    below 1/d (Granlund, Montgomery: "Division by Invariant Integers using Multiplication", PLDI
    1994).
    """
    if d == 1:
        return 1, 0, 0
    p = (d - 1).bit_length()
    return d, -(-(1 << (31 + p)) // d), p - 1


@dataclass(frozen=True)
class Launch:
    """A kernel on a grid of blocks, each with ``threads`` threads and ``shared`` bytes of memory.

    If ``persistent`` is not 0, the grid has at most that many blocks per SM, and each block loops
    over its share of the work.  The launch is used at sizes at which ``when`` is positive.
    """

    symbol: str
    grid: tuple[Extent, Extent, Extent]
    threads: int
    shared: int
    arguments: tuple[Argument, ...]
    persistent: int = 0
    when: Extent = 1

    def blocks(self, sizes: Mapping[str, int], sms: int = 132) -> tuple[int, int, int]:
        """Evaluate the grid at these sizes of the symbols; a grid without blocks is not launched.

        ``sms`` is the number of SMs, by default that of an H100.  Raises GraphError if the grid
        exceeds CUDA's limits.
        """
        x, y, z = (evaluate(extent, sizes) for extent in self.grid)
        x = min(x, self.persistent * sms) if self.persistent else x
        if x > MOST or max(y, z) > 0xFFFF:
            raise GraphError(f"{self.symbol} takes {x} × {y} × {z} blocks, more than a grid has.")
        return x, y, z

    def words(
        self,
        sizes: Mapping[str, int],
        address: Callable[[Buffer], int],
        encode: Encode | None = None,
    ) -> Iterable[bytes]:
        """Return the bytes of every parameter, in order; ``encode`` makes tensor maps."""
        return [argument.words(sizes, address, encode) for argument in self.arguments]


def _check_span(view: View, sizes: Mapping[str, int]) -> None:
    dims = [evaluate(d, sizes) for d in view.dims]
    steps = [abs(evaluate(s, sizes)) for s in view.strides]
    if 0 not in dims and sum((d - 1) * s for d, s in zip(dims, steps, strict=True)) > MOST:
        raise GraphError(
            f"A view spans more than {MOST} elements, which GPU kernels cannot count."
        )
