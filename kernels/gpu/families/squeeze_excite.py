"""Squeeze-and-excitation of images (Hu et al., 2018) in one launch: fp16 and bf16.

A cluster of blocks computes an image on sm_90a, one block on other architectures.  Blocks of a
cluster take slices of the channels; slices of few channels are wider, and blocks share them by
pixels, so that each reads whole sectors of memory.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from tracea_graph.ir import DType, product
from tracea_graph.kernels import chain_source
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import (
    Launch,
    constant_buffer_flag,
    f32,
    i32,
    pointer,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import FULL, Chain, Step

__all__ = ["MOST_SHARED", "RUN", "launch", "name", "parameters", "shared"]

RUN = 8
"""Number of channels that a thread reads at a time, 16 bytes."""
MOST_SHARED = 48 << 10
"""Maximum bytes of shared memory of a block."""
_GAIN = 1.15
"""Factor by which blocks must have less work for a slice of channels to be shared by pixels."""


def name(call: Call) -> str:
    named = f"squeeze_excite_{call.attributes['squeezed']}"
    return f"{named}_{call.chain.key:016x}" if call.chain else named


def _sizes(call: Call) -> tuple[int, int, int]:
    """Return pixels of an image, runs of its channels, and hidden units; 1 if they are unknown."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    _, high, wide, channels = named["x"].dims
    found = (product((high, wide)), channels, named["w1"].dims[0])
    pixels, channels, hidden = (n if isinstance(n, int) else 1 for n in found)
    return pixels, ceil(channels / RUN), hidden


def _parts(pixels: int, runs: int, cluster: int) -> int:
    """Return the number of blocks that share a slice of channels by pixels."""

    def work(parts: int) -> int:
        return ceil(runs * parts / cluster) * ceil(pixels / parts)

    best = 1
    for parts in (2, 4):
        if parts < cluster and work(parts) * _GAIN < work(best):
            best = parts
    return best


def _held(call: Call, variant: Variant) -> int:
    """Return the maximum number of runs of channels of a block."""
    pixels, runs, _ = _sizes(call)
    cluster = variant.params["cluster"]
    return ceil(runs * _parts(pixels, runs, cluster) / cluster)


def shared(call: Call, variant: Variant) -> int:
    _, _, hidden = _sizes(call)
    held, cluster, quads = _held(call, variant), variant.params["cluster"], ceil(hidden / 4)
    numbers = variant.threads * RUN + 3 * held * RUN + 2 * quads * 4
    if cluster == 1:
        return 4 * numbers
    weights = 2 * hidden * held * RUN
    return 4 * numbers + cluster * quads * 16 + 16 + 2 * weights


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    assert call.chain is not None
    squeezed = Chain((FULL,), (Step(str(call.attributes["squeezed"]), (0,)),), (1,))
    squeezed = replace(squeezed, fast_math=True)
    return {
        **chain_parameters.chain_template_parameters(call.chain),
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "squeezed": chain_source.chain_results(squeezed)[0].expression,
        "squeezing": chain_source.chain_statements(squeezed),
        "kind": call.dtype,
        "instructions": [],
    }


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, y, own = named["x"], named["y"], TYPES[call.dtype]
    pixels, runs, hidden = _sizes(call)
    cluster = variant.params["cluster"]
    constants = [(named[n], own if n in ("w1", "w2") else DType.F32)
                 for n in ("w1", "bias1", "w2", "bias2")]  # fmt: skip
    made = (
        pointer(x, own), *(pointer(view, dtype) for view, dtype in constants), pointer(y, own),
        i32(x.strides[0]), i32(x.strides[2]), i32(y.strides[0]), i32(y.strides[2]),
        i32(pixels), i32(runs), i32(hidden), i32(_parts(pixels, runs, cluster)),
        i32(_held(call, variant)), f32(1 / pixels),
        *(constant_buffer_flag(view) for view, _ in constants),
    )  # fmt: skip
    blocks = product((x.dims[0], cluster))
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), made)
