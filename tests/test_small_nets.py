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


NETS = {"style": style, "wake word": wake_word, "policy": policy}
FEEDS: dict[str, list[Feeds]] = {
    "style": [
        {"x": normal(n, 3, h, w)}
        for n, h, w in ((1, 16, 16), (2, 9, 13), (1, 33, 8), (1, 16, 16), (3, 5, 5), (1, 31, 64))
    ],
    "wake word": [{"x": normal(n, 1, 49, 10, seed=n)} for n in (1, 2, 1, 20, 1)],
    "policy": [{"x": normal(n, 24, seed=n)} for n in (1, 3, 1, 40, 0, 1)],
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
    """But for the border of what comes in, which lies as the first convolution reads it."""
    graph = onnx.load(results[name][1]).graph
    names = [n.op_type.split("_")[0] for n in graph.node]
    assert names == (["FusedLayout", "FusedRegion"] if name == "style" else ["FusedRegion"])


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
