"""Programs too large for the runtime: cut up, not an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graphs import Net
from tracea_graph import Options, api
from tracea_graph.kernels.cpu import plan_encoding

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]


def chain(path: Path, layers: int) -> Path:
    net = Net()
    x = net.input("x", 1, 16, 9, 7)
    for _ in range(layers):
        x = net("Relu", net("Conv", x, net.weight(16, 16, 3, 3), pads=[1] * 4))
    net.save(path, x)
    return path


@pytest.mark.parametrize(("limit", "value"), [("calls", 3), ("temps", 3), ("words", 400)])
def test_a_program_that_is_too_large_becomes_several(
    limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = chain(tmp_path / "m.onnx", 4)
    options = Options(keep="all", target="cpu:scalar")
    whole = api.optimize(original, options)
    assert whole.kernels == 1
    monkeypatch.setattr(plan_encoding, "LIMITS", {**plan_encoding.LIMITS, limit: value})
    cut = api.optimize(original, options)
    assert cut.kernels > 1 and cut.status == "passed"
    x = np.ones((1, 16, 9, 7), np.float32)
    (found,) = api.session(cut.output).run(None, {"x": x})
    monkeypatch.undo()
    (wanted,) = api.session(original).run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
