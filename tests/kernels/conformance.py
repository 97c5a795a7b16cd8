"""Compile a generated unit, load it, call it on guarded memory: what every kernel test shares."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import tempfile
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int32, c_int64, c_void_p
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.config import TOLERANCE, Environment
from tracea_graph.kernels.cpu import library_build
from tracea_graph.kernels.cpu.combined_compilation_units import _one
from tracea_graph.kernels.cpu.emitter import CompilationUnit
from tracea_graph.kernels.cpu.isa_levels import host_levels, isa_of
from tracea_graph.kernels.cpu.precompiled_header import takes_intrinsics
from tracea_graph.ops.attention import LOWEST, ZERO_ROWS
from tracea_graph.toolchain.compilers import COMPILE_SECONDS, find_compiler
from tracea_graph.toolchain.library_artifact import ignore_progress
from tracea_graph.toolchain.object_cache import ObjectCache

Array = npt.NDArray[Any]

HEADERS = Path(library_build.__file__).parent
LINK = ("-nodefaultlibs", "-lc", "-Wl,-z,defs")
"""Nothing but the C library: a unit that needs libstdc++ or libm does not link."""
CANARY = np.float32(-7.25e11)
PANEL = 16
_TOGETHER = 32
"""Chains that are compiled as one file."""


def levels(precision: str) -> tuple[str, ...]:
    """This machine's levels for a precision, lowest first, allowed to run in this process.

    Linux grants a process matrix tiles once it asks: arch_prctl(ARCH_REQ_XCOMP_PERM, tile data).
    """
    found = host_levels(precision)
    if any("amx_tile" in isa_of(name).features for name in found):
        assert ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0
    return found


class GemmTile(ctypes.Structure):
    """``tracea_gemm_tile``."""

    _fields_ = [
        ("k", c_int64), ("a", c_void_p), ("lda", c_int64), ("a_step", c_int64),
        ("b", c_void_p), ("b_panel", c_int64), ("b_row", c_int64),
        ("init", c_void_p), ("init_stride", c_int64), ("c", c_void_p), ("ldc", c_int64),
        ("mr", c_int32), ("nv", c_int32), ("last", c_int32), ("b_exact", c_int32),
        ("prefetch", c_void_p), ("look_up", c_void_p),
        ("prefetch_lines", c_int32), ("look_up_pages", c_int32), ("state", c_void_p),
        ("row_scale", c_void_p), ("column_scale", c_void_p), ("streams", c_int32),
        ("zero", c_int32), ("flip", c_int32), ("row_sums", c_void_p), ("factor", c_void_p),
        ("summand", c_void_p), ("bytes", c_void_p), ("bytes_row", c_int64),
        ("bytes_zero", c_int32), ("bytes_fit", c_int32), ("added", c_void_p),
        ("added_row", c_int64), ("sum", c_void_p), ("windows", c_void_p), ("lines", c_int64),
        ("line", c_int64), ("further", c_int64), ("table", c_void_p),
    ]  # fmt: skip


class GemmDotTile(ctypes.Structure):
    """``tracea_gemm_dot_tile``."""

    _fields_ = [
        ("m", c_int64), ("n", c_int64), ("k", c_int64), ("a", c_void_p), ("lda", c_int64),
        ("b", c_void_p), ("ldb", c_int64), ("bias", c_void_p), ("c", c_void_p), ("ldc", c_int64),
    ]  # fmt: skip


class GemmPackTile(ctypes.Structure):
    """``tracea_gemm_pack_tile``."""

    _fields_ = [
        ("k", c_int64), ("columns", c_int64),
        ("source", c_void_p), ("row", c_int64), ("column", c_int64),
        ("to", c_void_p), ("panel", c_int64),
    ]  # fmt: skip


class ChainTile(ctypes.Structure):
    """``tracea_chain_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64),
        ("inputs", c_void_p * 8), ("in_stride", c_int64 * 8),
        ("out", c_void_p * 2), ("out_stride", c_int64 * 2),
    ]  # fmt: skip


class NormTile(ctypes.Structure):
    """``tracea_norm_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("x", c_void_p), ("x_stride", c_int64),
        ("gamma", c_void_p), ("beta", c_void_p), ("eps", c_float),
        ("y", c_void_p), ("y_stride", c_int64), ("layer", c_int32),
        ("rounded", c_void_p), ("rounded_stride", c_int64),
    ]  # fmt: skip


class ReduceTile(ctypes.Structure):
    """``tracea_reduce_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("x", c_void_p), ("x_stride", c_int64),
        ("total", c_void_p), ("rest", c_void_p), ("y", c_void_p), ("y_stride", c_int64),
        ("divisor", c_float), ("kind", c_int32), ("first", c_int32), ("last", c_int32),
    ]  # fmt: skip


class ArgTile(ctypes.Structure):
    """``tracea_arg_reduce_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("x", c_void_p), ("x_stride", c_int64),
        ("best", c_void_p), ("place", c_void_p), ("y", c_void_p), ("y_stride", c_int64),
        ("begin", c_int32), ("least", c_int32), ("latest", c_int32), ("first", c_int32),
        ("last", c_int32),
    ]  # fmt: skip


class TopKTile(ctypes.Structure):
    """``tracea_top_k_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("k", c_int64), ("x", c_void_p),
        ("x_stride", c_int64), ("y", c_void_p), ("place", c_void_p), ("least", c_int32),
    ]  # fmt: skip


class SoftmaxTile(ctypes.Structure):
    """``tracea_softmax_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("x", c_void_p), ("x_stride", c_int64),
        ("y", c_void_p), ("y_stride", c_int64), ("log", c_int32),
    ]  # fmt: skip


class GatherTile(ctypes.Structure):
    """``tracea_gather_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("tables", c_int32), ("row", c_void_p * 4),
        ("y", c_void_p), ("y_stride", c_int64),
    ]  # fmt: skip


class CopyTile(ctypes.Structure):
    """``tracea_copy_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("x", c_void_p), ("x_row", c_int64),
        ("x_col", c_int64), ("y", c_void_p), ("y_row", c_int64), ("y_col", c_int64),
        ("size", c_int32),
    ]  # fmt: skip


class AttentionTile(ctypes.Structure):
    """``tracea_attention_tile``."""

    _fields_ = [
        ("queries", c_int64), ("keys", c_int64), ("head", c_int64), ("head_v", c_int64),
        ("heads", c_int64),
        ("q", c_void_p), ("q_stride", c_int64), ("q_head", c_int64),
        ("k", c_void_p), ("k_stride", c_int64), ("k_col", c_int64),
        ("v", c_void_p), ("v_stride", c_int64),
        ("mask", c_void_p), ("mask_row", c_int64), ("mask_col", c_int64), ("mask_head", c_int64),
        ("seen", c_int64), ("seen_step", c_int64),
        ("window_left", c_int64), ("window_right", c_int64), ("global_keys", c_int64),
        ("mask_kind", c_int32), ("causal", c_int32), ("zero_rows", c_int32), ("direct", c_int32),
        ("scale", c_float), ("fill", c_float), ("softcap", c_float),
        ("y", c_void_p), ("y_stride", c_int64), ("y_head", c_int64), ("y_size", c_int32),
        ("scratch", c_void_p), ("ranges", c_void_p),
        ("spans", c_void_p), ("starts", c_void_p),
        ("tile_rows", c_int64), ("first_query", c_int64),
        ("tiles_mask", c_int32), ("beyond", c_float),
    ]  # fmt: skip


class Optimization:
    """How kernels are compiled that are run: as in libraries of results, unless ``quick``.

    Quick kernels are those of libraries of candidates, so the objects are shared with tests that
    optimize models.
    """

    quick = False

    @classmethod
    def of(cls, source: CompilationUnit) -> CompilationUnit:
        flags = ("-O1" if f in ("-O2", "-O3") else f for f in source.flags)
        return replace(source, flags=tuple(flags)) if cls.quick else source


@cache
def compile_unit(source: CompilationUnit) -> Path:
    """The shared object of one unit, from the object that libraries link and the cache holds.

    Its functions are hidden, as they are in libraries, and exported with ``test_`` before them.
    """
    made = _shared_object(source)
    if not made.exists():
        _build(source, [made])
    return made


def compile_chains(sources: Sequence[CompilationUnit]) -> None:
    """Make :func:`compile_unit` find shared objects of chains, many compiled as one file.

    Starting the compiler and the linker takes several times as long as compiling a chain.
    """
    unique = {_shared_object(source): source for source in map(Optimization.of, sources)}
    missing = [(path, source) for path, source in unique.items() if not path.exists()]
    for flags in dict.fromkeys(source.flags for _, source in missing):
        alike = [one for one in missing if one[1].flags == flags]
        for i in range(0, len(alike), _TOGETHER):
            paths, some = zip(*alike[i : i + _TOGETHER], strict=True)
            _build(_one(some), paths)


def _shared_object(source: CompilationUnit) -> Path:
    folder = Path(tempfile.gettempdir()) / f"tracea-kernel-tests-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return folder / f"{library_build.object_key(find_compiler(), source)[:24]}.so"


def _build(source: CompilationUnit, files: Sequence[Path]) -> None:
    """Compile a unit to a shared object, written to several files."""
    compiler, objects = find_compiler(), ObjectCache(Environment().cache / "objects")
    with tempfile.TemporaryDirectory(dir=files[0].parent) as name:
        shop = library_build._Shop(compiler, objects, Path(name), COMPILE_SECONDS)
        if takes_intrinsics(source.text) and compiler.family == "gcc":
            shop.header("header", source.flags, make=True)  # a lone unit would not
        library_build._compile(shop, [source], ignore_progress)
        exported = re.findall(r"^// (tracea_\w+)$", source.text, re.MULTILINE)
        jump = "b" if platform.machine() == "aarch64" else "jmp"
        lines = (
            f".globl test_{s}\n.type test_{s}, @function\ntest_{s}: {jump} {s}" for s in exported
        )
        stack = '.section .note.GNU-stack,"",@progbits\n'
        (shop.folder / "exports.s").write_text("\n".join((*lines, stack)))
        compiler.run(("-shared", "0.o", "exports.s", *LINK, "-o", "unit.so"), shop.folder)
        for i, file in enumerate(files):
            (shop.folder / f"{i}.so").hardlink_to(shop.folder / "unit.so")
            (shop.folder / f"{i}.so").rename(file)  # another process may have made the same


@cache
def _open(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def kernel(source: CompilationUnit, symbol: str) -> Callable[..., None]:
    """The exported function ``symbol`` of a unit, called with its tile, if it takes one."""
    found = _open(compile_unit(Optimization.of(source)))[f"test_{symbol}"]
    found.restype = None

    def call(*tile: ctypes.Structure) -> None:
        found(*map(ctypes.byref, tile))

    return call


def by_tiles(
    run: Callable[..., None],
    rows: Array,
    weights: Array,
    shape: tuple[int, int, int],
    tile: tuple[int, int],
    bias: Array | None,
    *,
    end: Callable[..., None] | None = None,
    scales: tuple[Array, Array] | None = None,
) -> Array:
    """A whole product of elements in twos, by tiles of at most ``rows x panels`` of ``tile``.

    ``shape`` is M, N and the twos of K; ``rows`` are twos too, or single numbers.  ``end`` is
    called once the last tile is done; ``scales`` are of rows and of columns.
    """
    (m, n, k), (mr, nv) = shape, tile
    out, state = Output(m, n), c_int32(0)
    for row in range(0, m, mr):
        for col in range(0, n, nv * PANEL):
            count = min(nv, -(-(n - col) // PANEL))
            one = GemmTile(
                k=k, a=rows[row:].ctypes.data, lda=rows.shape[1], a_step=rows.shape[1] // k,
                b=weights.ctypes.data + 4 * (col // PANEL) * k * PANEL,
                b_panel=k * PANEL, b_row=PANEL,
                init=None if bias is None else bias.ctypes.data + 4 * col,
                c=out.address + 4 * (row * out.stride + col), ldc=out.stride,
                mr=min(mr, m - row), nv=count, last=min(n - col, nv * PANEL) - PANEL * (count - 1),
                state=ctypes.addressof(state),
            )  # fmt: skip
            if scales is not None:
                one.row_scale = scales[0].ctypes.data + 4 * row
                one.column_scale = scales[1].ctypes.data + 4 * col
            run(one)
    if end is not None:
        end()
    out.check_canaries()
    return out.view.copy()


def guarded(array: Array) -> Array:
    """A copy whose last element is the last before an unreadable page: overruns fault."""
    page = mmap.PAGESIZE
    size = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, size + page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(c_void_p(base + size), page, 0) == 0
    copy = np.frombuffer(memory, array.dtype, array.size, size - array.nbytes)
    copy[:] = array.ravel()
    return copy.reshape(array.shape)


class Output:
    """A ``rows x cols`` result with a row stride, unaligned, between canaries.

    Float32 or integers.
    """

    def __init__(self, rows: int, cols: int, gap: int = 3, dtype: Any = np.float32) -> None:
        self.stride = cols + gap
        self._canary = CANARY if dtype is np.float32 else dtype(0x5A)
        self._memory = np.full(33 + rows * self.stride + 32, self._canary)
        self._shape = (rows, cols)
        self.view = self._inside(self._memory)

    def _inside(self, memory: Array) -> Array:
        size = memory.itemsize
        return np.lib.stride_tricks.as_strided(
            memory[33:], self._shape, (size * self.stride, size)
        )

    @property
    def address(self) -> int:
        return self._memory.ctypes.data + self._memory.itemsize * 33

    def check_canaries(self) -> None:
        """Fail if anything but the result was written."""
        copy = self._memory.copy()
        self._inside(copy)[:] = self._canary
        assert (copy == self._canary).all(), "written outside the result"


_ZEROS = dict.fromkeys(ZERO_ROWS, "0")
_MEANS = dict.fromkeys(ZERO_ROWS, "mean")
EMPTY: dict[str, tuple[float, dict[str, str]]] = {
    "bool": (-np.inf, _ZEROS | {"none": "NaN"}),
    "bool, lowest": (LOWEST, _MEANS | {"masked": "0", "lowest": "0"}),
    "bool, -1e9": (-1e9, _MEANS),
    "-inf": (-np.inf, _ZEROS | {"none": "NaN"}),
    "lowest": (LOWEST, _MEANS | {"masked": "0", "lowest": "0"}),
    "-3e38": (-3e38, _MEANS),
}
"""What rows give whose every key is dropped to, or has added, such a number."""

KEPT: dict[str, Array] = {
    "half of the keys": np.random.default_rng(7).random((60, 300)) < 0.5,
    "padding on the right": np.arange(300)[None] < 150,
    "padding on the left": np.arange(300)[None] >= 150,
    "two rows of three": (np.arange(60) % 3 > 0)[:, None],
}
"""Which of 300 keys 60 queries see."""


def scores_around(fill: float) -> tuple[Array, Array, Array]:
    """60 queries that score 300 keys above ``fill``, below it or both; and values.

    Scores are exact in float32, and q, k and v in bf16 if ``fill`` is.
    """
    rng = np.random.default_rng(3)
    step = max(0.125, float(np.spacing(np.nextafter(np.float32(abs(fill)), np.float32(0)))))
    apart = np.round(rng.standard_normal(300) * 40)
    apart[:200] = -abs(apart[:200])
    q, k = np.zeros((60, 4), np.float32), np.zeros((300, 4), np.float32)
    q[:, 0], q[:, 1] = 2, np.where(np.arange(60) % 2, 2, -2)
    k[:, 0], k[:, 1] = fill, apart * step
    return q, k, rng.standard_normal((300, 24), np.float32)


def unaligned(array: Array) -> Array:
    """A copy that starts 4 bytes off any vector boundary."""
    memory = np.empty(array.size + 17, array.dtype)
    start = 1 + (-memory.ctypes.data // 4) % 16
    copy = memory[start : start + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def address(array: Array | None) -> int | None:
    """The array's address, or None for no array."""
    return None if array is None else array.ctypes.data


def close(got: Array, want: Array, tolerance: float = TOLERANCE.kernel_f32) -> None:
    """Fail unless NaN and infinities agree and the rest is within a share of max|want|."""
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite].astype(np.float32))
    if finite.any():
        scale = max(np.abs(want[finite]).max(), 1e-30)
        assert np.abs(got[finite] - want[finite]).max() <= tolerance * scale


def function(source: CompilationUnit, symbol: str, gives: Any, *takes: Any) -> Any:
    """The exported function ``symbol`` of a unit, with its C types."""
    found = _open(compile_unit(source))[f"test_{symbol}"]
    found.restype, found.argtypes = gives, takes
    return found


def scratch_size(source: CompilationUnit, symbol: str, keys: int, head: int, head_v: int) -> int:
    """Bytes of scratch an attention unit asks for."""
    return int(function(source, symbol, c_int64, c_int64, c_int64, c_int64)(keys, head, head_v))
