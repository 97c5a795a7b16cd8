"""What the fuzzer judges with: it sees what is wrong, and lets be what rounding decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.fuzz.doubling import doubled
from tests.fuzz.feeding import KINDS, feeds
from tests.fuzz.judging import settled
from tests.fuzz.original import Original
from tests.fuzz.steadiness import steady
from tests.fuzz.strategies import drawn
from tests.graphs import session
from tracea_graph.check.worker_pool import WorkerPool


def one(*rows: list[float], dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {"y": np.array(rows, dtype)}


@pytest.mark.parametrize(
    "wrong",
    [
        one([1, 2], [np.nan, 3]),
        one([1, 2], [np.inf, 4]),
        one([1, 2], [3.01, 4]),
        one([1, 2], [3, np.nan]),
        one([1, 2, 3], [3, 4, 5]),
        one([1, 2], [3, 4], dtype=np.float64),
    ],
)
def test_another_answer_is_seen(wrong: dict[str, np.ndarray]) -> None:
    right = one([1, 2], [3, 4])
    assert not settled(right, right, [right])
    assert settled(wrong, right, [right])


def test_large_numbers_of_a_row_excuse_none_of_another() -> None:
    right, wrong = one([1e30, 1], [1, 1]), one([1e30, 2], [1, 2])
    assert settled(wrong, right, [right]).endswith("in 1 of 4")


def test_what_roundings_disagree_in_says_nothing() -> None:
    right = one([np.inf, 2], [3, 4])
    lost, moved = one([np.nan, 2], [3, 4]), one([np.inf, 2], [3.1, 4])
    assert settled(lost, right, [right])
    assert not settled(lost, right, [right, lost])
    assert settled(one([np.inf, 2], [3.2, 4]), right, [right])
    assert not settled(one([np.inf, 2], [3.2, 4]), right, [right, moved])


def values_before_saturation(channels: int) -> onnx.ModelProto:
    """A sum of 1e8, 1 and −1e8, by a convolution and by a product."""
    weight = np.ones((1, channels, 1, 1), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Sub", ["r", "big"], ["s"]),
        helper.make_node("ReduceSum", ["s", "axes"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "ill", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, 1, 1])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("c", "y")],
        [
            numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.float32(1e8), "big"),
            numpy_helper.from_array(np.array([1]), "axes"),
        ],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_doubles_keep_what_floats_lose(tmp_path: Path) -> None:
    path = tmp_path / "ill.onnx"
    onnx.save(doubled(values_before_saturation(3)), path)
    feed = {"x": np.array([1.25, 2.25, 4.25]).reshape(1, 3, 1, 1)}
    with WorkerPool() as worker_pool:
        found = Original(worker_pool, path).answer(feed)
    assert found is not None
    assert found["c"].dtype == found["y"].dtype == np.float64
    assert found["c"].item() == 7.75
    assert found["y"].item() == 7.75 - 3e8


def normalized(*dims: int) -> onnx.ModelProto:
    """InstanceNormalization of one channel."""
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])
    graph = helper.make_graph(
        [node], "normalized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, *dims])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([number], np.float32), name)
         for name, number in (("s", 2.8), ("b", 3.3))],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_doubles_do_not_cancel_what_is_no_norm_of_one_number(tmp_path: Path) -> None:
    """ONNX Runtime multiplies −1e9 and its mean by 885 each, and subtracts."""
    path = tmp_path / "normalized.onnx"
    onnx.save(doubled(normalized(2, 2)), path)
    with WorkerPool() as worker_pool:
        original = Original(worker_pool, path)
        alike = original.answer({"x": np.full((1, 1, 2, 2), -1e9)})
        apart = original.answer({"x": np.arange(4.0).reshape(1, 1, 2, 2)})
    assert alike is not None and apart is not None
    np.testing.assert_allclose(alike["y"], np.full((1, 1, 2, 2), 3.3), rtol=1e-7)
    np.testing.assert_allclose(apart["y"].mean(), 3.3, rtol=1e-6)
    np.testing.assert_allclose(apart["y"].std(), 2.8, rtol=1e-4)


def test_a_model_that_rounds_inside_an_operator_does_not_stand() -> None:
    feed = {"x": np.array([100.7, 101.3], np.float32)}
    images = {size: {"": {"x": feed["x"][:size].reshape(1, 1, 1, size)}} for size in (1, 2)}
    assert steady(normalized(1, 2), images[2])
    assert not steady(normalized(1, 1), images[1])


def quantized_twice() -> onnx.ModelProto:
    """A product of two values in signed bytes, one of them transposed."""
    return parser.parse_model("""
        < ir_version: 10, opset_import: ["": 21] >
        f (float[2, 3] x) => (float[2, 2] y)
          <float s = {0.1}, int8 a = {5}, int8 b = {-5}> {
          q = QuantizeLinear (x, s, a)
          left = DequantizeLinear (q, s, a)
          p = QuantizeLinear (x, s, b)
          right = DequantizeLinear (p, s, b)
          turned = Transpose <perm = [1, 0]> (right)
          y = MatMul (left, turned)
        }""")


def test_a_model_that_optimizations_break_does_not_stand() -> None:
    model, feed = quantized_twice(), {"": {"x": np.ones((2, 3), np.float32)}}
    assert session(model).run(None, feed[""])
    with pytest.raises(Exception, match="output_dtype"):
        session(model, optimized=True)
    assert not steady(model, feed)
    model.opset_import[0].version = 20  # bytes are of their zero point's type
    assert steady(model, feed)


def hidden_rows() -> onnx.ModelProto:
    """LayerNormalization of rows of which a mask replaces every number by −1e9."""
    nodes = [
        helper.make_node("Where", ["keep", "x", "low"], ["masked"]),
        helper.make_node("LayerNormalization", ["masked", "s", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "hidden",
        [helper.make_tensor_value_info("keep", TensorProto.BOOL, [2, 1]),
         helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32(-1e9), "low"),
         numpy_helper.from_array(np.full(24, 0.5, np.float32), "s"),
         numpy_helper.from_array(np.full(24, 0.3, np.float32), "b")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_a_cancelled_variance_excuses_its_own_row_only(tmp_path: Path) -> None:
    """A mean that is one rounding off −1e9 turns the row into the bias plus or minus the scale."""
    path = tmp_path / "hidden.onnx"
    onnx.save(hidden_rows(), path)
    x = np.random.default_rng(2).standard_normal((2, 24)).astype(np.float32)
    feed = {"keep": np.array([[False], [True]]), "x": x}
    assert not steady(hidden_rows(), {"": feed})
    assert steady(hidden_rows(), {"": {**feed, "keep": np.array([[True], [True]])}})
    with WorkerPool() as worker_pool:
        original = Original(worker_pool, path)
        wanted = original.answer(feed)
        assert wanted is not None
        for row, number, wrong in (
            (0, 0.8, False),
            (0, -0.2, False),
            (0, 9, True),
            (1, 0.8, True),
        ):
            found = {"y": wanted["y"].copy()}
            found["y"][row] = number
            assert bool(original.judge(found, wanted, feed)) == wrong


def overflowing(op: str) -> onnx.ModelProto:
    """1.5 of one number and −1.2 of its neighbour."""
    w = np.array([1.5, -1.2], np.float32)
    node = helper.make_node(op, ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node], "overflowing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w.reshape(1, 1, 1, 2), "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_only_sums_that_overflow_in_some_order_may_be_infinite(op: str, tmp_path: Path) -> None:
    path = tmp_path / "overflowing.onnx"
    onnx.save(overflowing(op), path)
    low = np.finfo(np.float32).min
    feed = {"x": np.array([[[[low, low, 1, 2], [1, low / 2, 1, 1]]]], np.float32)}
    with WorkerPool() as worker_pool:
        original = Original(worker_pool, path)
        wanted = original.answer(feed)
        assert wanted is not None
        for number in (np.inf, -np.inf, np.nan):
            for row, wrong in ((0, False), (1, True)):
                found = {"y": wanted["y"].copy()}
                found["y"][0, 0, row, 1] = number
                assert bool(original.judge(found, wanted, feed)) == wrong


def losing() -> onnx.ModelProto:
    """Maxima over x, and attention of h in order."""
    nodes = [
        helper.make_node("ReduceMax", ["x", "axes"], ["best"], keepdims=0),
        helper.make_node("MaxPool", ["x"], ["pooled"], kernel_shape=[2], strides=[2]),
        helper.make_node(
            "Attention", ["h"] * 3, ["y"], q_num_heads=1, kv_num_heads=1, is_causal=1
        ),
    ]
    graph = helper.make_graph(
        nodes, "losing",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, *s])
         for n, s in (("x", (2, 4)), ("h", (3, 2)))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None)
         for n in ("best", "pooled", "y")],
        [numpy_helper.from_array(np.array([2]), "axes")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def test_nan_may_go_only_where_it_is_documented(tmp_path: Path) -> None:
    nan, inf, path = np.nan, np.inf, tmp_path / "losing.onnx"
    onnx.save(losing(), path)
    feed = {
        "x": np.array([[[1, nan, 3, 2], [nan, nan, 4, 3]]], np.float32),
        "h": np.array([[[1, 2], [3, 4], [inf, 0]]], np.float32),
    }
    share = 1 / (1 + np.exp(-14 / 2**0.5))  # of the second row's own key, 25 against 11
    found = {
        "best": np.array([[nan, nan]], np.float32),
        "pooled": np.array([[[1, 3], [nan, 4]]], np.float32),
        "y": np.array([[[nan, 2], [nan, 2 + 2 * share], [nan, nan]]], np.float32),
    }
    wrong = [("best", (0, 0), 2), ("pooled", (0, 1, 0), 4), ("pooled", (0, 0, 1), nan),
             ("y", (0, 0, 1), nan), ("y", (0, 1, 0), 1)]  # fmt: skip
    with WorkerPool() as worker_pool:
        original = Original(worker_pool, path)
        wanted = original.answer(feed)
        assert wanted is not None and not original.judge(found, wanted, feed)
        for name, at, number in wrong:
            other = {n: a.copy() for n, a in found.items()}
            other[name][at] = number
            assert original.judge(other, wanted, feed).startswith("best")
        left = Original(worker_pool, path, {"best"})
        assert left.judge(found, wanted, feed).startswith("best")
        assert not left.judge({**found, "best": wanted["best"]}, wanted, feed)


def test_groups_of_a_block_may_share_nan_and_others_may_not(tmp_path: Path) -> None:
    """Of four groups of eight channels two are a block."""
    w = np.random.default_rng(1).standard_normal((32, 8, 1, 1)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=4)
    graph = helper.make_graph(
        [node], "grouped", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "grouped.onnx")
    feed = {"x": np.ones((1, 32, 1, 2), np.float32)}
    feed["x"][0, 3, 0, 1] = np.nan
    with WorkerPool() as worker_pool:
        original = Original(worker_pool, tmp_path / "grouped.onnx")
        wanted = original.answer(feed)
        assert wanted is not None and np.isnan(wanted["y"]).sum() == 8
        for lost, wrong in ((16, False), (24, True)):
            found = {"y": wanted["y"].copy()}
            found["y"][0, :lost, 0, 1] = np.nan
            assert bool(original.judge(found, wanted, feed)) == wrong


def test_drawn_models_are_fed_what_is_hard() -> None:
    """But not what kernels round away: beside 1e30, what a block of codes multiplies."""
    drawn_models = list(drawn(60, 0))
    fed = [[*feeds(model)] for model in drawn_models]
    assert {feed.kind for of_one in fed for feed in of_one} == {*KINDS}
    coded = [any(n.op_type == "MatMulNBits" for n in model.graph.node) for model in drawn_models]
    huge = [any(feed.label == "1e30" for feed in of_one) for of_one in fed]
    assert any(coded) and any(huge)
    assert not any(map(all, zip(coded, huge, strict=True)))


def test_sizes_are_those_of_the_model_that_is_optimized() -> None:
    """Constants that may be fed count as what they are: heads of attention, here."""
    model = parser.parse_model("""
        < ir_version: 8, opset_import: ["": 17],
          metadata_props: ["fuzz.traits": "[]", "fuzz.dims":
            "{\\"x0\\": [\\"batch\\", 4, 8], \\"keep1\\": [\\"batch\\", 1, 4, 4]}"] >
        f (float[batch, 4, 8] x0, bool[batch, 1, 4, 4] keep1, int64[4] heads)
          => (float[batch, 2, 4, 4] y, bool[batch, 1, 4, 4] hidden)
          <int64[4] heads = {0, 0, 2, 4}, float low = {-1e9}> {
          rows = Reshape (x0, heads)
          q = Transpose <perm = [0, 2, 1, 3]> (rows)
          k = Transpose <perm = [0, 2, 3, 1]> (rows)
          scores = MatMul (q, k)
          hidden = Not (keep1)
          masked = Where (hidden, low, scores)
          shares = Softmax <axis = -1> (masked)
          y = MatMul (shares, q)
        }""")
    batches = {name: len(next(feeds(model)).arrays[name]) for name in ("x0", "keep1")}
    assert batches == {"x0": 2, "keep1": 2}
