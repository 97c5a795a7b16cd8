"""Models planned for axes of some length answer as ONNX Runtime does where those have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net, normal
from tracea_graph import Options, api

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]

FAR = 1 << 62
Make = Callable[[Net, str], str]


def cut(net: Net, x: str, start: int, end: int, step: int = 1) -> str:
    """A slice of the second axis."""
    return net("Slice", x, *(net.ints(i) for i in (start, end, 1, step)))


def product(net: Net, x: str) -> str:
    return net("MatMul", x, net.weight(4, 8))


def shifted(net: Net, x: str) -> str:
    """What comes after the first, and then the first."""
    y = product(net, x)
    return net("Concat", cut(net, y, 1, FAR), cut(net, y, 0, 1), axis=1)


def steps(net: Net, x: str) -> str:
    """Differences of neighbours."""
    return net("Sub", cut(net, x, 1, FAR), cut(net, x, 0, -1))


MODELS: dict[str, Make] = {
    "first": lambda net, x: net("Tanh", cut(net, product(net, x), 0, 1)),
    "last": lambda net, x: net("Tanh", cut(net, product(net, x), -1, FAR)),
    "last of a chain": lambda net, x: net("Tanh", cut(net, net("Exp", x), -1, FAR)),
    "all but first": lambda net, x: net("Tanh", cut(net, net("Exp", x), 1, FAR)),
    "all but last": lambda net, x: net("Tanh", cut(net, net("Exp", x), 0, -1)),
    "from the third": lambda net, x: net("Tanh", cut(net, net("Exp", x), 2, 5)),
    "every other": lambda net, x: net("Tanh", cut(net, net("Exp", x), 1, FAR, 2)),
    "backwards": lambda net, x: net("Tanh", cut(net, net("Exp", x), -1, -FAR, -1)),
    "shifted": shifted,
    "differences": steps,
    "mean": lambda net, x: net("Sub", x, net("ReduceMean", net("Exp", x), axes=[1])),
    "mean of what is cut": lambda net, x: net("ReduceMean", cut(net, x, 0, 1), axes=[1]),
    "normalised": lambda net, x: net(
        "LayerNormalization", cut(net, x, -1, FAR), net.weight(4), axis=-1
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_axes_of_no_length(name: str, tmp_path: Path) -> None:
    net = Net(opset=17)
    net.graph(net("Relu", MODELS[name](net, net.input("x", "b", "n", 4))))
    original = tmp_path / "m.onnx"
    onnx.save(net.model, original)
    report = api.optimize(original, Options(keep="all", target="cpu:scalar"))
    assert report.improved and report.status == "passed"
    ours, plain = api.session(report.output), api.session(original)
    for batch, length in ((2, 3), (2, 1), (2, 0), (0, 3), (0, 0)):
        x = {"x": normal(batch, length, 4)}
        (found,), (wanted,) = ours.run(None, x), plain.run(None, x)
        np.testing.assert_allclose(found, wanted, atol=1e-4, err_msg=f"{batch} × {length}")
