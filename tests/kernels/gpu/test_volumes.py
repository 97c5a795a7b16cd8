"""Convolutions over three axes on GPUs: programs in the host dialect, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.gpu.launches import programs, runs
from tests.graphs import Net
from tests.kernels.gpu.cases import TOLERANCE, conv
from tests.kernels.gpu.machine import Memory
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.kernel_selection import launches_for, variants_of
from tracea_graph.kernels.gpu.launch_order import constant_calls
from tracea_graph.kernels.program import Call, View
from tracea_graph.onnx_io import load
from tracea_graph.onnx_io.model_validation import plain_session
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.pool import PoolParams

pytestmark = pytest.mark.compiler
ADD_RELU = Chain(("full", "full"), (Step("add", (0, 1)), Step("relu", (2,))), (3,))
ONES = (1, 1, 1)
WINDOWS = {
    "same": ConvWindow((3, 3, 3), ONES, ONES, ONES * 2),
    "strided": ConvWindow((3, 2, 3), (2, 1, 2), (1, 1, 1), (2, 0, 1, 0, 1, 1)),
    "dilated": ConvWindow((2, 3, 1), (1, 2, 1), (3, 1, 1), (4, 1, 0, 0, 1, 0)),
    "frames alone": ConvWindow((1, 3, 3), ONES, ONES, (0, 1, 1, 0, 1, 1)),
    "every other frame": ConvWindow((1, 3, 3), (2, 1, 1), ONES, (0, 1, 1, 0, 1, 1)),
    "depth alone": ConvWindow((3, 1, 1), (2, 1, 1), ONES, (1, 0, 0, 1, 0, 0)),
    "wider than the volume": ConvWindow((3, 1, 3), ONES, (7, 1, 1), (7, 0, 0, 7, 0, 0)),
}


GROUPS = (1, 2, 8)
"""Dense, grouped and depthwise filters of eight channels."""
USUAL = {
    *((name, 1, DType.F32) for name in WINDOWS), ("same", 2, DType.F32),
    ("strided", 8, DType.F32), ("depth alone", 8, DType.F32),
    ("wider than the volume", 8, DType.F32), ("same", 1, DType.F16),
}  # fmt: skip
CASES = [
    pytest.param(n, g, t, marks=[] if (n, g, t) in USUAL else [pytest.mark.slow])
    for n in WINDOWS for g in GROUPS for t in (DType.F32, DType.F16)
]  # fmt: skip
"""Others have the calls of these, and each of their kernels takes a compilation."""


@pytest.mark.parametrize(("name", "groups", "narrow"), CASES)
def test_volumes(name: str, groups: int, narrow: DType) -> None:
    rng, window = np.random.default_rng(0), WINDOWS[name]
    shape = (2, 8, 5, 6, 7)
    params = ConvParams(8, 8, window, groups, bias=True, epilogue=ADD_RELU)
    out = (2, 8, *map(int, window.sizes(shape[2:])))  # type: ignore[call-overload]
    arrays = [rng.standard_normal(s).astype(np.float32)
              for s in (shape, params.shape, (8,), out)]  # fmt: skip
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays, narrow)
    most = max(2 * TOLERANCE[narrow], 3e-6) * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=most)


STEMS = {
    "scan": (1, 4, ConvWindow((3, 3, 3), ONES, ONES, ONES * 2)),
    "video": (3, 8, ConvWindow((3, 5, 4), (1, 2, 2), ONES, (1, 3, 2, 1, 1, 1))),
    "far planes": (4, 8, ConvWindow((2, 3, 5), (2, 1, 1), (2, 3, 1), (2, 3, 0, 0, 3, 4))),
    "one column": (3, 8, ConvWindow((3, 3, 1), ONES, ONES, (1, 1, 0, 1, 1, 0))),
    "tiles": (3, 8, ConvWindow((2, 3, 4), (2, 3, 4), ONES, (0,) * 6)),
}
"""Channels, filters and windows of first layers."""


@pytest.mark.parametrize("name", [
    pytest.param(n, marks=[pytest.mark.slow] * (n in ("one column", "tiles"))) for n in STEMS
])  # fmt: skip
def test_stems(name: str) -> None:
    """Few channels are packed, for windows that are neither tiles nor one pixel wide."""
    (channels, filters, window), rng = STEMS[name], np.random.default_rng(0)
    shape = (2, channels, 4, 9, 32)
    params = ConvParams(channels, filters, window, bias=True)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, params.shape, (filters,))]
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays, DType.F16)
    most = 2 * TOLERANCE[DType.F16] * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=most)
    specs = [TensorSpec(DType.F32, a.shape) for a in arrays]
    packs = [c.op for c in program_of(params, specs, DType.F16).calls].count("pack")
    assert packs == 2 * (name not in ("one column", "tiles"))


def test_windows_of_a_scan_share_rows_of_the_matmul() -> None:
    """Two neighbouring windows of many have filters of their own in one row."""
    params = ConvParams(1, 32, STEMS["scan"][2], bias=True)
    specs = [TensorSpec(DType.F32, s) for s in ((2, 1, 32, 64, 64), params.shape, (32,))]
    (call,) = (c for c in program_of(params, specs, DType.F16).calls if c.op == "conv")
    assert [v.dims for v in call.views[:2] if v] == [(2, 32, 64, 32, 40), (64, 3, 3, 1, 40)]


def test_volumes_of_any_sizes_have_programs() -> None:
    params = ConvParams(8, 16, WINDOWS["strided"])
    specs = [TensorSpec(DType.F32, ("n", 8, "d", "h", "w")), TensorSpec(DType.F32, params.shape)]
    program = program_of(params, specs, DType.F16, {"n": 2, "d": 9, "h": 16, "w": 16})
    assert [c.op for c in program.calls].count("conv") == 1


def planned(window: ConvWindow, channels: int, groups: int = 1) -> list[Call]:
    """The calls of a convolution in fp16 that an execution launches between its input and y."""
    params = ConvParams(channels, channels, window, groups)
    specs = [TensorSpec(DType.F32, s) for s in ((2, channels, 16, 28, 28), params.shape)]
    program = program_of(params, specs, DType.F16)
    once = constant_calls(program.calls, frozenset({1}))
    _, *calls, _ = (c for c, done in zip(program.calls, once, strict=True) if not done)
    return calls


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", ["same", "strided", "dilated"])
def test_volumes_are_convolved_in_place(name: str, groups: int) -> None:
    (call,) = planned(WINDOWS[name], 128, groups)
    (launch, symbol), *_ = launches_for(call)
    assert "conv3d" in symbol and launch.arguments[0].kind == "pixels"
    x = launch.arguments[0].value
    assert isinstance(x, View) and x.dims == (2, 16, 28, 28, 128)


def test_filters_of_one_plane_or_one_pixel_convolve_images() -> None:
    for name, dims in (("frames alone", (32, 28, 28, 64)), ("depth alone", (2, 16, 784, 64))):
        (call,) = planned(WINDOWS[name], 64)
        assert call.views[0] is not None and call.views[0].dims == dims


def test_nets_of_volumes_copy_nothing_between_layers(tmp_path: Path) -> None:
    """A copy interleaves a transposed convolution where it is joined."""
    net = Net()

    def convolve(x: str, filters: int, channels: int, *taps: int) -> str:
        pads = [taps[0] // 2, taps[1] // 2, taps[2] // 2] * 2
        weights = net.weight(filters, channels, *taps), net.weight(filters)
        return net("Relu", net("Conv", x, *weights, pads=pads))

    fine = convolve(net.input("x", 1, 64, 8, 14, 14), 64, 64, 3, 3, 3)
    coarse = net("MaxPool", fine, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    coarse = convolve(convolve(coarse, 64, 64, 1, 3, 3), 128, 64, 3, 1, 1)
    weights = net.weight(128, 64, 2, 2, 2), net.weight(64)
    y = net("ConvTranspose", coarse, *weights, strides=[2, 2, 2])
    y = convolve(net("Concat", y, fine, axis=1), 64, 128, 3, 3, 3)
    path = net.save(tmp_path / "m.onnx", y)
    (placed,), _, _ = programs(load(path), "fp16")
    found = [run.symbol for run in runs(placed) if not run.once and run.blocks]
    assert ["copy" in symbol for symbol in found].count(True) == 1
    assert len(found) == 9 and sum("conv3d" in symbol for symbol in found) == 2


def test_windows_that_start_too_far_outside_have_no_tensor_maps() -> None:
    """The corners of a volume's tensor map lie up to 15 pixels away."""
    for pad, able in ((15, True), (16, False)):
        window = ConvWindow((3, 3, 3), ONES, (pad,) * 3, (pad,) * 6)
        (call,) = planned(window, 64)
        kinds = [launch.arguments[0].kind for launch, _ in launches_for(call)]
        assert ("pixels" in kinds) == able


@pytest.mark.parametrize(
    ("sides", "channels", "shared"),
    [
        ((4, 7, 7), 512, True),
        ((4, 4, 4), 256, False),
        ((16, 16), 1024, True),
        ((7, 7), 512, False),
    ],
)
def test_large_tiles_share_the_depth_of_few_pixels_that_load_much(
    sides: tuple[int, ...], channels: int, shared: bool
) -> None:
    taps = (3,) * len(sides)
    made = conv(DType.F16, (1, *sides, channels), (channels, *taps), pads=(1,) * len(sides))
    call, _ = made(Memory(), np.random.default_rng(0))
    found = variants_of(call)[0][0]
    assert found.template == ("conv_wgmma.cu.in" if shared else "conv_few.cu.in")


def test_nets_of_depthwise_convolutions_have_one_launch_a_layer(tmp_path: Path) -> None:
    """Those of a mobile net of videos: 1 × 1 × 1, depthwise, a gate of the mean, 1 × 1 × 1."""
    net = Net()

    def convolve(x: str, filters: int, channels: int, side: int, groups: int = 1) -> str:
        weights = net.weight(filters, channels // groups, *(side,) * 3), net.weight(filters)
        return net("Conv", x, *weights, pads=[side // 2] * 6, group=groups)

    x = convolve(net.input("x", 2, 32, 4, 14, 14), 32, 32, 1)
    y = net("Relu", convolve(x, 64, 32, 1))
    y = convolve(y, 64, 64, 3, 64)
    gate = net("Relu", convolve(net("GlobalAveragePool", y), 16, 64, 1))
    y = net("Mul", y, net("Sigmoid", convolve(gate, 64, 16, 1)))
    y = net("Add", convolve(y, 32, 64, 1), x)
    y = net("AveragePool", y, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    y = net("ReduceMean", convolve(y, 16, 32, 3), keepdims=0, axes=[2, 3, 4])
    path = net.save(tmp_path / "m.onnx", y)
    (placed,), _, _ = programs(load(path), "fp16")
    found = [run.symbol for run in runs(placed) if not run.once and run.blocks]
    assert [s for s in found if "copy" in s or "reduce" in s] == []
    assert sum("depthwise_3x3x3" in s for s in found) == 1
    assert sum("pool_average_inside_2x2x2" in s for s in found) == 1


SHAPES = ((2, 24, 5, 6, 8), (1, 3, 4, 5, 6))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["max", "average", "average-inside"])
def test_pools_of_volumes(kind: str, shape: tuple[int, ...]) -> None:
    params = PoolParams(kind, ConvWindow((3, 2, 3), (2, 2, 1), ONES, (1, 0, 1, 1, 0, 1)))
    whole = PoolParams("max" if kind == "max" else "average")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for own in (params, whole, replace(whole, flat=True)):
        (want,) = own.reference([x.astype(np.float64)])
        (got,) = run_program(own, [x], DType.F16)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[DType.F16])


def test_means_of_large_volumes_are_those_of_parts(tmp_path: Path) -> None:
    """Few channels are shared by many blocks."""
    net = Net()
    y = net("Conv", net.input("x", 1, 32, 32, 32, 32), net.weight(32, 32, 1, 1, 1))
    path = net.save(tmp_path / "m.onnx", net("GlobalAveragePool", y))
    (placed,), _, _ = programs(load(path), "fp16")
    found = [run.symbol for run in runs(placed) if not run.once and run.blocks]
    assert [s[:28] for s in found if "pool" in s] == [
        "tracea_f16_pool_average_32x3", "tracea_f16_pool_average_32x1"
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_a_resize_of_volumes_joins_what_is_concatenated(tmp_path: Path, mode: str) -> None:
    """Two launches, of kernels or of copies, the second of which stores into the concatenation."""
    net = Net()
    fine = net.input("x", 1, 64, 4, 14, 14)
    fine = net("Relu", net("Conv", fine, net.weight(64, 64, 3, 3, 3), pads=[1] * 6))
    coarse = net("MaxPool", fine, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    coarse = net("Conv", coarse, net.weight(64, 64, 3, 3, 3), pads=[1] * 6)
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    up = net("Resize", coarse, "", net.const([1, 1, 2, 2, 2]), mode=mode, **how)
    y = net("Conv", net("Concat", up, fine, axis=1), net.weight(64, 128, 3, 3, 3), pads=[1] * 6)
    (placed,), _, _ = programs(load(net.save(tmp_path / "m.onnx", y)), "fp16")
    found = [run.symbol for run in runs(placed) if not run.once and run.blocks]
    assert sum("conv3d" in symbol for symbol in found) == 3
    assert [s for s in found if "gemm" in s or "mma" in s] == []
    own, other = ("resize", "copy") if mode == "linear" else ("copy", "resize")
    assert sum(own in symbol for symbol in found) == 2
    assert not any(other in symbol or "along" in symbol for symbol in found)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_nets_of_volumes_compute_what_the_runtime_computes(tmp_path: Path, mode: str) -> None:
    net = Net()

    def convolve(x: str, filters: int, channels: int, side: int, groups: int = 1) -> str:
        weights = net.weight(filters, channels // groups, *(side,) * 3), net.weight(filters)
        y = net("Conv", x, *weights, pads=[side // 2] * 6, group=groups)
        return net("Mul", y, net.const(0.2))

    fine = net("Relu", convolve(net.input("x", 1, 8, 4, 6, 8), 16, 8, 3))
    y = net("MaxPool", convolve(fine, 16, 16, 3, 16), kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    gate = convolve(net("GlobalAveragePool", y), 16, 16, 1)
    y = net("Mul", y, net("Sigmoid", gate))
    y = net("AveragePool", convolve(y, 16, 16, 1), kernel_shape=[3, 3, 3], pads=[1] * 6)
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    y = net("Resize", y, "", net.const([1, 1, 2, 2, 2]), mode=mode, **how)
    y = convolve(net("Concat", y, fine, axis=1), 8, 32, 3)
    path = net.save(tmp_path / "m.onnx", y)
    (placed,), graph, _ = programs(load(path), "fp16")
    x = np.random.default_rng(0).standard_normal((1, 8, 4, 6, 8)).astype(np.float32)
    held = [graph.weight(v) for v in placed.region.operands]
    arrays = [x if weight is None else weight.array() for weight in held]
    (got,) = run_program(placed.region.params, arrays, DType.F16)
    (want,) = plain_session(path.read_bytes()).run(None, {"x": x})
    np.testing.assert_allclose(got, want, rtol=0, atol=0.01 * np.abs(want).max())
