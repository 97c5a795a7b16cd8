"""Attention and its projection in one launch, in plans: on a test double of the CUDA driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backends import test_double
from tests.graphs import Net, normal

pytestmark = [pytest.mark.compiler, pytest.mark.slow, pytest.mark.usefixtures("double_backend")]
_COLUMNS, _HEADS = 384, 12


def layer(net: Net) -> str:
    """Build attention of normalised rows, to whose projection these rows are added."""

    def linear(x: str, depth: int = _COLUMNS) -> str:
        w = net.const(normal(depth, _COLUMNS, seed=len(net.weights)) / depth**0.5)
        return net("Add", net("MatMul", x, w), net.weight(_COLUMNS))

    def heads(x: str, *order: int) -> str:
        shape = net.ints(0, 0, _HEADS, _COLUMNS // _HEADS)
        return net("Transpose", net("Reshape", linear(x), shape), perm=list(order))

    x = linear(net.input("x", "batch", "length", 16), 16)
    x = net("LayerNormalization", x, net.weight(_COLUMNS), net.weight(_COLUMNS), axis=-1)
    scores = net("MatMul", heads(x, 0, 2, 1, 3), heads(x, 0, 2, 3, 1))
    scores = net("Div", scores, net.const(np.float32((_COLUMNS // _HEADS) ** 0.5)))
    made = net("MatMul", net("Softmax", scores, axis=-1), heads(x, 0, 2, 1, 3))
    made = net("Transpose", made, perm=[0, 2, 1, 3])
    made = net("Reshape", made, net.ints(0, 0, _COLUMNS))
    x = net("Add", linear(made), x)
    return net("LayerNormalization", x, net.weight(_COLUMNS), net.weight(_COLUMNS), axis=-1)


def test_runs_of_few_and_many_rows(tmp_path: Path) -> None:
    """More than 128 keys take a launch more, of the same plan."""
    shapes = [{"batch": 1, "length": 20}]
    _, report = test_double.improved_in_fp16(layer, tmp_path, shapes)
    assert b"_attention_projection_384_" in Path(str(report.library)).read_bytes()
    feeds = {f"{i}": {"x": normal(1, n, 16)} for i, n in enumerate((20, 129))}
    found, told = test_double.run(report, feeds, tmp_path)
    assert not told["error"] and test_double.close(report, found, feeds, test_double.HALF)
    few, many = (
        test_double.run(report, {"0": one}, tmp_path)[1]["launches"] for one in feeds.values()
    )
    assert many == few + 1
