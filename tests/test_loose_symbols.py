"""Axes of inputs that share a symbol and are fed different sizes: as ONNX Runtime answers.

It is asked without its optimizations and without sharing memory between values: both take sizes
of one name for equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.graphs import Net, normal
from tracea_graph import Options, api
from tracea_graph.check.worker_process import Array
from tracea_graph.onnx_io.model_validation import plain_session

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]

Make = Callable[[Net], tuple[str, ...]]


def every_with_every(net: Net) -> tuple[str, ...]:
    """A product of all rows of the one with all of the other, which have nothing to do with each
    other."""
    rows = net("Reshape", net("Tanh", "b"), net.ints(-1, 8))
    return (net("MatMul", net("Tanh", "a"), net("Transpose", rows, perm=[1, 0])),)


def counted(net: Net) -> tuple[str, ...]:
    """The one has a number for each of the other's rows added."""
    size = net("Gather", net("Shape", "b"), net.const(1, np.int64))
    ends = net.const(0, np.int64), net.const(1, np.int64)
    numbers = net("Cast", net("Range", ends[0], size, ends[1]), to=TensorProto.FLOAT)
    return (net("Tanh", net("Add", "a", net("Unsqueeze", numbers, net.ints(1)))),)


def one_after_the_other(net: Net) -> tuple[str, ...]:
    """What is computed of the one is freed before what is computed of the other is allocated."""
    largest = net("Hardmax", net("Tanh", "a"))
    return (net("Hardmax", net("Tanh", net("Add", "b", net("ReduceMax", largest)))),)


MODELS: dict[str, Make] = {
    "sum": lambda net: (net("Add", "a", "b"),),
    "chain": lambda net: (net("Tanh", net("Mul", net("Exp", "a"), net("Exp", "b"))),),
    "products": lambda net: (
        net("Relu", net("Add", net("MatMul", "a", net.weight(8, 16)),
                        net("MatMul", "b", net.weight(8, 16)))),
    ),
    "softmax": lambda net: (net("Softmax", net("Add", "a", "b"), axis=1),),
    "normalised": lambda net: (
        net("LayerNormalization", net("Add", "a", "b"), net.weight(8), axis=-1),
    ),
    "means": lambda net: (
        net("Exp", net("Add", "a", "b")), net("ReduceMean", "a", axes=[1]),
        net("ReduceMean", "b", axes=[1]),
    ),
    "apart": lambda net: (net("Tanh", "a"), net("Exp", "b")),
    "every with every": every_with_every,
    "counted": counted,
    "one after the other": one_after_the_other,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_sizes_that_differ(name: str, tmp_path: Path) -> None:
    net = Net(opset=17)
    for value in "ab":
        net.input(value, "n", "s", 8)
    net.graph(*MODELS[name](net))
    original = tmp_path / "m.onnx"
    onnx.save(net.model, original)
    report = api.optimize(original, Options(keep="all", target="cpu:scalar"))
    assert report.improved and report.status == "passed"
    ours, plain = api.session(report.output), plain_session(original.read_bytes())
    answered = 0
    for a, b in itertools.product([(2, 16), (2, 1), (1, 16), (1, 1), (2, 0)], repeat=2):
        feeds: dict[str, Array] = {"a": normal(*a, 8), "b": normal(*b, 8, seed=1)}
        try:
            wanted = plain.run(None, feeds)
        except Exception:  # the binding raises several unrelated types
            continue
        for x, y in zip(ours.run(None, feeds), wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4, err_msg=f"{a} and {b}")
        answered += 1
    assert answered > 10


def test_masks_and_types_of_one_row_or_number(tmp_path: Path) -> None:
    """Attention over embeddings, as encoders have it."""
    net = Net(opset=17)
    for value in ("ids", "types", "mask"):
        net.ids(value, "batch", "seq")
    words, types = (net("Gather", net.weight(50, 16), v) for v in ("ids", "types"))
    x = net("LayerNormalization", net("Add", words, types), net.weight(16), axis=-1)
    sizes = [net("Slice", net("Shape", x), net.ints(i), net.ints(i + 1)) for i in (0, 1)]
    by_head = net("Concat", *sizes, net.ints(2, 8), axis=0)

    def heads(*perm: int) -> str:
        made = net("Reshape", net("MatMul", x, net.weight(16, 16)), by_head)
        return net("Transpose", made, perm=perm)

    scores = net("MatMul", heads(0, 2, 1, 3), heads(0, 2, 3, 1))
    hidden = net("Sub", 1.0, net("Cast", net("Unsqueeze", "mask", net.ints(1, 2)), to=1))
    scores = net("Add", net("Mul", scores, 0.25), net("Mul", hidden, -1e4))
    y = net("MatMul", net("Softmax", scores, axis=-1), heads(0, 2, 1, 3))
    y = net("Reshape", net("Transpose", y, perm=[0, 2, 1, 3]), net.ints(0, 0, 16))
    out = net("Add", x, y)
    net.graph(out)
    original = tmp_path / "m.onnx"
    onnx.save(net.model, original)
    report = api.optimize(original, Options(keep="all", target="cpu:scalar"))
    assert report.kernels < 4
    ours, plain = api.session(report.output), plain_session(original.read_bytes())
    random = np.random.default_rng(0)
    sizes_of = [(2, 9), (1, 9), (2, 1), (1, 1)]
    for ids_as, types_as, mask_as in itertools.product(sizes_of[:2], sizes_of, sizes_of):
        feeds = {
            "ids": random.integers(0, 50, ids_as), "types": random.integers(0, 50, types_as),
            "mask": random.integers(0, 2, mask_as),
        }  # fmt: skip
        feeds["mask"][:, :1] = 1
        (found,), (wanted,) = ours.run(None, feeds), plain.run(None, feeds)
        np.testing.assert_allclose(
            found, wanted, atol=1e-3, err_msg=f"{ids_as}, {types_as}, {mask_as}"
        )
    with pytest.raises(Exception, match="has size 5 at axis"):
        ours.run(None, {**feeds, "mask": np.ones((2, 5), np.int64)})


@pytest.mark.parametrize("shown", [False, True])
def test_one_name_for_all_sizes_of_attention(shown: bool, tmp_path: Path) -> None:
    """A mask of one row, under the name of its columns; its sizes show or do not."""
    net = Net(opset=17)
    net.input("x", "n", "n", 16)
    net.input("mask", "n", "n", "n", "n")

    def heads(*perm: int) -> str:
        made = net("Reshape", net("MatMul", "x", net.weight(16, 16)), net.ints(0, 0, 2, 8))
        return net("Transpose", made, perm=perm)

    hidden = net("Mul", "mask", -3.0)
    scores = net("Add", net("MatMul", heads(0, 2, 1, 3), heads(0, 2, 3, 1)), hidden)
    y = net("MatMul", net("Softmax", scores, axis=-1), heads(0, 2, 1, 3))
    net.graph(y, *([net("Exp", hidden)] if shown else []))
    original = tmp_path / "m.onnx"
    onnx.save(net.model, original)
    report = api.optimize(original, Options(keep="all", target="cpu:scalar", verify=False))
    assert report.improved
    feeds: dict[str, Array] = {"x": normal(2, 9, 16), "mask": normal(2, 1, 1, 9, seed=1)}
    ours, plain = api.session(report.output), plain_session(original.read_bytes())
    for found, wanted in zip(ours.run(None, feeds), plain.run(None, feeds), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
