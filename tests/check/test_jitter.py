"""Models that round to integers are compared with how far one rounding moves their outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tracea_graph.check.reference_outputs import run_reference

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 64] x) => (float[n, 64] y) {{
        q, s, z = DynamicQuantizeLinear(x)
        {body}
    }}"""
BODIES = {
    "rounded": "y = DequantizeLinear(q, s, z)",
    "unread": "y = Relu(x)",
}


@pytest.mark.parametrize("body", BODIES)
def test_the_floor_is_one_rounding(body: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL.format(body=BODIES[body])), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((4000, 64), np.float32)
    known = run_reference(tmp_path / "m.onnx", {"feed": {"x": x}})
    step = (x.max() - x.min()) / 255 / abs(x).max()
    floor = known.floors["feed"]["y"]
    assert floor == pytest.approx(step, rel=1e-2) if body == "rounded" else floor == 0.0
