"""Decoders with 4-bit weights are one program, and generate what ONNX Runtime generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from models.decoder import DECODERS, build
from tracea_graph import Options, optimize

ARRAYS: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8,
}  # fmt: skip
"""Types of caches by ONNX Runtime's names."""
pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]


def session(path: str, library: str | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if library:
        options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(path, options)


@pytest.mark.parametrize(
    ("name", "level", "form"),
    [
        ("small-llama", 0, {}),
        ("small-qwen3", 4, {}),
        ("small-qwen3", 0, {"caches": "int8"}),
        ("small-llama", 4, {"half": True}),
    ],
)
def test_it_is_one_program(name: str, level: int, form: dict[str, Any], tmp_path: Path) -> None:
    onnx.save(build(name, 32, level, **form), tmp_path / "m.onnx")
    report = optimize(tmp_path / "m.onnx", Options(keep="all"))
    assert report.status == "passed", report.status_reason
    kinds = [n.op_type.partition("_")[0] for n in onnx.load(report.output).graph.node]
    assert kinds.count("FusedRegion") == 1
    assert not {"MatMulNBits", "GroupQueryAttention", "Mul", "Sigmoid"} & {*kinds}
    original, ours = session(report.input), session(report.output, report.library)
    shape, rng = DECODERS[name], np.random.default_rng(1)
    caches = {
        i.name: np.zeros((1, shape.kv_heads, 0, shape.head), ARRAYS[i.type])
        for i in original.get_inputs()[2:]
    }
    for rows in (12, 1, 1):
        past = next(iter(caches.values())).shape[2]
        feeds = {
            "input_ids": rng.integers(0, shape.words, (1, rows)),
            "attention_mask": np.ones((1, past + rows), np.int64),
        } | caches
        want, got = (s.run(None, feeds) for s in (original, ours))
        # a product of rounded rows moves by a step where one number falls to the other side
        largest = 2e-2 if level or form else 1e-4
        assert np.abs(got[0] - want[0]).max() <= largest * np.abs(want[0]).max()
        assert (np.argmax(got[0], -1) == np.argmax(want[0], -1)).mean() > 0.9
        caches = dict(zip(caches, want[1:], strict=True))
