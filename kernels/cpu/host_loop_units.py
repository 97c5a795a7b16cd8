"""Compilation units of host loops: those that few models need are compiled on demand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from tracea_graph.kernels.cpu.calls import CALLS

__all__ = ["COMMON", "LOOP_UNITS", "unit_of", "units_for"]

COMMON = "common"
"""The unit of all ops that are not listed, which is part of the runtime."""
LOOP_UNITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "image": (
            "conv", "conv_first_layer", "depthwise", "winograd", "pool", "global_pool",
            "reorder_to_nchw16c", "reorder_to_nchw", "conv_plain", "resize", "channel_shuffle",
            "round_images", "conv_dispatch",
        ),
        "further": (
            "gemm_block_sparse", "gemm_bitmap", "gemm_nbits", "conv_nhwc", "recurrent", "top_k",
            "arg_reduce", "matmul_bytes",
        ),
    }
)  # fmt: skip
"""Ops by unit, ``runtime/<name>_loops.cpp``; each of these ops has kernels."""


def unit_of(op: str) -> str:
    """The unit that has the host loop of an op."""
    return next((unit for unit, ops in LOOP_UNITS.items() if op in ops), COMMON)


def units_for(kernels: Collection[str]) -> tuple[str, ...]:
    """Return the host-loop units to compile in addition to the runtime.

    A unit is compiled if it has an op whose kernels are all among ``kernels``.
    """
    held = set(kernels)
    runs = {s.op for s in CALLS.values() if s.needs and held.issuperset(s.needs)}
    return tuple(unit for unit, ops in LOOP_UNITS.items() if runs.intersection(ops))
