"""1 × 1 convolutions as matmuls on GPUs: programs in the host dialect, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Array
from tests.kernels.gpu.programs import run_program
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.lowering import convolutions, pixel_matmuls
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep

pytestmark = pytest.mark.compiler
ADD_RELU = Chain(("full", "full"), (Step("add", (0, 1)), Step("relu", (2,))), (3,))
POINT = ConvWindow((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))


def arrays_of(params: ConvParams, images: int, side: int) -> list[Array]:
    rng = np.random.default_rng(0)
    shapes = [(images, params.channels, side, side), params.shape, (params.filters,),
              (images, params.filters, side, side)]  # fmt: skip
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def close(got: Array, want: Array) -> None:
    most = 3 * TOLERANCE[DType.F16] * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=most)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_pixels_share_a_row(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_matmuls, "pixels_of_a_row", lambda *_: count)
    params = ConvParams(24, 40, POINT, bias=True, epilogue=ADD_RELU)
    arrays = arrays_of(params, 8, 40)
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays, DType.F16)
    close(got, want)


@pytest.mark.parametrize("count", [1, 2])
def test_factors_of_images_are_in_their_weights(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixel_matmuls, "pixels_of_a_row", lambda *_: count)
    first, last = ConvParams(24, 64, POINT), ConvParams(64, 40, POINT, bias=True)
    product = Chain(("full", "full"), (Step("mul", (0, 1)),), (2,))
    scaled = ElementwiseParams(product)
    steps = (
        RegionStep(first, (0, 2), narrow="f16"), RegionStep(first, (1, 2), narrow="f16"),
        RegionStep(scaled, (5, 6), narrow="f16"), RegionStep(last, (7, 3, 4), narrow="f16"),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    shapes = (8, 24, 40, 40), (8, 24, 1, 1), first.shape, last.shape, (40,)
    arrays: list[Array] = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    params = RegionParams(5, steps, (8,))
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays)
    close(got, want)


@pytest.mark.parametrize(("channels", "filters", "groups"), [(24, 48, 24), (96, 72, 3)])
def test_groups_of_channels(channels: int, filters: int, groups: int) -> None:
    """Two filters for each channel, and groups that have a matmul each."""
    window = ConvWindow((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    params = ConvParams(channels, filters, window, groups, bias=True, epilogue=ADD_RELU)
    arrays = arrays_of(params, 2, 6)
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays, DType.F16)
    close(got, want)


def test_windows_share_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "MANY_SHARED", 1)
    params = ConvParams(3, 24, ConvWindow((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)), bias=True)
    rng = np.random.default_rng(0)
    shapes = (2, 3, 60, 60), params.shape, (24,)
    arrays: list[Array] = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays, DType.F16)
    close(got, want)
