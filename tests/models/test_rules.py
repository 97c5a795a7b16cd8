"""How weights are stored as rules, regrown from them, and balanced."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.balance import balance
from models.make import regrow
from models.rules import WeightRule, rules, strip
from tests.graphs import session
from tests.models.samples import Array


def parsed(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """A model from its text, with random weights of the given shapes."""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    )
    return model


def small_model() -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (int64[b, s] ids, float[b, s, 16] x) => (float[b, s, 9] y)
          <int64[3] shape = {0, -1, 16}>
        {
            e = Gather(table, ids)
            a = Add(e, x)
            q = MatMul(a, up)
            n = LayerNormalization(q, gamma)
            r = Reshape(n, shape)
            t = Transpose<perm = [1, 0]>(w)
            y = MatMul(r, t)
        }"""
    return parsed(text, table=(20, 16), gamma=(96,), w=(9, 16), up=(16, 96))


def test_rules_follow_the_use_of_a_weight() -> None:
    assert rules(small_model().graph) == {
        "table": WeightRule("normal", 0.0, 0.05),
        "gamma": WeightRule("normal", 1.0, 0.1),
        "w": WeightRule("normal", 0.0, 0.25),
        "up": WeightRule("normal", 0.0, 0.25),
    }


def test_queries_are_sharper_and_gains_multiply() -> None:
    model = small_model()
    model.graph.node[2].output[0] = "/layer/query/MatMul_output_0"
    assert rules(model.graph)["up"] == WeightRule("normal", 0.0, 0.375)
    assert rules(model.graph, [("/query/", 0.5), ("none", 9.0)])["up"].b == 0.1875


def test_rules_of_images_and_sequences() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[b, 16, h, w] x, float[t, b, 32] s) => (float[b, 8, i, j] y, float y_h) {
            d = Conv<group = 16>(x, depthwise)
            c = Conv(d, full, bias)
            n = BatchNormalization(c, scale, shift, mean, variance)
            y = ConvTranspose<strides = [2, 2]>(n, rise)
            a, y_h = GRU<hidden_size = 24>(s, w, r, both)
        }"""
    found = rules(
        parsed(
            text,
            depthwise=(16, 1, 3, 3),
            full=(128, 16, 1, 1),
            bias=(128,),
            scale=(128,),
            shift=(128,),
            mean=(128,),
            variance=(128,),
            rise=(128, 8, 2, 2),
            w=(1, 72, 32),
            r=(1, 72, 24),
            both=(1, 144),
        ).graph
    )
    assert found["depthwise"] == WeightRule("normal", 0.0, pytest.approx(np.sqrt(2 / 9)))
    assert found["full"] == WeightRule("even", 0.0, pytest.approx(np.sqrt(2 / 16)))
    assert found["bias"] == found["shift"] == found["mean"] == WeightRule("normal", 0.0, 0.1)
    assert found["scale"] == WeightRule("normal", 1.0, 0.1)
    assert found["variance"] == WeightRule("uniform", 0.5, 1.5)
    assert found["rise"] == WeightRule("normal", 0.0, pytest.approx(np.sqrt(2 / 128)))
    assert found["w"].b == pytest.approx(32**-0.5) and found["r"].b == pytest.approx(24**-0.5)
    assert found["both"] == WeightRule("normal", 0.0, 0.1)


def test_a_table_keeps_its_values() -> None:
    model = small_model()
    grid = np.repeat(np.arange(10, dtype=np.float32), 10)
    model.graph.initializer.append(onnx.numpy_helper.from_array(grid, "grid"))
    assert "grid" not in rules(model.graph)


def test_strip_keeps_small_tensors_and_drops_stack_traces() -> None:
    model = small_model()
    model.graph.node[0].doc_string = "File here.py, line 3"
    model.graph.node[1].metadata_props.add(key="stack_trace", value="here.py")
    stripped = strip(model)
    assert b"here.py" not in stripped.SerializeToString()
    kept = {t.name: bool(t.raw_data or t.int64_data) for t in stripped.graph.initializer}
    assert kept == {"table": False, "gamma": False, "w": False, "up": False, "shape": True}


def grown(rule: str, *dims: int) -> Array:
    tensor = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, doc_string=rule)
    return np.concatenate(list(regrow(tensor))).reshape(dims)


def test_regrown_values_obey_their_rule() -> None:
    normal = grown("normal 1 0.1", 1100, 1000)
    assert normal.size > 1 << 20
    assert normal.mean() == pytest.approx(1.0, abs=1e-3)
    assert normal.std() == pytest.approx(0.1, rel=0.01)
    uniform = grown("uniform 0.5 1.5", 5000)
    assert 0.5 <= uniform.min() < 0.51 and 1.49 < uniform.max() < 1.5


def test_an_even_weight_has_its_mean_over_the_inputs_of_each_filter() -> None:
    values = grown("even 0 0.5", 300, 400, 3, 3)
    assert values.size > 1 << 20
    assert np.abs(values.mean(1)).max() < 1e-6
    assert values.std() == pytest.approx(0.5, rel=0.01)


def test_a_tensor_with_values_cannot_be_regrown() -> None:
    with pytest.raises(ValueError, match="'w' has no rule"):
        grown("", 3)


def test_balance_gives_products_unit_scale_and_branches_less() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 16, 6, 6] x) => (float[2, 16, 6, 6] y) {
            a = Conv(x, first)
            r = Relu(a)
            b = Conv(r, second)
            y = Add(r, b)
        }"""
    model = strip(parsed(text, first=(16, 16, 1, 1), second=(16, 16, 1, 1)), [("first", 50.0)])
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 16, 6, 6), dtype=np.float32)}
    balance(model, feeds)
    for tensor in model.graph.initializer:
        values = np.concatenate(list(regrow(tensor)))
        tensor.raw_data, tensor.doc_string = values.tobytes(), ""
    for name in "ab":
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    _, a, b = session(model, optimized=True).run(None, feeds)
    assert np.sqrt((a**2).mean()) == pytest.approx(1.0, rel=1e-3)
    assert np.sqrt((b**2).mean()) == pytest.approx(0.4, rel=1e-3)
