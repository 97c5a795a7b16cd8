"""Networks of large images on GPUs in halves: programs in the host dialect, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Array
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.lowering import image_halves
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.pool import PoolParams

pytestmark = pytest.mark.compiler
POINT = ConvWindow((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
AROUND = ConvWindow((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
ADD = Chain(("full", "full"), (Step("add", (0, 1)),), (2,))


def network() -> RegionParams:
    """Return a net of five steps, four of which read or make 2048 numbers of an image."""
    steps = (
        RegionStep(ConvParams(3, 8, AROUND, bias=True), (0, 1, 2)),
        RegionStep(ConvParams(8, 8, AROUND, groups=8, epilogue=ADD), (6, 3, 6)),
        RegionStep(ElementwiseParams(ADD), (6, 7)),
        RegionStep(ConvParams(8, 4, POINT), (8, 4)),
        RegionStep(ConvParams(4, 8, POINT, epilogue=ADD), (9, 5, 6)),
    )
    return RegionParams(6, tuple(replace(s, narrow="f16") for s in steps), (10,))


WEIGHTS = ((8, 3, 3, 3), (8,), (8, 1, 3, 3), (4, 8, 1, 1), (8, 4, 1, 1))


@pytest.mark.parametrize("images", [1, 2, 5])
def test_halves_make_the_whole(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that a later step reads as well lie side by side."""
    monkeypatch.setattr(image_halves, "_LARGE", images * 2 * 8 * 16 * 16 - 1)
    rng, params = np.random.default_rng(0), network()
    arrays: list[Array] = [
        rng.standard_normal(s).astype(np.float32) for s in ((images, 3, 16, 16), *WEIGHTS)
    ]
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays)
    most = 3 * TOLERANCE[DType.F16] * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=most)


def halved(params: RegionParams, images: int | str = 32) -> int:
    """Return how many steps are halved, at 32 images."""
    specs = [TensorSpec(DType.F32, s) for s in ((images, 3, 16, 16), *WEIGHTS)]
    w = GpuProgramWriter(tuple(specs), tuple(params.infer(specs)), sizes={"n": 32})
    found = image_halves.halved_steps(w, params, w.slots("input"))
    return found.end if found else 0


@pytest.mark.parametrize("images", [32, "n"])
def test_steps_of_large_images_are_halved(
    images: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert halved(network(), images) == 0
    monkeypatch.setattr(image_halves, "_LARGE", 32 * 2 * 8 * 16 * 16 - 1)
    assert halved(network(), images) == 4
    specs = [TensorSpec(DType.F32, s) for s in ((images, 3, 16, 16), *WEIGHTS)]
    calls = program_of(network(), specs, DType.F32, {"n": 32}).calls
    windows = [c.step for c in calls if c.op in ("conv", "depthwise", "gemm")]
    assert windows == [0, 1, 3, 0, 1, 3, 4]


def test_results_of_the_program_and_means_of_images_are_not_halved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(image_halves, "_LARGE", 0)
    net = network()
    assert halved(replace(net, results=(7, 10))) == 1
    mean = RegionStep(PoolParams("average", None), (6,), narrow="f16")
    assert halved(replace(net, steps=(net.steps[0], mean), results=(7,))) == 1
