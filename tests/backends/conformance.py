"""What every backend must do: tests that the test class of a backend inherits.

    class TestPlain(Conformance):
        target = "plain:c"

A backend may lack kernels for some operators, but a result is right whatever it lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.graphs import Net, normal
from tests.tiny import error_between, fed_too
from tracea_graph import Options, Report, api, target
from tracea_graph.check.worker_process import Worker
from tracea_graph.config import TOLERANCE
from tracea_graph.ir import DType
from tracea_graph.onnx_io import backend_of, load
from tracea_graph.pipeline import planning

__all__ = ["CLOSE", "NETS", "Conformance", "kernels_run", "perceptron"]

CLOSE = 1e-5
"""Largest error accepted in fp32, as a share of the largest magnitude."""


def _perceptron(net: Net) -> str:
    """Build products with a norm, a softmax and an operator that few backends have."""
    x = net("Gemm", net.input("x", "batch", 24), net.weight(24, 32), net.weight(32))
    x = net("LayerNormalization", net("Relu", x), net.weight(32), net.weight(32), axis=-1)
    return net("Softmax", net("MatMul", net("Sin", x), net.weight(32, 10)), axis=-1)


def perceptron(path: Path) -> Path:
    """Write :func:`_perceptron` to ``path``."""
    net = Net()
    return net.save(path, _perceptron(net))


def kernels_run(report: Report, feed: dict[str, np.ndarray]) -> int:
    """Count the nodes that ONNX Runtime ran as kernels of the library."""
    with Worker() as worker:
        _open(worker, report)
        return _kernels_run(worker, report, feed)


def _open(worker: Worker, report: Report) -> None:
    """Open the original as ``original``, without ONNX Runtime's optimizations, and ``result``."""
    assert report.library is not None
    worker.open("original", Path(report.input), level="off")
    worker.open("result", Path(report.output), Path(report.library))


def _kernels_run(worker: Worker, report: Report, feed: dict[str, np.ndarray]) -> int:
    nodes = worker.profile("result", feed, runs=2)
    return sum(node.domain == report.domain for node in nodes)


def heads(net: Net) -> str:
    """Build attention heads: side-by-side heads, a transposed matrix, middle axes, masks."""
    x = net.input("x", "batch", 6, 32)
    own = net("Transpose", net("Reshape", x, np.array([0, 0, 4, 8])), perm=[0, 2, 1, 3])
    scores = net("MatMul", own, net("Transpose", own, perm=[0, 1, 3, 2]))
    kept = net("Where", net("Less", scores, 0.0), net("Tanh", scores), net("Mul", scores, 2.0))
    logs = net("LogSoftmax", kept, axis=1)
    other = net("Gemm", net("Flatten", logs), net.weight(7, 144), net.weight(7), transB=1)
    return net("Clip", other, -2.0, 2.0)


def images(net: Net, groups: int = 1, filters: int = 16) -> str:
    """Build a convolutional network with a residual, pooling and a classifier."""
    x = net.input("x", "batch", 8, 14, 13)
    weights = net.weight(filters, 8 // groups, 3, 3), net.weight(filters)
    y = net("Relu", net("Conv", x, *weights, pads=[1, 1, 1, 1], group=groups))
    z = net("Conv", y, net.weight(filters, filters, 1, 1), net.weight(filters))
    y = net("Relu", net("Add", y, z))
    y = net("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = net("Flatten", net("GlobalAveragePool", y))
    return net("Gemm", y, net.weight(filters, 5), net.weight(5))


def moved(net: Net) -> str:
    """Build a MatMul of a concatenation of two views of one slice."""
    x = net.input("x", "batch", 6, 8)
    part = net("Slice", x, np.array([3]), np.array([6]), np.array([1]))
    return net("MatMul", net("Concat", part, net("Neg", x), axis=1), net.weight(8, 5))


def lines(net: Net) -> str:
    """Build a 1-D convolution over an axis of symbolic length."""
    x = net.input("x", "batch", 6, "n")
    y = net("Relu", net("Conv", x, net.weight(8, 6, 3), net.weight(8), pads=[1, 1]))
    return net("MatMul", net("Transpose", y, perm=[0, 2, 1]), net.weight(8, 3))


def pasted(net: Net) -> str:
    """Build a U-Net skip: pad an upsampled image to the input's size, and concatenate both."""
    x = net.input("x", "batch", 8, "rows", "columns")  # "h" and "w" would be planned for 224
    y = net("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    y = net("ConvTranspose", y, net.weight(8, 8, 2, 2), net.weight(8), strides=[2, 2])
    sizes = [net("Gather", net("Shape", v), np.array([2, 3])) for v in (x, y)]
    lack = net("Sub", *sizes)
    zeros = np.zeros(4, np.int64)
    pads = net("Concat", zeros, np.zeros(2, np.int64), lack, axis=0)
    both = net("Concat", x, net("Pad", y, pads), axis=1)
    return net("Relu", net("Conv", both, net.weight(5, 16, 1, 1), net.weight(5)))


def taken(net: Net) -> str:
    """Build a GatherElements of a MatMul's result."""
    y = net("MatMul", net.input("x", 2, 6, 8), net.weight(8, 12))
    places = np.random.default_rng(0).integers(-12, 12, (2, 6, 5))
    return net("MatMul", net("GatherElements", y, places, axis=-1), net.weight(5, 3))


def chosen(net: Net) -> str:
    """Build a product of the largest elements of each row."""
    y = net("MatMul", net.input("x", "batch", 40), net.weight(40, 33))
    values, _ = net.many("TopK", 2, y, np.array([5]))
    return net("MatMul", values, net.weight(5, 8))


def resized(net: Net) -> str:
    """Build a pyramid of images: interpolated, doubled, reflected at the borders, added up."""
    x = net.input("x", "batch", 8, 7, 9)
    weights = net.weight(6, 8, 3, 3), net.weight(6)
    y = net("Conv", net("Pad", x, np.array([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect"), *weights)
    sizes = np.array([1, 1, 2, 2], np.float32)
    z = net("Resize", net("Relu", y), "", net.const(sizes), mode="linear")
    z = net("Conv", z, net.weight(6, 6, 2, 2), net.weight(6), strides=[2, 2])
    return net("Relu", net("Add", y, z))


def spoken(net: Net) -> str:
    """Build a tagger: a bidirectional LSTM, then a GRU, then a product for each step."""
    x = net.input("x", "n", 3, 12)
    gates = net.weight(2, 64, 12), net.weight(2, 64, 16), net.weight(2, 128)
    y, _, _ = net.many("LSTM", 3, x, *gates, hidden_size=16, direction="bidirectional")
    y = net("Reshape", net("Transpose", y, perm=[0, 2, 1, 3]), np.array([0, 0, -1]))
    gates = net.weight(1, 24, 32), net.weight(1, 24, 8), net.weight(1, 48)
    y, _ = net.many("GRU", 2, y, *gates, hidden_size=8, linear_before_reset=1)
    return net("MatMul", net("Squeeze", y, np.array([1])), net.weight(8, 5))


def ranked(net: Net) -> str:
    """Build choices among integers: the best ones, in the order of their places."""
    _, places = net.many("TopK", 2, net.input("x", "batch", 20), net.ints(6))
    ordered, order = net.many("TopK", 2, places, net.ints(6), largest=0)
    again = net("GatherElements", places, order, axis=1)
    found = ordered, net("ArgMin", places, axis=1), again
    numbers = net("Concat", *(net("Cast", v, to=DType.F32.onnx) for v in found), axis=1)
    return net("MatMul", numbers, net.weight(13, 7))


def updated(net: Net) -> str:
    """Build slices of items that tuples name, added to rows of a table in their order."""
    x = net.input("x", "batch", 5)
    y = net("Reshape", net("MatMul", x, net.weight(5, 60)), net.ints(0, 5, 12))
    _, places = net.many("TopK", 2, x, net.ints(4))
    index = net("Unsqueeze", places, net.ints(2))
    rows = net("GatherND", y, index, batch_dims=1)
    sums = net("ScatterND", net.weight(5, 12), index, rows, reduction="add")
    return net("MatMul", net("Add", y, sums), net.weight(12, 3))


NETS: dict[str, Callable[[Net], str]] = {
    "perceptron": _perceptron, "heads": heads, "images": images,
    "depthwise": lambda net: images(net, 8, 8), "groups": lambda net: images(net, 2, 16),
    "moved": moved, "lines": lines, "pasted": pasted, "taken": taken,
    "chosen": chosen, "resized": resized, "spoken": spoken, "ranked": ranked,
    "updated": updated,
}  # fmt: skip
"""Networks that together use every family of kernels."""

SIZES = (
    {"batch": 1, "n": 5, "rows": 8, "columns": 8},
    {"batch": 3, "n": 17, "rows": 9, "columns": 12},
    {"batch": 0, "n": 4, "rows": 7, "columns": 6},
)
"""Values of the symbols; the sizes planned for are others."""


def _feed(net: Net, sizes: dict[str, int]) -> dict[str, Any]:
    (value,) = net.inputs.values()
    dims = value.type.tensor_type.shape.dim
    return {value.name: normal(*(sizes.get(d.dim_param, d.dim_value) for d in dims))}


def _shapes(answer: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in answer.items()}


class Conformance:
    """Tests of a registered backend through the whole tool: planned, built, verified and run."""

    target: ClassVar[str]
    """Name of the target that is tested."""

    @pytest.mark.parametrize("name", NETS)
    def test_results_equal_the_original_at_every_size(self, name: str, tmp_path: Path) -> None:
        net = Net()
        path = net.save(tmp_path / "m.onnx", NETS[name](net))
        report = api.optimize(path, Options(target=self.target, keep="all"))
        assert (report.outcome, report.status) == ("improved", "passed"), report.reason
        backend = target.target_of(self.target, "fp32").backend.name
        assert report.backend == backend_of(load(Path(report.output))) == backend
        with Worker() as worker:
            _open(worker, report)
            for sizes in SIZES:
                feed = _feed(net, sizes)
                wanted, found = (worker.run(name, feed) for name in ("original", "result"))
                assert _shapes(found) == _shapes(wanted)
                if any(y.size for y in wanted.values()):
                    assert error_between(found, wanted) < TOLERANCE.exact, sizes
            assert _kernels_run(worker, report, _feed(net, SIZES[0])) == report.kernels > 0

    def test_what_it_lacks_has_a_reason(self, tmp_path: Path) -> None:
        """A model that is not one kernel says why."""
        net = Net()
        path = net.save(tmp_path / "m.onnx", _perceptron(net))
        report = api.optimize(path, Options(target=self.target, keep="all"))
        told = [row.reason for row in report.rules if row.verdict == "missed" and row.reason]
        assert told or report.nodes_after == report.kernels == 1

    def test_weights_that_may_be_fed_are_compared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Default weights run the kernels; a different weight runs the original nodes."""
        monkeypatch.setattr(planning, "_WORTH", math.inf)  # keep a guard that gains nothing
        net = Net()
        x = net("Gemm", net.input("x", "batch", 64), net.weight(64, 48), net.weight(48))
        path = fed_too(net.save(tmp_path / "m.onnx", net("Relu", x)))
        report = api.optimize(path, Options(target=self.target, keep="all"))
        assert (report.outcome, report.status) == ("improved", "passed"), report.reason
        feed = {"x": normal(3, 64)}
        name, held = next(iter(net.weights.items()))
        # one of the kernels is the guard
        with Worker() as worker:
            _open(worker, report)
            for others, kernels in (({}, 2), ({name: held * np.float32(1.5)}, 1)):
                given = feed | others
                wanted, found = (worker.run(name, given) for name in ("original", "result"))
                assert error_between(found, wanted) < CLOSE
                assert _kernels_run(worker, report, given) == kernels
