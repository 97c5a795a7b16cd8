"""The library of kernels that PyTorch's operators call, views of tensors, and packed weights."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tracea_graph.commands.build_kernel_library import build_kernels
from tracea_graph.errors import BuildError, TraceaError
from tracea_graph.native_library import NativeLibrary, PreparedWeights, TensorView, view_of
from tracea_graph.target import HOST, read_environment, target_of
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.torch.fallback_log import log_fallback

__all__ = ["OPS", "kernel_library", "packed_weights", "tensor_view", "use_library"]

OPS = ("gemm", "conv2d", "attention")
"""Operations that the library has to hold."""
_NUMBERS = {torch.float32: 1, torch.bool: 9}
"""``TraceaDType`` of the element types that kernels take."""


class _Loaded:
    """The library of this process; None before its first use, and where none can be built."""

    def __init__(self) -> None:
        self.library: NativeLibrary | None = None
        self.tried = False
        self.threads = 0
        self.lock = Lock()


_LOADED = _Loaded()


def use_library(path: str | Path) -> None:
    """Call the kernels of a library that ``tracea kernels build`` wrote, instead of building one.

    Raises KernelError for another version of the C interface, OSError if it cannot be loaded.
    """
    library = NativeLibrary(Path(path).resolve())
    with _LOADED.lock:
        _LOADED.library, _LOADED.tried, _LOADED.threads = library, True, 0
        _PACKS.clear()


def kernel_library() -> NativeLibrary | None:
    """Return the library, on as many threads as PyTorch has; None if it cannot be built.

    The first use in a process builds it for this machine: about half a minute with an empty cache
    of compiled kernels, two seconds with a full one.
    """
    if not _LOADED.tried:
        with _LOADED.lock:
            if not _LOADED.tried:
                _LOADED.library = _build()
                _LOADED.tried = True
    library = _LOADED.library
    if library is not None and _LOADED.threads != (count := torch.get_num_threads()):
        library.set_threads(count)
        _LOADED.threads = count
    return library


def _build() -> NativeLibrary | None:
    environment = read_environment()
    try:
        levels = target_of(HOST, "fp32").levels[-1:]
        with ScratchFolder("torch") as folder:  # a loaded library needs its file no more
            built = build_kernels(OPS, Path(folder), environment=environment, levels=levels)
            library = NativeLibrary(built.path)
    except (BuildError, TraceaError, OSError) as error:
        log_fallback("library", str(error).splitlines()[0], logging.WARNING)
        return None
    return library if library.isa else None


def tensor_view(tensor: torch.Tensor) -> TensorView:
    """Return a view of a tensor's memory.  Raises KeyError for an element type without kernels."""
    return view_of(tensor.data_ptr(), _NUMBERS[tensor.dtype], tensor.shape, tensor.stride())


@dataclass
class _Pack:
    """Packed weights, None after only one use, and the state of the tensors they come from."""

    state: tuple[int, int, int, int]
    bias: weakref.ref[torch.Tensor] | None
    packed: PreparedWeights | None = None


_PACKS: WeakIdKeyDictionary[torch.Tensor, dict[Hashable, _Pack]] = WeakIdKeyDictionary()
_PACKING = Lock()


def packed_weights(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    key: Hashable,
    pack: Callable[[], PreparedWeights],
) -> PreparedWeights | None:
    """Return packed weights if they did not change since the last call; else None.

    The first call with a tensor therefore returns None, and weights in training are never packed,
    since they change between calls.  Changes are recognized by PyTorch's version counter, which
    misses those made through ``.data``.  Tensors made in inference mode have no counter and are
    not packed.
    """
    if weight.is_inference() or (bias is not None and bias.is_inference()):
        return None
    state = (weight._version, weight.data_ptr()) + (
        (0, 0) if bias is None else (bias._version, bias.data_ptr())
    )
    with _PACKING:
        known = _PACKS.setdefault(weight, {})
        found = known.get(key)
        same = found is not None and found.state == state
        if found is None or not same or (found.bias() if found.bias else None) is not bias:
            known[key] = _Pack(state, None if bias is None else weakref.ref(bias))
            return None
        if found.packed is None:
            found.packed = pack()
        ready: PreparedWeights | None = found.packed
        return ready
