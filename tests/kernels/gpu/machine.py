"""Run a generated kernel: on this machine, as ordinary C++, or wherever a test has it run.

A :class:`Memory` holds the buffers that the views of a call lie in, with room around every view
that must stay as it was.
"""

from __future__ import annotations

import atexit
import ctypes
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tracea_graph.config import Environment
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.dialect import HOST, Target
from tracea_graph.kernels.gpu.emitter import kernel_preamble
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.launch import Launch, TensorMap
from tracea_graph.kernels.program import Buffer, View
from tracea_graph.toolchain.compilers import COMPILE_SECONDS, find_compiler
from tracea_graph.toolchain.object_cache import ObjectCache, sha256_of_parts

Array = npt.NDArray[Any]

NUMPY: Mapping[DType, Any] = {
    DType.F32: np.float32, DType.F16: np.float16, DType.BF16: ml_dtypes.bfloat16,
    DType.BOOL: np.bool_, DType.I32: np.int32, DType.I64: np.int64, DType.U8: np.uint8,
    DType.I8: np.int8, DType.F8E4M3FN: ml_dtypes.float8_e4m3fn,
    DType.F8E5M2: ml_dtypes.float8_e5m2,
}  # fmt: skip
HERE = Target(HOST, ARCHITECTURES["sm_90a"])
POISON = 0x7B
_TOGETHER = 16
"""Kernels that are compiled at once."""
ROOM = 24
"""Elements around a view; not a multiple of a run, so that what lies behind it is unaligned."""
FLAGS = ("-std=c++17", "-Og", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing",
         "-fno-math-errno", "-w")  # fmt: skip


@dataclass
class Memory:
    """Buffers by number, as bytes, each with the type of its elements.

    Views start at a multiple of ``step`` elements and of 16 bytes, unless they are asked to start
    later.
    """

    step: int = 8
    buffers: list[Array] = field(default_factory=list)
    views: list[tuple[View, Any]] = field(default_factory=list)

    def put(self, array: Array, lead: int = 0, pad: int = 0, order: Sequence[int] = ()) -> View:
        """A view of a copy: ``lead`` elements too late, its rows ``pad`` elements apart, its axes
        stored in an ``order`` (the last one innermost)."""
        view = self.empty(array.shape, array.dtype, lead, pad, order)
        self.of(view)[...] = array
        return view

    def empty(
        self, shape: Sequence[int], dtype: Any, lead: int = 0, pad: int = 0,
        order: Sequence[int] = (),
    ) -> View:  # fmt: skip
        """A view of new elements, which are poisoned."""
        strides, step = [0] * len(shape), 1
        for axis in reversed(order or range(len(shape))):
            strides[axis] = step
            step = step * shape[axis] + (pad if step == 1 else 0)
        size = np.dtype(dtype).itemsize
        step_of = max(self.step, 16 // size)
        first = -(-ROOM // step_of) * step_of
        count = max(step, 1) + lead + 2 * max(first, ROOM)
        kept = np.full(count * size + 16, POISON, np.uint8)
        start = -kept.ctypes.data % 16  # as a GPU's allocator has it
        self.buffers.append(kept[start : start + count * size])
        buffer = Buffer("temp", len(self.buffers) - 1)
        view = View(buffer, tuple(shape), tuple(strides), first + lead)
        self.views.append((view, np.dtype(dtype)))
        return view

    def of(self, view: View) -> Array:
        """What a view shows, writable."""
        dtype = next(d for v, d in self.views if v.buffer == view.buffer)
        # NumPy takes no strides of e5m2
        flat = self.buffers[view.buffer.index].view(np.uint8 if dtype.itemsize == 1 else dtype)
        steps = [int(s) * dtype.itemsize for s in view.strides]  # type: ignore[call-overload]
        shown = np.lib.stride_tricks.as_strided(flat[int(view.offset) :], view.dims, steps)  # type: ignore[arg-type, call-overload]
        return shown.view(dtype)

    def address(self, buffer: Buffer) -> int:
        return int(self.buffers[buffer.index].ctypes.data)

    def untouched(self, view: View) -> bool:
        """Whether what lies around a view is as it was."""
        kept, size = self.buffers[view.buffer.index], self.of(view).itemsize
        inside = np.zeros(kept.size // size, np.bool_)
        steps = [int(s) for s in view.strides]  # type: ignore[call-overload]
        shown = np.lib.stride_tricks.as_strided(inside[int(view.offset) :], view.dims, steps)  # type: ignore[arg-type, call-overload]
        shown[...] = True
        return bool((kept.reshape(-1, size)[~inside] == POISON).all())


def compiled(sources: Sequence[KernelSource]) -> list[bytes]:
    """Return a shared object for each kernel in the host dialect, through the cache.

    What the cache lacks is compiled together: most of a kernel's compilation is the compiler's
    start and the templates that others use too.
    """
    identity = find_compiler().identity
    store = ObjectCache(Environment().cache / "test-gpu-kernels")
    keys = {source: sha256_of_parts(identity, *FLAGS, source.text) for source in sources}
    texts = {key: source for source, key in keys.items()}  # some differ in shared memory alone
    found = {key: store.get(key) for key in texts}
    missing = [key for key in found if found[key] is None]
    for i in range(0, len(missing), _TOGETHER):
        some = missing[i : i + _TOGETHER]
        data = _built([texts[key] for key in some])
        for key in some:
            store.put(key, data)
            found[key] = data
    return [data for source in sources if (data := found[keys[source]]) is not None]


def _built(sources: Sequence[KernelSource]) -> bytes:
    """Compile kernels to one shared object."""
    compiler, (preamble, folder) = find_compiler(), _preamble()
    parsed = all(preamble in source.text for source in sources)
    texts = [source.text.replace(preamble, "") if parsed else source.text for source in sources]
    if len(sources) > 1:
        assert parsed, "kernels for other architectures are compiled one by one"
        texts = [_part(i, s, text) for i, (s, text) in enumerate(zip(sources, texts, strict=True))]
    include = ("-include", str(folder / "preamble.h")) if parsed else ()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "kernels.cpp").write_text("\n".join(texts))
        command = [*compiler.command, *FLAGS, *include, "kernels.cpp", "-o", "kernels.so"]
        done = subprocess.run(
            command, cwd=name, capture_output=True, text=True, check=False,
            timeout=COMPILE_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[:4000]
        return (Path(name) / "kernels.so").read_bytes()


def _part(number: int, source: KernelSource, text: str) -> str:
    """A kernel's own text, its functions in a namespace that no other kernel has."""
    opened, closed, space = "namespace tracea {", "}  // namespace tracea", f"part{number}"
    own, exports, macro = text.rpartition("\nEXPORT")
    assert own.count(opened) == own.count(closed) == text.count(opened) > 0
    own = own.replace(opened, f"{opened} namespace {space} {{").replace(closed, "}" + closed)
    return f"{own}\n{opened} using {space}::{source.symbol}; {closed}{exports}{macro}"


@cache
def _preamble() -> tuple[str, Path]:
    """What every kernel's text begins with, and a folder that has it as a header.

    Where the compiler is gcc it has been parsed, which takes half of a kernel's compilation.
    """
    folder, text = Path(tempfile.mkdtemp(prefix="preamble")), kernel_preamble(HERE)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "preamble.h").write_text(text)
    if find_compiler().family == "gcc":
        find_compiler().run((*FLAGS, "-x", "c++-header", "preamble.h"), folder)
    return text, folder


@cache
def library(source: KernelSource) -> ctypes.CDLL:
    """A kernel in the host dialect, loaded."""
    with tempfile.TemporaryDirectory() as name:
        made = Path(name) / "kernel.so"
        made.write_bytes(*compiled([source]))
        return ctypes.CDLL(str(made))


def encoded(m: TensorMap) -> bytes:
    """A tensor map as ``wgmma_host.h`` takes it."""
    assert m.fits
    dims, box = (list(x) + [1] * (5 - len(x)) for x in (m.dims, m.box))
    strides = [*m.strides] + [0] * (4 - len(m.strides))
    size = int(m.dtype.size)
    made = struct.pack("<Q5Q4Q5HBB", m.address, *dims, *strides, *box, len(m.dims), size)
    if m.window is not None:
        before, after = m.window.before, m.window.after
        lower = [-int(n) for n in before]  # type: ignore[call-overload]
        for side in (lower, after, m.window.steps):
            made += struct.pack("<3b", *side, *[1] * (3 - len(side)))
        made += struct.pack("<xH", m.box[1])
    return made.ljust(104, b"\0") + bytes([m.rounded]) + bytes(23)


class LeftBehind(ctypes.Structure):
    """What the grid before a kernel leaves in memory, as ``dialect_host.h`` takes it."""

    _fields_ = (("to", ctypes.c_void_p), ("source", ctypes.c_void_p),
                ("bytes", ctypes.c_int64), ("written", ctypes.c_int32))  # fmt: skip


def run_after(
    source: KernelSource, launch: Launch, memory: Memory, written: Collection[int], seed: int = 0,
    present: Collection[int] = (),
) -> None:  # fmt: skip
    """Launch a kernel whose operands come when it waits for the grid before it.

    Buffers that the launch calls constant are there from the start, as are those ``present``.
    Raises AssertionError if a ``written`` buffer has changed by then.
    """
    constant = {a.value.buffer.index for a in launch.arguments
                if a.kind == "fixed" and isinstance(a.value, View)}  # fmt: skip
    before, held = list[LeftBehind](), list[Array]()
    for i, buffer in enumerate(memory.buffers):
        if i in constant or (i in present and i not in written):
            continue
        held.append(buffer.copy())
        if i not in written:
            buffer[...] = 0xFF  # NaN of every type
        before.append(LeftBehind(buffer.ctypes.data, held[-1].ctypes.data, buffer.nbytes,
                                 int(i in written)))  # fmt: skip
    array = (LeftBehind * len(before))(*before)
    getattr(library(source), f"{source.symbol}_after")(array, len(before))
    run_here(source, launch, memory, seed)


def run_here(source: KernelSource, launch: Launch, memory: Memory, seed: int = 0) -> None:
    """Launch a kernel on this machine.  A seed other than 0 lets threads go in other orders."""
    grid = launch.blocks({})
    if 0 in grid:
        return
    made = launch.words({}, memory.address, encoded)
    words = [ctypes.create_string_buffer(w, len(w)) for w in made]
    arguments = (ctypes.c_void_p * len(words))(*(ctypes.addressof(w) for w in words))
    function = getattr(library(source), source.symbol)
    function.restype = ctypes.c_char_p
    said = function(arguments, (ctypes.c_int32 * 3)(*grid), launch.threads, launch.shared, seed)
    assert said is None, said.decode()
