"""Call a stand-alone library of kernels from Python, through its C interface.

    kernels = NativeLibrary(Path("build/lib/libtracea_kernels.so"))
    kernels.gemm(view(a), view(b), None, view(c))

Views borrow the memory of NumPy arrays (:func:`view`) or of anything else (:func:`view_of`).  That
memory must live as long as the view is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tracea_graph.errors import TraceaError

__all__ = [
    "ACTIVATIONS", "CPU_DEVICE", "Conv2dParams", "KernelError", "NativeLibrary", "NodeRun",
    "PreparedWeights", "TensorView", "view", "view_of",
]  # fmt: skip

MAX_RANK = 8
_ABI_MAJOR = 1
_MAX_ERROR = 512
CPU_DEVICE = -1
ACTIVATIONS = ("none", "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu")
"""In the order of ``TraceaActivation``."""
_DTYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "bfloat16": 16,
}  # fmt: skip
"""ONNX's numbers of element types, as in ``TraceaDType``."""
STATUSES = ("success", "invalid params", "unsupported config", "cuda error", "cpu error")


class TensorView(ctypes.Structure):
    """``TraceaTensorView``: address, sizes and strides (in elements) of a tensor."""

    _fields_ = (
        ("ptr", ctypes.c_void_p),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("stride", ctypes.c_int64 * MAX_RANK),
        ("dtype", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
    )


class _GemmParams(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_uint32), ("activation", ctypes.c_int32))


class Conv2dParams(ctypes.Structure):
    """``TraceaConv2dParams``; padding is (above, left, below, right)."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("stride", ctypes.c_int32 * 2),
        ("dilation", ctypes.c_int32 * 2),
        ("padding", ctypes.c_int32 * 4),
        ("groups", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("algorithm", ctypes.c_int32),
    )

    @classmethod
    def of(
        cls,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0, 0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        activation: str = "none",
        algorithm: int = 0,
    ) -> Conv2dParams:
        """Make parameters; ``algorithm`` is a ``TraceaConvAlgorithm``."""
        made = cls(ctypes.sizeof(cls))
        made.stride[:], made.dilation[:] = tuple(stride), tuple(dilation)
        made.padding[:] = tuple(padding)
        made.groups, made.activation = groups, ACTIVATIONS.index(activation)
        made.algorithm = algorithm
        return made


class _AttentionParams(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("causal", ctypes.c_int32),
    )


class _NormParams(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("kind", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
    )


@dataclass(frozen=True)
class NodeRun:
    """One run of a node that runs as a generated program.

    * ``sizes``: values of the program's symbols.
    * ``calls``: duration of each kernel call in nanoseconds.
    * ``start``: begin of the run in nanoseconds of the monotonic clock.
    * ``arena``: bytes of memory for values that one call passes to another.
    """

    node: str
    sizes: tuple[int, ...]
    calls: tuple[int, ...]
    start: int
    thread: int
    arena: int = 0

    @property
    def ns(self) -> int:
        """Nanoseconds of all calls."""
        return sum(self.calls)


class _NodeRun(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("node", ctypes.c_char_p),
        ("symbols", ctypes.POINTER(ctypes.c_int64)),
        ("call_ns", ctypes.POINTER(ctypes.c_int64)),
        ("symbol_count", ctypes.c_size_t),
        ("call_count", ctypes.c_size_t),
        ("start_ns", ctypes.c_int64),
        ("thread", ctypes.c_int64),
        ("arena_bytes", ctypes.c_int64),
    )


_ON_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_NodeRun))


class _Observer(ctypes.Structure):
    _fields_ = (("run", _ON_RUN), ("user", ctypes.c_void_p))


class KernelError(TraceaError):
    """A call that a library refused; ``status`` is its ``TraceaStatus``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message or STATUSES[status])
        self.status = status


def view_of(address: int, dtype: int, shape: Sequence[int], strides: Sequence[int]) -> TensorView:
    """Return a view of memory of this process; strides are in elements."""
    if len(shape) > MAX_RANK:
        raise ValueError(f"a view has at most {MAX_RANK} axes, not {len(shape)}")
    made = TensorView(address, len(shape), dtype=dtype, device_id=CPU_DEVICE)
    made.shape[: len(shape)] = list(shape)
    made.stride[: len(strides)] = list(strides)
    return made


def view(array: npt.NDArray[Any]) -> TensorView:
    """Return a view of an array, which it keeps alive.

    Raises ValueError for an element type that ONNX lacks.
    """
    size = array.itemsize
    if any(step % size for step in array.strides):
        raise ValueError("strides are no multiples of the element size")
    strides = [step // size for step in array.strides]
    dtype = _DTYPES.get(array.dtype.name)
    if dtype is None:
        raise ValueError(f"there is no view of {array.dtype}")
    made = view_of(array.ctypes.data, dtype, array.shape, strides)
    made.array = array
    return made


_View = ctypes.POINTER(TensorView)


class PreparedWeights:
    """Weights packed by :meth:`NativeLibrary.prepare_gemm` or ``prepare_conv2d``."""

    def __init__(self, library: NativeLibrary, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    def __call__(self, x: TensorView, y: TensorView) -> None:
        """Compute ``y``.  Raises KernelError."""
        self._library.check("tracea_run_prepared", self._handle, x, y, None)

    def __del__(self) -> None:
        if self._handle:
            self._library.release(self._handle)
            self._handle = ctypes.c_void_p()


class NativeLibrary:
    """A library with the functions of ``tracea.h``.

    Raises KernelError if its C interface has another major version, OSError if the library cannot
    be loaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._functions = ctypes.CDLL(str(path))
        self._functions.tracea_isa.restype = ctypes.c_char_p
        self._functions.tracea_get_last_error.restype = ctypes.c_size_t
        self._functions.tracea_release_prepared.argtypes = (ctypes.c_void_p,)
        self._functions.tracea_release_prepared.restype = None
        version = self.version
        if version[0] != _ABI_MAJOR:
            found = ".".join(map(str, version))
            raise KernelError(
                2, f"{path} has version {found} of the C interface, not {_ABI_MAJOR}"
            )

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version of the library's C interface."""
        number = self._functions.tracea_version()
        return number >> 16, number & 0xFFFF

    @property
    def isa(self) -> str:
        """The instruction set that the kernels use on this machine; "" if there is none."""
        found: bytes = self._functions.tracea_isa()
        return found.decode()

    def observe(self, on_run: Callable[[NodeRun], None]) -> None:
        """Call ``on_run`` after every run of this library's programs in this process.

        Runs in ONNX Runtime are included.  ``on_run`` is called on the thread of the run, which
        waits for it; exceptions that it raises are printed and ignored.  Only one function is
        called: ``on_run`` replaces an earlier one.  Raises KernelError if the library's C
        interface is older than version 1.1.
        """
        if self.version < (1, 1):
            raise KernelError(2, f"{self.path} has an older C interface, without observers")
        made = _Observer(_ON_RUN(lambda _, run: on_run(_node_run(run.contents))))
        self._set_observer(ctypes.byref(made))
        # kept for good: a run that began before may still call it
        _OBSERVERS.append((str(self.path), on_run, made))

    def stop_observing(self, on_run: Callable[[NodeRun], None]) -> None:
        """Stop calling ``on_run``, unless another function has replaced it."""
        last = next((one for one in reversed(_OBSERVERS) if one[0] == str(self.path)), None)
        if last is not None and last[1] is on_run:
            self._set_observer(None)

    def _set_observer(self, observer: Any) -> None:
        self._functions.tracea_observe.restype = None
        self._functions.tracea_observe(observer)

    def set_threads(self, count: int) -> None:
        """Set the threads of each call; 0: one per usable processor."""
        self.check("tracea_set_threads", ctypes.c_int32(count))

    def check(self, name: str, *args: Any) -> None:
        """Call a function.  Raises KernelError unless it succeeds."""
        passed = [ctypes.byref(a) if isinstance(a, ctypes.Structure) else a for a in args]
        status = getattr(self._functions, name)(*passed)
        if status:
            text = ctypes.create_string_buffer(_MAX_ERROR)
            self._functions.tracea_get_last_error(text, ctypes.c_size_t(_MAX_ERROR))
            raise KernelError(status, text.value.decode(errors="replace"))

    def gemm(
        self, a: TensorView, b: TensorView, bias: TensorView | None, c: TensorView,
        activation: str = "none",
    ) -> None:  # fmt: skip
        """Compute c = activation(a · b + bias)."""
        self.check("tracea_gemm", a, b, bias, c, _gemm_params(activation), None)

    def conv2d(
        self, x: TensorView, w: TensorView, bias: TensorView | None, y: TensorView,
        params: Conv2dParams | None = None,
    ) -> None:  # fmt: skip
        """Compute y = activation(x * w + bias), where * is convolution."""
        self.check("tracea_conv2d", x, w, bias, y, params, None)

    def attention(
        self, q: TensorView, k: TensorView, v: TensorView, mask: TensorView | None, y: TensorView,
        scale: float = 0.0, causal: int = 0, softcap: float = 0.0,
    ) -> None:  # fmt: skip
        """Compute y = softmax(scale · q · kᵀ + mask) · v; scale 0 means 1 / sqrt(head size)."""
        params = _AttentionParams(ctypes.sizeof(_AttentionParams), scale, softcap, causal)
        self.check("tracea_attention", q, k, v, mask, y, params, None)

    def norm(
        self, x: TensorView, gamma: TensorView | None, beta: TensorView | None, y: TensorView,
        rms: bool = False, epsilon: float = 1e-5,
    ) -> None:  # fmt: skip
        """Normalize the rows of x."""
        params = _NormParams(ctypes.sizeof(_NormParams), int(rms), epsilon)
        self.check("tracea_norm", x, gamma, beta, y, params, None)

    def prepare_gemm(
        self, b: TensorView, bias: TensorView | None = None, activation: str = "none"
    ) -> PreparedWeights:
        """Pack the right operand of a product for many calls."""
        return self._prepare("tracea_prepare_gemm", b, bias, _gemm_params(activation))

    def prepare_conv2d(
        self, w: TensorView, bias: TensorView | None = None, params: Conv2dParams | None = None
    ) -> PreparedWeights:
        """Pack the filters of a convolution for many calls."""
        return self._prepare("tracea_prepare_conv2d", w, bias, params)

    def run_program(
        self, plan: Sequence[int], inputs: Sequence[TensorView], outputs: Sequence[TensorView]
    ) -> None:
        """Run the program that is encoded in ``plan``, an attribute of a node."""
        words = (ctypes.c_int64 * len(plan))(*plan)
        self.check(
            "tracea_run_program", words, ctypes.c_size_t(len(plan)),
            (TensorView * len(inputs))(*inputs), ctypes.c_size_t(len(inputs)),
            (TensorView * len(outputs))(*outputs), ctypes.c_size_t(len(outputs)), None,
        )  # fmt: skip

    def trim(self) -> None:
        """Free the memory that the library keeps between calls."""
        self._functions.tracea_trim()

    def release(self, handle: ctypes.c_void_p) -> None:
        """Release packed weights."""
        self._functions.tracea_release_prepared(handle)

    def _prepare(self, name: str, *args: Any) -> PreparedWeights:
        handle = ctypes.c_void_p()
        self.check(name, *args, ctypes.byref(handle))
        return PreparedWeights(self, handle)


_OBSERVERS: list[tuple[str, Callable[[NodeRun], None], _Observer]] = []


def _node_run(run: _NodeRun) -> NodeRun:
    return NodeRun(
        run.node.decode(errors="replace"), tuple(run.symbols[: run.symbol_count]),
        tuple(run.call_ns[: run.call_count]), run.start_ns, run.thread, run.arena_bytes,
    )  # fmt: skip


def _gemm_params(activation: str) -> _GemmParams:
    return _GemmParams(ctypes.sizeof(_GemmParams), ACTIVATIONS.index(activation))
