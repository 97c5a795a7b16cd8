"""Decoders with 4-bit weights are one program on a GPU: shown on a double of the CUDA driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from models.decoder import DECODERS, build
from tests.backends.conformance import kernels_run
from tracea_graph import Options, api

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.slow,  # a minute each in the host dialect
    pytest.mark.usefixtures("double_backend"),
]


@pytest.mark.parametrize(
    ("name", "level", "precision"), [("small-llama", 0, "fp32"), ("small-qwen3", 4, "fp16")]
)
def test_a_decoder_is_one_program(name: str, level: int, precision: str, tmp_path: Path) -> None:
    onnx.save(build(name, 32, level), tmp_path / "m.onnx")
    wanted = Options(
        target="double:sm_90", keep="all", precision=precision,
        max_error=3e-2 if precision == "fp16" else None,
    )  # fmt: skip
    report = api.optimize(tmp_path / "m.onnx", wanted)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    kinds = {n.op_type.partition("_")[0] for n in onnx.load(report.output).graph.node}
    assert report.kernels == 1 and not kinds & {"MatMulNBits", "MatMul", "Softmax", "Mul"}
    shape = DECODERS[name]
    feed = {
        "input_ids": np.arange(5)[None] % shape.words,
        "attention_mask": np.ones((1, 5), np.int64),
    }
    caches = [i.name for i in onnx.load(tmp_path / "m.onnx").graph.input][2:]
    empty = np.zeros((1, shape.kv_heads, 0, shape.head), np.float32)
    assert kernels_run(report, feed | dict.fromkeys(caches, empty)) == 1
