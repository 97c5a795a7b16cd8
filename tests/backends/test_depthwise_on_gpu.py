"""Depthwise convolutions and those behind them in one launch, on a double of the CUDA driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backends.test_double import HALF, close, improved_in_fp16, run
from tests.graphs import Net, normal
from tests.kernels.gpu.test_lower_images import calls_in
from tracea_graph.kernels.gpu.lowering import image_halves

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("double_backend")]


def narrow(net: Net) -> str:
    """Build a depthwise convolution of few channels, the 1 × 1 one behind it and a residual."""
    x = net.input("x", "n", 16, 15, 14)
    first = net("Relu", net("Conv", x, net.weight(16, 16, 3, 3), pads=[1] * 4))
    limits = [net.const(np.float32(n)) for n in (0, 6)]
    y = net("Conv", first, net.weight(16, 1, 3, 3), net.weight(16), group=16, pads=[1] * 4)
    y = net("Conv", net("Clip", y, *limits), net.weight(16, 16, 1, 1), net.weight(16))
    return net("Conv", net("Add", first, y), net.weight(8, 16, 3, 3))


def test_halves_of_images_are_convolved_in_one_launch_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_halves, "_LARGE", 0)
    _, report = improved_in_fp16(narrow, tmp_path, [{"n": 2}])
    net = Net()
    assert "depthwise_projection" in [c.op for c in calls_in(net, narrow(net))]
    feeds = {f"{i}": {"x": normal(n, 16, 15, 14)} for i, n in enumerate((2, 1, 3, 0, 2))}
    found, told = run(report, feeds, tmp_path)
    assert not told["error"] and close(report, found, feeds, HALF)
