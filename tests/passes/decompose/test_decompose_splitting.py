"""Paddings and integer sums that would split a program become forms that have kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.graphs import (
    Net,
    assert_same,
    evaluate,
    loaded,
    normal,
    ops,
    reasons,
    schedule_only,
)
from tracea_graph import load
from tracea_graph.ir import DType
from tracea_graph.passes.attention.attention_op import AttentionOp
from tracea_graph.passes.decompose.decompose import Decompose

WHOLE = Decompose(whole_models=True)
PADS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], dict[str, Any]]] = {
    "reflected sequences": ((3, 9), (0, 0, 4, 0, 0, 5), (), {"mode": "reflect"}),
    "edges of sequences": ((3, 9), (0, 0, 2, 0, 0, 0), (), {"mode": "edge"}),
    "volumes": ((3, 4, 5, 6), (0, 0, 1, 2, 0, 0, 0, 1, 0, 3), (), {}),
    "all axes of volumes": ((3, 4, 5, 6), (0, 0, 1, 2, 1, 0, 0, 1, 0, 3), (), {}),
    "channels and columns": ((3, 4, 5), (0, 1, 0, 2, 0, 0, 0, 1), (), {}),
    "a number": ((3, 4, 5), (0, 0, 1, 2, 0, 0, 0, 1), (-np.inf,), {}),
    "a number around volumes": ((3, 4, 5, 6), (0, 0, 1, 2, 1, 0, 0, 1, 0, 3), (2.5,), {}),
}


@pytest.mark.parametrize("form", PADS)
def test_pads(form: str) -> None:
    shape, pads, value, attrs = PADS[form]
    net = Net()
    given = [net.const(v) for v in value]
    graph = loaded(net, net("Pad", net.input("x", "n", *shape), net.ints(*pads), *given, **attrs))
    trace = schedule_only(graph, WHOLE)
    assert trace.applied()["decompose"] >= 1, trace.misses()
    pad = [r for r in graph.regions() if r.op == "Pad"]
    assert pad and all(graph.spec(r.operands[0]).rank == 4 for r in pad)
    x = normal(2, *shape)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[0], net.run({"x": x})[0])


@pytest.mark.parametrize(
    ("pads", "value", "size", "why"),
    [
        ((0, 0, -1, 0, 0, 0, 0, 0), 0.0, 5, "not known, or negative"),
        ((0, 0, 1, 0, 0, 0, 0, 0), 1.0, "h", "the size of a padded axis is not known"),
        ((0, 0, 1, 0, 0, 0, 0, 0), 1.0, 1 << 23, "its mask would be too large"),
    ],
)
def test_pads_that_stay_say_why(
    pads: tuple[int, ...], value: float, size: int | str, why: str
) -> None:
    net = Net()
    y = net("Pad", net.input("x", 1, 1, size, 2), net.ints(*pads), net.const(value))
    trace = schedule_only(loaded(net, y), WHOLE)
    assert any(why in said for said in reasons(trace, "decompose")), trace.misses()


@pytest.mark.parametrize("points", ["", "x", "both"])
@pytest.mark.parametrize("op", ["MatMulInteger", "ConvInteger"])
def test_int32_sums(op: str, points: str) -> None:
    """The rule that reads sums as float32 computes them, and int32 holds them exactly."""
    net, image = Net(), op == "ConvInteger"
    shape, kernel = ((3, 8, 8), (6, 3, 3, 3)) if image else ((20,), (20, 7))
    rng = np.random.default_rng(0)
    weight = net.const(rng.integers(-90, 90, kernel), np.int8)
    zero = [net.const(7, np.uint8)] if points else []
    zeros = [net.const(2, np.int8)] if points == "both" else []
    x = net.input("x", "n", *shape, dtype=DType.U8)
    y = net("Add", net(op, x, weight, *zero, *zeros), net.const(5, np.int32))
    graph = loaded(net, y)
    assert schedule_only(graph, WHOLE).applied() == {"decompose": 1}
    assert ops(graph) == [op, "Cast", "Cast", "Add"]
    assert_same(net, graph, {"x": rng.integers(0, 256, (2, *shape)).astype(np.uint8)})
    assert not schedule_only(graph, WHOLE).applied()


def test_sums_that_float32_may_round_stay() -> None:
    net = Net()
    weight = net.const(np.full((600, 2), 127), np.int8)
    graph = net.graph(net("MatMulInteger", net.input("x", "n", 600, dtype=DType.U8), weight))
    trace = schedule_only(graph, WHOLE)
    assert any("exceed what float32 holds" in said for said in reasons(trace, "decompose"))


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("summed", [False, True])
def test_embeddings_of_optimized_text_encoders(
    segments: bool, positions: bool, summed: bool
) -> None:
    net = Net()
    kinds = net.weight(2, 16) if segments else ""
    ids = net.input("ids", "n", "s", dtype=DType.I32)
    operands = (
        ids, net.input("segments", "n", "s", dtype=DType.I32) if segments else "",
        net.weight(50, 16), net.weight(12, 16), kinds, net.weight(16), net.weight(16), "",
        net.input("positions", "n", "s", dtype=DType.I32) if positions else "",
    )  # fmt: skip
    y = net.many("EmbedLayerNormalization", 3 if summed else 2, *operands, domain="com.microsoft")
    outputs = (y[0], y[2]) if summed else (y[0],)
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(0, most, (3, 7), np.int32) for name, most in
             (("ids", 50), ("segments", 2), ("positions", 12)) if name in net.inputs}  # fmt: skip
    graph = net.graph(*outputs)
    trace = schedule_only(graph, WHOLE)
    assert trace.applied()["decompose"] >= 1, trace.misses()
    assert "LayerNormalization" in ops(graph)
    assert_same(net, graph, feeds)


@pytest.mark.parametrize("masked", [True, False])
def test_an_optimized_text_encoder_attends_to_as_many_keys_as_are_counted(
    masked: bool, tmp_path: Path
) -> None:
    """Only ones in the mask count."""
    net = Net()
    ids = net.input("ids", 3, 7, dtype=DType.I32)
    mask = net.input("mask", 3, 7, dtype=DType.I32) if masked else ""
    operands = (ids, "", net.weight(50, 16), net.weight(12, 16), "", net.weight(16),
                net.weight(16), mask)  # fmt: skip
    x, counts = net.many("EmbedLayerNormalization", 2, *operands, domain="com.microsoft")
    kept = counts if masked else ""
    y = net("Attention", x, net.weight(16, 48), net.weight(48), kept, num_heads=2,
            domain="com.microsoft")  # fmt: skip
    outputs = (y, counts) if masked else (y,)
    graph = load(net.save(tmp_path / "encoder.onnx", *outputs))
    schedule_only(graph, WHOLE, AttentionOp())
    assert not any(name.startswith("com.microsoft") for name in ops(graph)), ops(graph)
    feeds = {"ids": np.random.default_rng(0).integers(0, 50, (3, 7), np.int32)}
    if masked:
        feeds["mask"] = np.array([[1] * 7, [1] * 4 + [0] * 3, [1, 1, 2, 0, 0, 0, 0]], np.int32)
    assert_same(net, graph, feeds)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(
    ("past", "rows", "axis"),
    [
        ((3, 2, 9, 4), 2, -2), ((3, 9, 4), 1, 1), ((3, 2, 4, 9), 3, 3),
        (("n", 2, 9, 4), "s", -2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("placed", [True, False])
def test_rows_written_into_a_cache(
    past: tuple[Any, ...], rows: int | str, axis: int, mode: str, placed: bool
) -> None:
    net, update = Net(24), list(past)
    update[axis] = rows
    operands = [net.input("past", *past), net.input("update", *update)]
    operands += [net.ids("starts", past[0])] if placed else []
    graph = net.graph(net("TensorScatter", *operands, axis=axis, mode=mode))
    trace = schedule_only(graph, WHOLE)
    assert trace.applied() == {"decompose": 1}, trace.misses()
    assert "ScatterElements" in ops(graph)
    sizes = {"n": 3, "s": 2}
    shapes = ([sizes.get(d, d) for d in given] for given in (past, update))
    feeds = {x: normal(*map(int, s), seed=i) for i, (x, s) in
             enumerate(zip(("past", "update"), shapes, strict=True))}  # fmt: skip
    if placed:
        feeds["starts"] = np.array([0, 6, 8 if mode == "circular" else 4])
    (want,) = ReferenceEvaluator(net.model).run(None, feeds)  # type: ignore[misc]
    (found,) = evaluate(graph, feeds)
    np.testing.assert_array_equal(found, want)


def test_a_circular_cache_of_unknown_length_stays() -> None:
    net = Net(24)
    y = net("TensorScatter", net.input("past", 2, "n", 4), net.input("update", 2, 1, 4),
            mode="circular")  # fmt: skip
    trace = schedule_only(net.graph(y), WHOLE)
    assert reasons(trace, "decompose") == {"the length of its circular cache is not known"}
