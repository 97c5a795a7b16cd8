"""A model of 5 GB, which no protobuf holds: its weights stay on disk from end to end."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.process_memory import peak_of
from tests.tiny import ROOT, answers, error_between
from tracea_graph.config import TOLERANCE

pytestmark = [pytest.mark.compiler, pytest.mark.slow]

SIDE, LAYERS = 8192, 19
CODE = "import sys; from tracea_graph.cli import optimize_main; sys.exit(optimize_main())"


def stack(path: Path, side: int, layers: int) -> int:
    """Products, each by a matrix of its own and behind a Tanh; the bytes of all matrices."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((side, side), np.float32) / np.float32(np.sqrt(side))
    data, nodes, weights = path.with_suffix(".weights"), [], []
    with data.open("wb") as file:
        for i in range(layers):
            weight = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[side, side])
            weight.data_location = TensorProto.EXTERNAL
            place = (("location", data.name), ("offset", file.tell()), ("length", base.nbytes))
            for key, value in place:
                weight.external_data.add(key=key, value=str(value))
            np.roll(base, i + 1, axis=1).tofile(file)
            weights.append(weight)
            nodes.append(helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"p{i}"]))
            nodes.append(helper.make_node("Tanh", [f"p{i}"], [f"h{i + 1}"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", side])
        for name in ("h0", f"h{layers}")
    ]
    graph = helper.make_graph(nodes, "stack", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return data.stat().st_size


def test_five_gigabytes(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    if shutil.disk_usage(tmp_path).free < 16 << 30:
        pytest.skip("this takes 16 GB of disk")
    path, out = tmp_path / "stack.onnx", tmp_path / "out.onnx"
    size = stack(path, SIDE, LAYERS)
    assert size > 5_000_000_000
    command = [sys.executable, "-c", CODE, path, "--keep", "all", "-o", out, "-q"]
    peak = peak_of(command, {**os.environ, "PYTHONPATH": str(ROOT)})
    record_property("memory", f"{peak.all / size:.2f}, {peak.own / size:.2f} without mapped files")
    assert peak.all <= 1.5 * size, f"{peak.all / size:.2f} times the model"
    report = json.loads(out.with_suffix(".json").read_text())
    assert (report["outcome"], report["status"]) == ("improved", "passed")
    assert report["kernels"] == report["nodes_after"] >= 1
    x = np.random.default_rng(1).standard_normal((3, SIDE), np.float32)
    found = answers(out, {"h0": x}, out.with_suffix(".so"))
    assert error_between(found, answers(path, {"h0": x})) < TOLERANCE.exact
    (data,) = tmp_path.glob("out.*.data")
    assert abs(data.stat().st_size - size) < 0.01 * size
    for large in (data, path.with_suffix(".weights")):
        large.unlink()
