"""Models whose inputs have lines, columns, keys or images at one run and none at the next, through
the whole pipeline: with the library and without it they answer as ONNX Runtime does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import Net, normal
from tests.highest import highest_level
from tests.tiny import error_between
from tracea_graph import Options, api
from tracea_graph.check.worker_process import Array, Worker
from tracea_graph.commands.inspect import StageResults
from tracea_graph.config import TOLERANCE
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.isa_levels import TILES, host_levels
from tracea_graph.kernels.cpu.schema_header import is_arm_call

pytestmark = pytest.mark.compiler
PRECISIONS = {"fp32": TOLERANCE.exact, "bf16": 5e-2, "bf16x2": 1e-3, "int16": 1e-2}
"""How far results may be off, of max|y|; what a machine cannot compute in stays float32."""
LARGEST = 9


def convolved(
    net: Net, x: str, channels: tuple[int, int], *kernel: int, act: str = "Relu", **attrs: Any
) -> str:
    """A convolution and what follows it; windows reach far into their padding."""
    inputs, outputs = channels
    shape = (outputs, inputs // attrs.get("group", 1), *kernel)
    w = net.const(normal(*shape, seed=len(net.nodes)) * np.float32(np.prod(shape[1:]) ** -0.5))
    y = net("Conv", x, w, net.weight(outputs), kernel_shape=kernel, **attrs)
    return net(act, y) if act else y


def conv_program() -> Net:
    """A stem, pointwise, depthwise, strided and transformed convolutions; two results."""
    net = Net()
    x = convolved(net, net.input("x", "n", 3, "h", "w"), (3, 24), 3, 3, pads=[2] * 4)
    y = convolved(net, x, (24, 48), 1, 1, pads=[1] * 4)
    y = convolved(net, y, (48, 48), 3, 3, group=48, pads=[1] * 4, strides=[2, 2])
    y = convolved(net, y, (48, 24), 1, 1, act="Sigmoid")
    for _ in range(2):
        y = convolved(net, y, (24, 24), 3, 3, pads=[1] * 4)
    strided = convolved(net, x, (24, 24), 3, 3, pads=[2] * 4, strides=[2, 2])
    net.graph(net("Flatten", net("GlobalAveragePool", y)), strided)
    return net


def apart() -> Net:
    """Convolutions of every kind that read the input itself."""
    net = Net()
    x, two = net.input("x", "n", 32, "h", "w"), [2] * 4
    kinds: tuple[dict[str, Any], ...] = (
        {"pads": two}, {"pads": two, "group": 32}, {"pads": two, "group": 4},
        {"pads": two, "group": 2}, {"pads": [3, 1, 0, 2]}, {"pads": [3] * 4, "dilations": [2, 2]},
        {"pads": two, "strides": [2, 2]},
    )  # fmt: skip
    made = [convolved(net, x, (32, 32), 3, 3, **kind) for kind in kinds]
    net.graph(*made, convolved(net, x, (32, 40), 1, 1, act="Sigmoid", pads=[1] * 4))
    return net


def padded() -> Net:
    """Zeros around what a chain makes, then convolutions; a residual."""
    net = Net()
    x = net.input("x", "n", 16, "h", "w")
    a = net("Pad", net("Mul", net("Sigmoid", x), x), net.ints(0, 0, 1, 1, 0, 0, 1, 1))
    y = convolved(net, a, (16, 32), 3, 3, pads=[1] * 4)
    net.graph(net("Add", convolved(net, y, (32, 16), 1, 1), a))
    return net


def normed() -> Net:
    """A norm, a nearest resize and a concatenation of nothing."""
    net = Net()
    x = net.input("x", "n", 16, "h", "w")
    a = net("Relu", net("InstanceNormalization", x, net.weight(16), net.weight(16)))
    a = net("Resize", a, "", net.const([1, 1, 2, 2]), mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    y = convolved(net, net("Concat", a, a, axis=1), (32, 24), 1, 1, pads=[2] * 4)
    y = convolved(net, y, (24, 24), 3, 3, group=24, pads=[1] * 4)
    net.graph(convolved(net, y, (24, 16), 1, 1))
    return net


def moved() -> Net:
    """Between convolutions: a shuffle of channels, nearest resizes and a chain that is padded."""
    net = Net()
    x = convolved(net, net.input("x", "n", 32, "h", "w"), (32, 64), 1, 1, pads=[1] * 4)
    sizes = net("Shape", x)
    rows = net("Slice", sizes, net.ints(2), net.ints(4))
    split = net("Concat", net.ints(0, 2, 32), rows, axis=0)
    turned = net("Transpose", net("Reshape", x, split), perm=[0, 2, 1, 3, 4])
    y = net("Reshape", turned, net("Concat", net.ints(0, 64), rows, axis=0))
    y = convolved(net, y, (64, 64), 3, 3, group=64, pads=[1] * 4)
    y = net("Resize", y, "", net.const([1, 1, 2, 2]), mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    z = convolved(net, y, (64, 64), 1, 1, act="")
    z = net("Mul", z, net("GlobalAveragePool", z))
    y = convolved(net, net("Add", z, y), (64, 32), 3, 3, pads=[1] * 4, strides=[2, 2])
    y = convolved(net, y, (32, 32), 3, 3, pads=[2] * 4)
    y = net("Resize", y, "", net.const([1, 1, 2, 2]), mode="linear",
            coordinate_transformation_mode="half_pixel")  # fmt: skip
    net.graph(convolved(net, y, (32, 32), 1, 1))
    return net


def pooled() -> Net:
    """Maxima and averages of windows between convolutions, and a transposed convolution."""
    net = Net()
    x = convolved(net, net.input("x", "n", 32, "h", "w"), (32, 64), 3, 3, pads=[2] * 4)
    y = net("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = convolved(net, y, (64, 64), 1, 1, pads=[1] * 4)
    y = net("AveragePool", y, kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1)
    y = convolved(net, y, (64, 32), 1, 1)
    w = net.const(normal(32, 16, 2, 2))
    net.graph(net("Relu", net("ConvTranspose", y, w, strides=[2, 2])))
    return net


def no_images() -> Net:
    """Convolutions over maps of known size, of which there may be none."""
    net = Net()
    x = convolved(net, net.input("x", "n", 32, 56, 56), (32, 32), 3, 3, pads=[1] * 4)
    y = net("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    net.graph(convolved(net, convolved(net, y, (32, 64), 1, 1), (64, 32), 3, 3, pads=[1] * 4))
    return net


def lines_and_volumes() -> Net:
    net = Net()
    line, volume = net.input("x", "n", 16, "w"), net.input("z", "n", 8, "d", "h", "w")
    y = convolved(net, line, (16, 32), 3, pads=[2, 2])
    net.graph(y, convolved(net, volume, (8, 16), 3, 3, 3, pads=[2] * 6))
    return net


def attention() -> Net:
    """Over other keys than queries; products, a softmax, a residual."""
    net = Net()
    x, z = net.input("x", "n", "s", 32), net.input("z", "n", "t", 32)

    def heads(value: str) -> str:
        split = net("Reshape", net("MatMul", value, net.weight(32, 32)), net.ints(0, 0, 4, 8))
        return net("Transpose", split, perm=[0, 2, 1, 3])

    q, k, v = heads(x), heads(z), heads(z)
    scores = net("Mul", net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2])), 0.35)
    seen = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    merged = net("Reshape", seen, net.ints(0, 0, 32))
    net.graph(net("Add", net("MatMul", merged, net.weight(32, 32)), x))
    return net


def integers() -> Net:
    """Values between conversions are bytes."""
    net = Net()
    scale, zero = net.const(0.05), net.const(120, np.uint8)

    def rounded(value: str) -> str:
        return net("DequantizeLinear", net("QuantizeLinear", value, scale, zero), scale, zero)

    stored = np.random.default_rng(3).integers(-99, 99, (32, 16, 3, 3))
    filters = net("DequantizeLinear", net.const(stored, np.int8), net.const(0.01))
    x, bias = rounded(net.input("x", "n", 16, "h", "w")), net.weight(32)
    y = rounded(net("Conv", x, filters, bias, pads=[2] * 4))
    net.graph(rounded(net("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2], pads=[1] * 4)))
    return net


NETS: tuple[Callable[[], Net], ...] = (
    conv_program, apart, padded, normed, moved, pooled, no_images, lines_and_volumes, attention,
    integers,
)  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[pytest.param(p, marks=[pytest.mark.slow] * (p != "fp32")) for p in PRECISIONS],
)
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Net, Path, float]]:
    """Every net, its result and how far that may be off."""
    precision, folder = request.param, tmp_path_factory.mktemp(request.param)
    nets = [make() for make in NETS]
    paths = [folder / f"{make.__name__}.onnx" for make in NETS]
    for net, path in zip(nets, paths, strict=True):
        onnx.save(net.model, path)
    options = Options(folder / "out", keep="all", precision=precision, verify=False)
    with highest_level(float32=True):  # results run at no other
        reports = [outcome.report for outcome in api.optimize_many(paths, options)]
    made = [Path(report.output) for report in reports if report and report.library]
    assert len(made) == len(nets)
    return [(net, path, PRECISIONS[precision]) for net, path in zip(nets, made, strict=True)]


def feeds(net: Net, sizes: dict[str, int]) -> dict[str, Array]:
    return {
        name: normal(*(sizes.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim))
        for name, v in net.inputs.items()
    }


def without(net: Net) -> Iterator[dict[str, int]]:
    """Sizes of which one at least is 0."""
    dims = (d for v in net.inputs.values() for d in v.type.tensor_type.shape.dim)
    names = sorted({d.dim_param for d in dims} - {""})
    for sizes in itertools.product((0, 1, 4), repeat=len(names)):
        if 0 in sizes:
            yield dict(zip(names, sizes, strict=True))


@pytest.mark.parametrize("with_library", [True, False], ids=["library", "bodies"])
@pytest.mark.parametrize("index", range(len(NETS)), ids=[make.__name__ for make in NETS])
def test_nothing_in_gives_what_onnx_runtime_gives(
    index: int, with_library: bool, results: list[tuple[Net, Path, float]]
) -> None:
    """Whatever the run before has left in memory: here that is NaN."""
    net, result, limit = results[index]
    with Worker() as worker:
        worker.open("m", result, result.with_suffix(".so") if with_library else None)
        for sizes in without(net):
            whole = dict.fromkeys(sizes, LARGEST)
            spoilt = {name: np.full_like(x, np.nan) for name, x in feeds(net, whole).items()}
            worker.run("m", spoilt)
            given = feeds(net, sizes)
            found = worker.run("m", given)
            wanted = dict(zip(found, net.run(given), strict=True))
            assert [y.shape for y in found.values()] == [y.shape for y in wanted.values()], sizes
            for name, y in wanted.items():
                if y.size:
                    assert error_between({name: found[name]}, {name: y}) <= limit, (sizes, name)


def test_every_call_over_images_is_among_them(tmp_path: Path) -> None:
    """All that this machine's instruction sets have."""
    tiled = {"conv_bf16x2", "round_images_bf16x2"}
    called = set() if TILES in host_levels() else tiled
    for make, precision in itertools.product(NETS, PRECISIONS):
        path = tmp_path / f"{make.__name__}.onnx"
        onnx.save(make().model, path)
        options = Options(tmp_path, keep="all", precision=precision)
        programs = StageResults.run(path, options, "lower").programs
        called.update(call.name for _, program in programs for call in program.calls)
    calls = {n: c for n, c in CALLS.items() if not is_arm_call(c)}
    images = {n for n, c in calls.items() if any({"W", "W'"} & {*o.shape} for o in c.operands)}
    assert {"conv", "conv_dispatch_int16", "channel_shuffle", "zero_pad"} <= images
    assert called >= images | {"conv_plain", "channel_norm"}


@pytest.mark.parametrize("opset", [17, 19])
def test_averages_over_images_smaller_than_a_window(opset: int, tmp_path: Path) -> None:
    """ONNX Runtime puts one window over them, and what it divides by depends on the opset."""
    net = Net(opset)
    x = convolved(net, net.input("x", "n", 32, "h", "w"), (32, 32), 3, 3, pads=[1] * 4)
    net.graph(*(
        net("AveragePool", x, kernel_shape=[4, 3], strides=[3, 2], pads=[pad] * 4,
            count_include_pad=counted)
        for pad, counted in itertools.product((0, 1), (0, 1))
    ))  # fmt: skip
    onnx.save(net.model, tmp_path / "m.onnx")
    with highest_level(float32=True):
        report = api.optimize(tmp_path / "m.onnx", Options(tmp_path, keep="all", verify=False))
    assert report.kernels
    with Worker() as worker:
        worker.open("m", Path(report.output), Path(str(report.library)))
        for height, width in ((2, 5), (2, 2), (5, 5)):
            given = feeds(net, {"n": 2, "h": height, "w": width})
            found = worker.run("m", given).values()
            for i, (y, wanted) in enumerate(zip(found, net.run(given), strict=True)):
                assert y.shape == wanted.shape
                error = error_between({"y": y}, {"y": wanted}) if y.size else 0.0
                assert error < TOLERANCE.exact, f"{i} of {height} by {width}: {error:.1e}"
