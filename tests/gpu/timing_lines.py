"""Memory-bound work that ``tests.gpu.timing`` times: copies, samples, scans, updates and pools.

Aligned rows are read and written as vectors of 16 bytes; unaligned ones say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.gpu.timing_row import Row, Work
from tests.kernels.gpu.cases import Made
from tests.kernels.gpu.concat_cases import concat, pad
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.program import View

__all__ = ["ROWS"]

_SOME = 1 << 16
_F16, _F32, _I64 = DType.F16, DType.F32, DType.I64


def _filled(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> Array:
    """Return numbers that repeat, for they are made faster."""
    return np.resize(rng.standard_normal(_SOME).astype(NUMPY[dtype]), tuple(shape))


def _tensors(make: Callable[..., Any], *shapes: tuple[Sequence[int], DType]) -> Work:
    """Return torch's counterpart over random tensors."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        kinds = {_F16: torch.float16, _F32: torch.float32}
        given = [torch.randn(*shape, device="cuda").to(kinds[dtype]) for shape, dtype in shapes]
        return make(torch, given)

    return work


def _copied(
    name: str, dtype: DType, whole: Sequence[int], part: Callable[[Any], Any],
    target: Sequence[int], into: Callable[[Any], Any],
) -> Row:  # fmt: skip
    """A copy of one part of a tensor into a part of another."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = memory.put(_filled(rng, whole, dtype))
        y = memory.empty(tuple(target), NUMPY[dtype])
        views = [_view(x, whole, part), _view(y, target, into)]
        return CALLS.make("copy", f"b{int(dtype.size)}", x=views[0], y=views[1]), list

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        return (lambda x, y: into(y).copy_(part(x))), given

    moved = 2 * int(dtype.size) * int(np.prod(part(np.broadcast_to(np.int8(0), whole)).shape))
    work = _tensors(run, (whole, dtype), (target, dtype))
    return Row(f"memory {name} {dtype.short}", make, ("256x16",), work, moved=moved)


def _joined(dtype: DType, rows: Sequence[int], *widths: int) -> Row:
    """All parts of a concatenation of channels, in one launch."""
    said = f"memory concat of {' + '.join(map(str, widths))} channels {dtype.short}"

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        return (lambda *parts: torch.cat(parts, -1)), given

    work = _tensors(run, *(((*rows, width), dtype) for width in widths))
    return Row(said, concat(dtype, int(np.prod(rows)), widths), ("256x16",), work)


def _padded(dtype: DType, shape: Sequence[int], last: bool) -> Row:
    """A pixel of zeros around images, channels first or last, in one launch."""
    sides = (1, 1, 0) if last else (1, 1)
    kept = shape if last else (shape[0] * shape[1], *shape[2:])

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        around = (0, 0, 1, 1, 1, 1) if last else (1, 1, 1, 1)
        return (lambda x: torch.nn.functional.pad(x, around)), given

    name = f"memory pad channels {'last' if last else 'first, unaligned,'} whole {dtype.short}"
    return Row(name, pad(dtype, kept, sides, sides), ("256x16",), _tensors(run, (shape, dtype)))


def _view(whole: View, shape: Sequence[int], part: Callable[[Any], Any]) -> View:
    """Return a part of a dense view, which an array of the same shape shows."""
    stand_in = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.int8), tuple(shape), [int(s) for s in whole.strides]  # type: ignore[call-overload]
    )  # fmt: skip
    shown = part(stand_in)
    start = shown.__array_interface__["data"][0] - stand_in.__array_interface__["data"][0]
    return View(whole.buffer, shown.shape, shown.strides, int(whole.offset) + start)


def _resized(how: str, dtype: DType, channels: int, cubic: bool = False, side: int = 56) -> Row:
    shape, result = (32, side, side, channels), (32, 2 * side, 2 * side, channels)

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, y = memory.put(_filled(rng, shape, dtype)), memory.empty(result, NUMPY[dtype])
        return CALLS.make("resize", dtype.short, x=x, y=y, how=how, cubic=cubic, slope=-0.75,
                          scale_h=2.0, scale_w=2.0), list  # fmt: skip

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        mode = "bicubic" if cubic else "nearest" if how == "nearest" else "bilinear"
        resize = torch.nn.functional.interpolate
        images = [x.permute(0, 3, 1, 2) for x in given]
        return (lambda x: resize(x, scale_factor=2.0, mode=mode)), images

    kind = "cubic" if cubic else "nearest" if how == "nearest" else "linear"
    return Row(f"memory resize {kind} {dtype.short} b32 {side}x{side} {channels}", make, ("256",),
               _tensors(run, (shape, dtype)))  # fmt: skip


def _sampled(sampling: str, dtype: DType, channels: int) -> Row:
    """Positions up to two pixels beside each result's own, as of a flow of images."""
    shape = 32, 112, 112, channels

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        own = (np.arange(112, dtype=np.float32) + 0.5) / 56 - 1
        grid = np.stack(np.broadcast_arrays(own[None, None], own[None, :, None]), -1)
        moved = grid + np.resize(rng.uniform(-2, 2, _SOME) / 56, (32, 112, 112, 2))
        x, y = memory.put(_filled(rng, shape, dtype)), memory.empty(shape, NUMPY[dtype])
        return CALLS.make(
            "grid_sample", dtype.short, x=x, grid=memory.put(moved.astype(np.float32)), y=y,
            sampling=sampling, beyond="zeros", aligned=False,
        ), list  # fmt: skip

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        x, moved = given
        size = (*x.shape[:1], 1, 112, 112)
        own = torch.nn.functional.affine_grid(torch.eye(2, 3).repeat(32, 1, 1), size, False)
        mode = {"linear": "bilinear", "cubic": "bicubic"}.get(sampling, sampling)
        sample = torch.nn.functional.grid_sample
        grid = (own.to(x.device) + moved / 56).to(x.dtype)
        given = [x.permute(0, 3, 1, 2), grid]
        return (lambda x, g: sample(x, g, mode, align_corners=False)), given

    work = _tensors(run, (shape, dtype), ((32, 112, 112, 2), _F32))
    name = f"memory grid sample {sampling} {dtype.short} b32 112x112 {channels}"
    return Row(name, make, ("256",), work)


def _summed(name: str, dtype: DType, shape: Sequence[int], columns: bool = False) -> Row:
    def make(memory: Memory, rng: np.random.Generator) -> Made:
        order = (0, 2, 1) if columns else ()
        x = memory.put(_filled(rng, shape, dtype), order=order)
        y = memory.empty(tuple(shape), NUMPY[dtype], order=order)
        return CALLS.make("cumulative_sum", dtype.short, x=x, y=y, exclusive=False,
                          reverse=False), list  # fmt: skip

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        return (lambda x: torch.cumsum(x, 1 if columns else 2)), given

    stored = (shape[0], shape[2], shape[1]) if columns else shape
    return Row(f"memory cumulative sum {name} {dtype.short}", make, ("256",),
               _tensors(run, (stored, dtype)))  # fmt: skip


def _scattered(name: str, dtype: DType, reduction: str, shape: Sequence[int], count: int,
               columns: bool = False) -> Row:  # fmt: skip
    """Updates of different elements of a line, in any order."""
    *lines, size = shape

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        order = (0, 1, 3, 2) if columns else ()
        ids = np.resize(rng.permutation(size)[:count].astype(np.int64), (*lines, count))
        call = CALLS.make(
            "scatter_elements", dtype.short, x=memory.put(_filled(rng, shape, dtype), order=order),
            ids=memory.put(ids, order=order),
            updates=memory.put(_filled(rng, (*lines, count), dtype), order=order),
            y=memory.empty(tuple(shape), NUMPY[dtype], order=order), reduction=reduction,
            index_type="i64",
        )  # fmt: skip
        return call, list

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        x, updates = given
        ids = torch.randperm(size, device="cuda")[:count].expand(*lines, count)
        ids, axis = (ids.swapaxes(2, 3), 2) if columns else (ids, 3)
        if reduction == "add":
            return (lambda x, u, i: x.scatter_add(axis, i, u)), [x, updates, ids.contiguous()]
        return (lambda x, u, i: x.scatter(axis, i, u)), [x, updates, ids.contiguous()]

    def stored(n: int) -> Sequence[int]:
        return (*lines[:2], n, lines[2]) if columns else (*lines, n)

    return Row(f"memory scatter elements {name} {reduction} {dtype.short}", make, ("256",),
               _tensors(run, (stored(size), dtype), (stored(count), dtype)))  # fmt: skip


def _taken(dtype: DType, rows: int, size: int) -> Row:
    def make(memory: Memory, rng: np.random.Generator) -> Made:
        ids = np.resize(rng.integers(0, size, _SOME), (1, 1, rows, size))
        call = CALLS.make("take", dtype.short, x=memory.put(_filled(rng, ids.shape, dtype)),
                          ids=memory.put(ids), y=memory.empty(ids.shape, NUMPY[dtype]),
                          index_type="i64")  # fmt: skip
        return call, list

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        ids = torch.randint(0, size, (rows, size), device="cuda")
        return (lambda x, i: x.gather(1, i)), [*given, ids]

    return Row(f"memory gather elements {dtype.short} {rows}x{size}", make, ("256",),
               _tensors(run, ((rows, size), dtype)))  # fmt: skip


def _gathered(dtype: DType, rows: int, columns: int) -> Row:
    """All rows of a table, in another order."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        table = memory.put(_filled(rng, (rows, columns), dtype))
        ids = memory.put(rng.permutation(rows)[None])
        call = CALLS.make("embedding", dtype.short, tables=[table], ids=[ids],
                          y=memory.empty((rows, columns), NUMPY[dtype]), count=1,
                          table_type=dtype.short, index_type="i64")  # fmt: skip
        return call, list

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        return (lambda x, i: x[i]), [*given, torch.randperm(rows, device="cuda")]

    return Row(f"memory gather {dtype.short} {rows}x{columns}", make, ("256",),
               _tensors(run, ((rows, columns), dtype)))  # fmt: skip


def _pooled(kind: str, dtype: DType, image: Sequence[int], taps: int, *tiles: str) -> Row:
    """Windows every second pixel, or over whole images."""
    n, side, _, channels = image
    out, step, pad = (side // 2, 2, taps // 2) if taps < side else (1, 1, 0)

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = memory.put(_filled(rng, image, dtype))
        y = memory.empty((n, out, out, channels), NUMPY[dtype])
        call = CALLS.make("pool", dtype.short, x=x, y=y, kind=kind, kernel=(taps, taps),
                          strides=(step, step), dilations=(1, 1), pads=(pad, pad))  # fmt: skip
        return call, list

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        own = torch.nn.functional
        pool = own.max_pool2d if kind == "max" else own.avg_pool2d
        return (lambda x: pool(x, taps, step, pad)), [x.permute(0, 3, 1, 2) for x in given]

    name = f"memory {kind} pool {dtype.short} b{n} {side}x{side} {channels} {taps}x{taps}"
    return Row(name, make, tiles, _tensors(run, (image, dtype)))


def _largest(dtype: DType, rows: int, columns: int) -> Row:
    def make(memory: Memory, rng: np.random.Generator) -> Made:
        call = CALLS.make("arg", dtype.short, x=memory.put(_filled(rng, (rows, columns), dtype)),
                          y=memory.empty((rows,), np.int64), kind="max", last=False)  # fmt: skip
        return call, list

    def run(torch: Any, given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        return (lambda x: x.argmax(1)), given

    return Row(f"memory largest {dtype.short} {rows}x{columns}", make, ("256",),
               _tensors(run, ((rows, columns), dtype)))  # fmt: skip


_IMAGE = 32, 112, 112, 64
ROWS: tuple[Row, ...] = (
    *(_copied("concat", d, _IMAGE, lambda x: x, (*_IMAGE[:3], 128), lambda y: y[..., 64:])
      for d in (_F16, _F32)),
    _copied("concat of 21 channels, one part, unaligned", _F16, (*_IMAGE[:3], 21), lambda x: x,
            (*_IMAGE[:3], 64), lambda y: y[..., :21]),
    *(_joined(d, _IMAGE[:3], *widths) for d in (_F16, _F32)
      for widths in ((64, 64), (58, 58), (21, 43), (21, 20, 22))),
    _joined(_F16, (32, 56, 56), 116, 116),
    _joined(_F16, (32, 112, 112), 3, 1),
    *(_copied("split of 58 channels, unaligned", d, (*_IMAGE[:3], 116), lambda x: x[..., 58:],
              (*_IMAGE[:3], 58), lambda y: y) for d in (_F16, _F32)),
    _copied("split of 21 channels, unaligned", _F16, (*_IMAGE[:3], 64), lambda x: x[..., 3:24],
            (*_IMAGE[:3], 21), lambda y: y),
    _copied("pad", _F16, _IMAGE, lambda x: x, (32, 114, 114, 64), lambda y: y[:, 1:-1, 1:-1]),
    *(_padded(d, (32, 64, 112, 112), False) for d in (_F16, _F32)),
    _padded(_F16, _IMAGE, True),
    _copied("slice, unaligned", _F16, (4096, 4096), lambda x: x[:, 1:-1], (4096, 4094),
            lambda y: y),
    _copied("interleave of four phases", _F16, (32, 56, 56, 2, 2, 64),
            lambda x: x.transpose(0, 1, 3, 2, 4, 5) if isinstance(x, np.ndarray)
            else x.permute(0, 1, 3, 2, 4, 5), (32, 56, 2, 56, 2, 64), lambda y: y),
    *(_resized("nearest", d, 64) for d in (_F16, _F32)),
    *(_resized("half_pixel", d, 64) for d in (_F16, _F32)),
    *(_resized("half_pixel", d, 21, side=112) for d in (_F16, _F32)),
    *(_resized("half_pixel", d, 64, cubic=True) for d in (_F16, _F32)),
    *(_sampled(s, d, 64) for s in ("linear", "nearest") for d in (_F16, _F32)),
    _sampled("cubic", _F16, 64),
    *(_sampled("linear", d, 21) for d in (_F16, _F32)),
    *(_summed("rows of 4096", d, (1, 4096, 4096)) for d in (_F16, _F32)),
    *(_summed("columns of 4096", d, (1, 4096, 4096), columns=True) for d in (_F16, _F32)),
    *(_summed("channels", d, (32, 112 * 112, 64), columns=True) for d in (_F16, _F32)),
    _summed("rows of 4095, unaligned", _F32, (1, 4096, 4095)),
    _summed("rows of 112", _F32, (32, 64 * 112, 112)),
    *(_scattered("rows of 4096", d, r, (1, 1, 4096, 4096), 1024)
      for d, r in ((_F16, "none"), (_F32, "none"), (_F32, "add"))),
    _scattered("columns of 64", _F32, "none", (1, 32, 112 * 112, 64), 32, columns=True),
    _scattered("rows of 100", _F32, "none", (1, 1, 65536, 100), 20),
    *(_taken(d, 4096, 4096) for d in (_F16, _F32)),
    *(_gathered(d, 32768, 768) for d in (_F16, _F32)),
    *(_pooled("max", d, _IMAGE, 3, "1x4", "1x1") for d in (_F16, _F32)),
    _pooled("average", _F16, _IMAGE, 2, "1x4", "1x1"),
    _pooled("max", _F16, (32, 112, 112, 63), 3, "256"),
    _pooled("average", _F16, (256, 7, 7, 2048), 7, "512", "128x32"),
    _largest(_F16, 32768, 1000),
    _largest(_F32, 4096, 32000),
)  # fmt: skip
