"""Nets that make images, and nets of microseconds, through the whole pipeline: each is one program
that answers as ONNX Runtime does, whatever the sizes and in any order of sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net, normal
from tests.tiny import error_between
from tracea_graph import Options, api
from tracea_graph.check.worker_process import Array, RejectedByRuntime, Worker

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
CLOSE = 1e-4

Feeds = dict[str, Array]


def convolved(
    net: Net, x: str, channels: tuple[int, int], kernel: tuple[int, int], **attrs: object
) -> str:
    inputs, outputs = channels
    group = attrs.get("group", 1)
    assert isinstance(group, int)
    scale = np.float32(1 / np.sqrt(inputs // group * kernel[0] * kernel[1]))
    w = net.const(normal(outputs, inputs // group, *kernel, seed=len(net.nodes)) * scale)
    return net("Conv", x, w, net.weight(outputs), kernel_shape=kernel, **attrs)


def normed(net: Net, x: str, channels: int) -> str:
    return net("InstanceNormalization", x, net.weight(channels), net.weight(channels))


def style() -> Net:
    """Borders that are reflected, instance norms, a residual, upsampling, few channels at last."""
    net = Net()

    def around(x: str, size: int, mode: str = "reflect") -> str:
        return net("Pad", x, net.ints(0, 0, size, size, 0, 0, size, size), mode=mode)

    x = net.input("x", "n", 3, "h", "w")
    a = convolved(net, around(x, 4), (3, 20), (9, 9))
    a = net("Relu", normed(net, a, 20))
    b = convolved(net, around(a, 1), (20, 32), (3, 3), strides=(2, 2))
    b = net("Relu", normed(net, b, 32))
    c = net("Relu", normed(net, convolved(net, around(b, 1), (32, 32), (3, 3)), 32))
    c = normed(net, convolved(net, around(c, 1, "edge"), (32, 32), (3, 3)), 32)
    d = net("Resize", net("Add", b, c), "", net.const([1, 1, 2, 2]), mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    e = net("Relu", normed(net, convolved(net, around(d, 1), (32, 20), (3, 3)), 20))
    net.graph(convolved(net, around(e, 4), (20, 3), (9, 9)))
    return net


def wake_word() -> Net:
    """A stem of one channel over short lines, depthwise convolutions of half a block more."""
    net = Net()
    x = net.input("x", "n", 1, 49, 10)
    y = net("Relu", convolved(net, x, (1, 24), (10, 4), strides=(2, 2), pads=(5, 1, 5, 1)))
    for _ in range(2):
        y = net("Relu", convolved(net, y, (24, 24), (3, 3), pads=(1, 1, 1, 1), group=24))
        y = net("Relu", convolved(net, y, (24, 24), (1, 1)))
    flat = net("Flatten", net("GlobalAveragePool", y))
    net.graph(net("Gemm", flat, net.weight(24, 12), net.weight(12)))
    return net


def policy() -> Net:
    net = Net()
    y = net.input("x", "n", 24)
    for k, n in ((24, 64), (64, 64)):
        y = net("Tanh", net("Gemm", y, net.weight(n, k), net.weight(n), transB=1))
    net.graph(net("Gemm", y, net.weight(6, 64), net.weight(6), transB=1))
    return net


def rounded(net: Net, value: str, scale: float) -> str:
    """A value in bytes, as a number again; scales are powers of two, so that sums are exact."""
    beside = net.const(np.float32(scale)), net.const(3, np.uint8)
    return net("DequantizeLinear", net("QuantizeLinear", value, *beside), *beside)


def in_bytes(net: Net, x: str, channels: tuple[int, int], size: int, scale: float) -> str:
    inputs, outputs = channels
    rng = np.random.default_rng(len(net.nodes))
    step = np.float32(2.0 ** -np.round(np.log2(3 * size * np.sqrt(inputs))))
    w = net.const(rng.integers(-9, 9, (outputs, inputs, size, size)), np.int8)
    w = net("DequantizeLinear", w, net.const(step), net.const(0, np.int8))
    around = (size // 2,) * 4
    return rounded(net, net("Relu", net("Conv", x, w, pads=around)), scale)


def fusing(net: Net, x: str, channels: int) -> str:
    """Two halves of what a convolution makes, one further convolved, side by side."""
    x = in_bytes(net, x, (channels, channels), 1, 2**-5)
    half = channels // 2
    parts = [net("Slice", x, net.ints(at), net.ints(at + half), net.ints(1)) for at in (0, half)]
    halves = [rounded(net, part, 2**-5) for part in parts]
    more = in_bytes(net, halves[1], (half, half), 3, 2**-4)
    last = rounded(net, net("Add", halves[1], more), 2**-4)
    joined = rounded(net, net("Concat", *halves, last, axis=1), 2**-4)
    return in_bytes(net, joined, (3 * half, channels), 1, 2**-4)


def pyramid() -> Net:
    """Halves, pools, and a smaller image enlarged: all in bytes, joined by other scales."""
    net = Net()
    x = rounded(net, net.input("x", "n", 3, "h", "w"), 2**-5)
    a = fusing(net, in_bytes(net, x, (3, 32), 3, 2**-5), 32)
    stride = {"kernel_shape": [2, 2], "strides": [2, 2]}
    b = fusing(net, rounded(net, net("MaxPool", a, **stride), 2**-4), 32)
    pools = [b]
    for _ in range(2):
        pool = net("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4)
        pools.append(rounded(net, pool, 2**-4))
    b = in_bytes(net, rounded(net, net("Concat", *pools, axis=1), 2**-4), (96, 16), 1, 2**-4)
    up = net("Resize", b, "", net.const([1, 1, 2, 2]), mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    both = net("Concat", rounded(net, up, 2**-4), a, axis=1)
    c = in_bytes(net, rounded(net, both, 2**-3), (48, 16), 3, 2**-4)
    net.graph(net("GlobalAveragePool", c))
    return net


NETS = {"style": style, "wake word": wake_word, "policy": policy, "pyramid": pyramid}
FEEDS: dict[str, list[Feeds]] = {
    "style": [
        {"x": normal(n, 3, h, w)}
        for n, h, w in ((1, 16, 16), (2, 9, 13), (1, 33, 8), (1, 16, 16), (3, 5, 5), (1, 31, 64))
    ],
    "wake word": [{"x": normal(n, 1, 49, 10, seed=n)} for n in (1, 2, 1, 20, 1)],
    "policy": [{"x": normal(n, 24, seed=n)} for n in (1, 3, 1, 40, 0, 1)],
    "pyramid": [{"x": normal(n, 3, h, w)} for n, h, w in ((1, 16, 16), (2, 10, 6), (1, 32, 8))],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Net, Path]]:
    folder = tmp_path_factory.mktemp("small")
    found = {}
    for name, make in NETS.items():
        net = make()
        path = folder / f"{name.replace(' ', '-')}.onnx"
        onnx.save(net.model, path)
        report = api.optimize(path, Options(keep="all", verify=False))
        found[name] = net, Path(report.output)
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_one_session_answers_for_every_size(
    name: str, threads: int, results: dict[str, tuple[Net, Path]]
) -> None:
    """In turn and again: what the first run found about places holds for its sizes alone."""
    net, result = results[name]
    with Worker() as worker:
        worker.open("m", result, result.with_suffix(".so"), threads=threads)
        for feeds in FEEDS[name]:
            (wanted,), found = net.run(feeds), worker.run("m", feeds)
            if wanted.size:
                assert error_between(found, dict.fromkeys(found, wanted)) < CLOSE
            else:
                assert [y.shape for y in found.values()] == [wanted.shape]


@pytest.mark.parametrize("name", NETS)
def test_a_net_is_one_program(name: str, results: dict[str, tuple[Net, Path]]) -> None:
    """But for what brings an image into the form that the first convolution reads."""
    graph = onnx.load(results[name][1]).graph
    names = [n.op_type.split("_")[0] for n in graph.node]
    first = {"style": ["FusedLayout"], "pyramid": ["FusedElementwise"]}.get(name, [])
    assert names == [*first, "FusedRegion"]


def test_what_would_be_reflected_must_be_there(results: dict[str, tuple[Net, Path]]) -> None:
    """Four rows are no more than what is to be reflected, and the edge beside it."""
    net, result = results["style"]
    with Worker() as worker:
        worker.open("m", result, result.with_suffix(".so"))
        with pytest.raises(RejectedByRuntime, match="differ in size"):
            worker.run("m", {"x": normal(1, 3, 4, 9)})
        (wanted,) = net.run({"x": normal(1, 3, 8, 9)})
        found = worker.run("m", {"x": normal(1, 3, 8, 9)})
        assert error_between(found, dict.fromkeys(found, wanted)) < CLOSE
