"""What a stand-alone library of kernels holds: the calls that each C function makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tracea_graph.kernels.activations import ACTIVATIONS
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.program import LibraryContents

__all__ = ["STANDALONE", "kernels_of_functions"]

STANDALONE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": ("gemm",),
        "conv2d": (
            "gemm", "conv", "conv_first_layer", "depthwise", "conv_dispatch", "conv_plain",
            "reorder_to_nchw16c", "reorder_to_nchw",
        ),
        "attention": ("attention",),
        "norm": ("norm",),
    }
)  # fmt: skip
"""Kernel calls by function of ``tracea.h``, as ``runtime/c_api.h`` makes them."""
_ACTIVATED = ("gemm", "conv2d")


def kernels_of_functions(ops: Sequence[str]) -> LibraryContents:
    """Return the kernels and chains that the C functions ``ops`` call.

    Raises KeyError for an unknown function.
    """
    kernels = {kernel for op in ops for call in STANDALONE[op] for kernel in CALLS[call].needs}
    chains = tuple(ACTIVATIONS.values()) if {*ops} & {*_ACTIVATED} else ()
    return LibraryContents(kernels=tuple(sorted(kernels)), chains=chains)
