"""What prepares the operands of kernels runs with them: masks, positions, rows of items.

Shown on a test double of the CUDA driver: each model becomes one node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import Net, normal
from tracea_graph import Options, api
from tracea_graph.ir import DType

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("double_backend")]
HERE = Options(target="double:sm_90", keep="all")


def _size(net: Net, value: str, axis: int) -> str:
    return net("Gather", net("Shape", value), net.const(axis, np.int64), axis=0)


def _count(net: Net, length: str, *new: int) -> str:
    """Count 0, 1, 2 … along an axis beside axes of size 1."""
    zero, one = net.const(0, np.int64), net.const(1, np.int64)
    return net("Unsqueeze", net("Range", zero, length, one), net.ints(*new))


def _attended(net: Net, x: str, seen: str) -> str:
    scores = net("MatMul", x, net("Transpose", x, perm=[0, 2, 1]))
    scores = net("Where", seen, scores, -1e4)
    return net("MatMul", net("Softmax", scores, axis=-1), net("MatMul", x, net.weight(32, 16)))


def _flat_mask(net: Net, x: str, mask: str, column: bool = True) -> str:
    """Look a flattened mask up at batch · keys + key, and compare the positions of queries."""
    hidden = net("Cast", mask, to=DType.BOOL.onnx)
    flat = net("Flatten", hidden, axis=2) if column else net("Reshape", hidden, net.ints(-1))
    keys = net("Unsqueeze", _size(net, mask, 1), net.ints(0))
    rows = net("Mul", _count(net, _size(net, x, 0), 1, 2), keys)
    places = net("Add", _count(net, _size(net, mask, 1), 0, 1), rows)
    seen = net("Gather", flat, places, axis=0)
    if column:
        seen = net("Reshape", net("Reshape", seen, net.ints(-1)), net("Shape", places))
    known = net("GreaterOrEqual", _count(net, _size(net, x, 1), 0, 2), np.array(0))
    return _attended(net, x, net("And", known, seen))


def _flat_vector(net: Net, x: str, mask: str) -> str:
    return _flat_mask(net, x, mask, column=False)


@pytest.mark.parametrize("build", [_flat_mask, _flat_vector])
def test_looked_up_masks_stay_in_the_program(
    build: Callable[[Net, str, str], str], tmp_path: Path
) -> None:
    net = Net(opset=18)
    x, mask = net.input("x", "batch", "n", 32), net.ids("mask", "batch", "n")
    path = net.save(tmp_path / "m.onnx", build(net, x, mask))
    feeds = {"x": normal(2, 5, 32), "mask": np.arange(10).reshape(2, 5) % 3}
    _assert_one_node(path, feeds, tmp_path)


@pytest.mark.parametrize("past", [0, 3])
def test_causal_masks_over_a_cache_stay_in_the_program(past: int, tmp_path: Path) -> None:
    """A mask as torch writes it: a triangle, positions from the cache's length on, an expand."""
    net = Net(opset=17)
    x, cache = net.input("x", "batch", "n", 32), net.input("cache", "batch", "p", 32)
    count, before = _size(net, x, 1), _size(net, cache, 1)
    total, one = net("Add", before, count), net.const(1, np.int64)
    sizes = [net("Unsqueeze", v, net.ints(0)) for v in (_size(net, x, 0), count, total)]
    lowest = onnx.numpy_helper.from_array(np.array([-3.4e38], np.float32))
    square = net("ConstantOfShape", net("Concat", *sizes[1:], axis=0), value=lowest)
    rows = net("Reshape", net("Range", before, total, one), net.ints(-1, 1))
    later = net("Greater", net("Range", net.const(0, np.int64), total, one), rows)
    hidden = net("Mul", net("Cast", later, to=DType.F32.onnx), net("Trilu", square, one, upper=1))
    target = net("Concat", sizes[0], net.ints(-1, -1), axis=0)
    kept = net("Where", net.const([False, True, True], np.bool_), net.ints(1, 1, 1), target)
    hidden = net("Expand", net("Unsqueeze", hidden, net.ints(0)), kept)
    keys = net("Concat", cache, x, axis=1)
    scores = net("Add", net("MatMul", x, net("Transpose", keys, perm=[0, 2, 1])), hidden)
    path = net.save(tmp_path / "m.onnx", net("MatMul", net("Softmax", scores, axis=-1), keys))
    feeds = {"x": normal(2, 5, 32), "cache": normal(2, past, 32, seed=1)}
    _assert_one_node(path, feeds, tmp_path, beside=1)  # the keys, which ONNX Runtime joins


def _assert_one_node(path: Path, feeds: dict[str, Any], folder: Path, beside: int = 0) -> None:
    """Assert that the model becomes one kernel, which passes verification on ``feeds``.

    ``beside`` is the number of operators that stay.
    """
    np.savez(folder / "data.npz", **feeds)
    report = api.optimize(path, replace(HERE, data=folder / "data.npz"))
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert (report.kernels, report.nodes_after) == (1, 1 + beside)


def _positions(net: Net) -> str:
    """Embed tokens and counted positions."""
    ids = net.ids("ids", "batch", "n")
    places = net("Range", np.array(0), _size(net, ids, 1), np.array(1))
    own = net("Gather", net.weight(40, 32), ids)
    near = net("Gather", net.weight(16, 32), net("Unsqueeze", places, net.ints(0)))
    return net("MatMul", net("Add", own, near), net.weight(32, 16))


def _last_tokens(net: Net, cast: bool = True) -> str:
    """Return the row of the largest token id of each item, as text encoders of CLIP do."""
    ids = net.ids("ids", "batch", "n")
    x = net("MatMul", net("Gather", net.weight(40, 32), ids), net.weight(32, 16))
    items, rows = _size(net, ids, 0), _size(net, ids, 1)
    compared = net("Cast", ids, to=DType.I32.onnx) if cast else ids
    last = net("ArgMax", compared, axis=-1, keepdims=0)
    first = net("Mul", net("Range", np.array(0), items, np.array(1)), rows)
    row = net("Gather", net("Flatten", x, axis=2), net("Add", last, first), axis=0)
    return net("MatMul", row, net.weight(16, 8))


def _last_tokens_as_they_are(net: Net) -> str:
    return _last_tokens(net, cast=False)


@pytest.mark.parametrize("build", [_positions, _last_tokens, _last_tokens_as_they_are])
def test_positions_and_rows_stay_in_the_program(
    build: Callable[[Net], str], tmp_path: Path
) -> None:
    net = Net(opset=17)
    path = net.save(tmp_path / "m.onnx", build(net))
    feeds = {"ids": np.array([[3, 1, 39, 0, 2], [39, 5, 4, 39, 1], [0, 0, 0, 0, 0]])}
    _assert_one_node(path, feeds, tmp_path)


@pytest.mark.parametrize(
    ("kind", "axis", "shape"),
    [
        ("Softmax", 1, (3, 4, 5)), ("Softmax", 2, (2, 4, 3, 5)), ("LogSoftmax", 0, (2, 7)),
        ("Softmax", -2, (1, 1, 1)), ("LogSoftmax", -3, (2, 3, 31)), ("Softmax", 1, (1, 97, 13)),
    ],
)  # fmt: skip
def test_softmax_over_several_axes(
    kind: str, axis: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Before opset 13 all axes from ``axis`` on are normalised together."""
    net = Net(opset=11)
    x = net.input("x", *shape[:1] if axis in (0, -3) else ["batch"], *shape[1:])
    y = net(kind, net("MatMul", x, net.weight(shape[-1], 6)), axis=axis)
    path = net.save(tmp_path / "m.onnx", net("MatMul", y, net.weight(6, 4)))
    _assert_one_node(path, {"x": normal(*shape)}, tmp_path)
