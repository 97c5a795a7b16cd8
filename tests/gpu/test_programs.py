"""Programs of ops that several kernels compute, on a GPU, against NumPy.

Those of ``tests/kernels/gpu`` run in the host dialect; these are one of each kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from tests.gpu.device import Device, Loaded
from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Array, Memory
from tests.kernels.gpu.programs import run_program
from tests.kernels.gpu.test_decoder_layers import after_norm, gated, projected, rows_of
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call
from tracea_graph.ops import OpParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.attention_tiles import TileGrid
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.norm import Norm

pytestmark = pytest.mark.gpu
HEADS = ("heads",) * 4
VOLUME = ConvWindow((3, 2, 3), (2, 1, 1), (1, 1, 1), (2, 0, 1, 1, 1, 1))
BYTES = IntegerOperand(DType.I8, -7)


def floats(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def integers(*shape: int) -> Array:
    return np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)


CASES: dict[str, tuple[OpParams, list[Array]]] = {
    "wide heads": (
        AttentionParams(2, 160, 136, 0.08, layouts=HEADS, causal="top"),
        [floats(2, 2, 20, 160), floats(2, 2, 23, 160), floats(2, 2, 23, 136)],
    ),
    "tiles of scores": (
        AttentionParams(2, 16, 24, 0.2, layouts=HEADS, tiles=TileGrid(16, 8, 2, 3)),
        [floats(2, 2, 31, 16), floats(2, 2, 22, 16), floats(2, 2, 22, 24),
         np.array([0, 1, 5], np.int32)],
    ),
    "volumes": (ConvParams(8, 16, VOLUME), [floats(2, 8, 5, 4, 6), floats(16, 8, 3, 2, 3)]),
    "volumes of integers": (
        ConvIntegerParams(8, 16, VOLUME, BYTES), [integers(2, 5, 4, 6, 8), integers(16, 144)],
    ),
    "signals of integers": (
        ConvIntegerParams(16, 24, ConvWindow((3,), (2,), (1,), (1, 1)), BYTES),
        [integers(2, 21, 16), integers(24, 48)],
    ),
    "channel norm": (
        ChannelNormParams(Norm("layer", 1e-5), 2, 4), [floats(2, 6, 3, 5), floats(6), floats(6)],
    ),
    "embeddings of two types": (
        EmbeddingParams(2), [floats(9, 20), np.array([[1, -3]]),
                             floats(7, 20).astype(np.float16), np.array([[6, 0]], np.int32)],
    ),
}  # fmt: skip


@cache
def device() -> Device:
    return Device()


def run_on_device(chosen: Sequence[tuple[Call, Variant]], memory: Memory) -> None:
    """Compile kernels and run them one after another."""
    target = Target(CUDA, device().architecture)
    sources = [emit_kernel(call, variant, target) for call, variant in chosen]
    built = compile_sources(sources, [target.architecture.name])
    for (call, variant), one in zip(chosen, built, strict=True):
        device().run(Loaded(one), launch_of(call, variant, target), memory)


@pytest.mark.parametrize("narrow", [DType.F32, DType.F16])
@pytest.mark.parametrize("name", CASES)
def test_programs_compute_what_ops_mean(name: str, narrow: DType) -> None:
    params, arrays = CASES[name]
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    with np.errstate(invalid="ignore"):
        (want,) = params.reference(wide)
    (got,) = run_program(params, arrays, narrow, device().architecture, run_on_device)
    most = max(3 * TOLERANCE[narrow], 3e-6) * np.nanmax(np.abs(want))
    np.testing.assert_allclose(got, want, rtol=0, atol=most)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["norm", "projections", "gate"])
def test_layers_of_decoders(name: str, rows: int) -> None:
    params, arrays = after_norm(), rows_of(rows)
    if name == "projections":
        params, arrays = projected(rows, 600)
    elif name == "gate":
        params, arrays = gated(rows)
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    found = run_program(params, arrays, DType.F32, device().architecture, run_on_device)
    for got, want in zip(found, params.reference(wide), strict=True):
        most = 3 * TOLERANCE[DType.F16] * np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=most)
