"""The zoo: small stored graphs, weights that are always the same, outputs that mean something."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from models.export import rules, strip
from models.make import GRAPHS, available, load_stored, make, regrow

Array = np.ndarray[Any, np.dtype[Any]]
LARGEST_STORED = 300_000
SMALL = ("tiny-bert", "minilm", "minilm-dynamo", "minilm-sdpa", "minilm-v5")
LARGE = tuple(name for name in available() if name not in SMALL)
EVERY = (*SMALL[:2], *(pytest.param(n, marks=pytest.mark.slow) for n in (*SMALL[2:], *LARGE)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


def session_of(model: Path | bytes) -> ort.InferenceSession:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def feeds_of(session: ort.InferenceSession, batch: int = 2, length: int = 12) -> dict[str, Array]:
    rng = np.random.default_rng(7)
    made: dict[str, Array] = {
        "input_ids": rng.integers(0, 500, (batch, length)),
        "attention_mask": np.ones((batch, length), np.int64),
        "token_type_ids": np.zeros((batch, length), np.int64),
        "pixel_values": rng.random((batch, 3, 224, 224), dtype=np.float32),
    }
    return {value.name: made[value.name] for value in session.get_inputs()}


@pytest.mark.parametrize("name", available())
def test_stored_graphs_are_small_and_say_nothing_about_where_they_were_made(name: str) -> None:
    assert (GRAPHS / f"{name}.onnx.gz").stat().st_size <= LARGEST_STORED
    text = load_stored(name).SerializeToString()
    assert not any(word in text for word in (b"site-packages", b"/home/", b"/usr/", b'File "'))


@pytest.mark.parametrize("name", available())
def test_every_large_float_weight_is_stored_as_a_rule(name: str) -> None:
    for tensor in load_stored(name).graph.initializer:
        count = int(np.prod(tensor.dims))
        if tensor.data_type == TensorProto.FLOAT and count > 64:
            assert not tensor.raw_data
            assert len(next(regrow(tensor))) == min(count, 1 << 20)


def test_regrown_twice_is_the_same_file(folder: Path, tmp_path: Path) -> None:
    assert make("minilm", folder).read_bytes() == make("minilm", tmp_path).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["minilm.onnx"]


def test_the_streamed_file_is_what_protobuf_would_write_of_it(folder: Path) -> None:
    model = onnx.load(make("minilm", folder))
    stored = load_stored("minilm")
    assert model.graph.node == stored.graph.node
    assert [t.name for t in model.graph.initializer] == [t.name for t in stored.graph.initializer]
    assert all(t.raw_data and not t.doc_string for t in model.graph.initializer)
    assert model.ByteSize() == (folder / "minilm.onnx").stat().st_size


@pytest.mark.parametrize("name", EVERY)
def test_models_are_valid_and_their_outputs_finite_and_alive(name: str, folder: Path) -> None:
    path = make(name, folder)
    onnx.checker.check_model(path, full_check=True)
    session = session_of(path)
    feeds = feeds_of(session)
    for output in session.run(None, feeds):
        assert np.isfinite(output).all()
        assert 0.3 < output.std() < 3.0
        assert np.abs(output[0] - output[1]).max() > 0.1, "the output ignores the input"


@pytest.mark.parametrize("name", EVERY)
def test_a_padded_mask_changes_the_row_it_pads_and_no_other(name: str, folder: Path) -> None:
    session = session_of(make(name, folder))
    feeds = feeds_of(session)
    if "attention_mask" not in feeds:
        pytest.skip("an image model has no mask")
    padded = {key: value.copy() for key, value in feeds.items()}
    padded["attention_mask"][1, :5] = 0
    before, after = session.run(None, feeds)[0], session.run(None, padded)[0]
    assert np.abs(before[0] - after[0]).max() < 1e-4
    assert np.abs(before[1, 5:] - after[1, 5:]).max() > 0.1


def test_every_layer_matters(folder: Path) -> None:
    model = onnx.load(make("minilm", folder))
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    del model.graph.initializer[:]
    model.graph.input.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, w.shape) for n, w in weights.items()
    )
    session = session_of(model.SerializeToString())
    tokens = _tokens()
    expected = session.run(None, {**weights, **tokens})[0]
    rng = np.random.default_rng(3)
    for name, weight in weights.items():
        if name.endswith("key.bias"):
            continue  # moves every score of a row alike, which a softmax does not see
        noise = 1 + 0.3 * rng.standard_normal(weight.shape, dtype=np.float32)
        moved = session.run(None, {**weights, **tokens, name: weight * noise})[0]
        assert np.abs(moved - expected).max() > 1e-4 * np.abs(expected).max(), name


def _tokens() -> Mapping[str, Array]:
    ids = np.random.default_rng(5).integers(0, 30000, (1, 8))
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }


@pytest.mark.parametrize("name", available())
def test_batch_and_sequence_stay_dynamic(name: str) -> None:
    graph = load_stored(name).graph
    for value in graph.input:
        dims = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        assert dims[:2] == ["batch", "sequence"] or dims == ["batch", "", "", ""]


def test_an_unknown_model_is_named_with_those_there_are() -> None:
    with pytest.raises(KeyError, match="no model 'nothing' in the zoo, only bert-base"):
        make("nothing")


def test_a_tensor_with_values_cannot_be_regrown() -> None:
    whole = onnx.numpy_helper.from_array(np.ones(3, np.float32), "w")
    with pytest.raises(ValueError):
        next(regrow(whole))


def small_model() -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (int64[b, s] ids, float[b, s, 16] x) => (float[b, s, 9] y)
          <float[20, 16] table, float[16] bias, float[96] gamma, float[9, 16] w, float[16, 96] up>
        {
            e = Gather(table, ids)
            a = Add(e, x)
            q = MatMul(a, up)
            n = LayerNormalization(q, gamma)
            r = Reshape(n, shape)
            t = Transpose<perm = [1, 0]>(w)
            y = MatMul(r, t)
        }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    shapes = {"table": (20, 16), "gamma": (96,), "w": (9, 16), "up": (16, 96)}
    del model.graph.initializer[:]
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n)
        for n, s in shapes.items()
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, -1, 16]), "shape"))
    return model


def test_rules_follow_the_use_of_a_weight() -> None:
    found = rules(small_model().graph)
    assert found == {
        "table": (0.0, 0.05),
        "gamma": (1.0, 0.1),
        "w": (0.0, 0.25),
        "up": (0.0, 0.25),
    }


def test_strip_keeps_small_tensors_and_drops_stack_traces() -> None:
    model = small_model()
    model.graph.node[0].doc_string = "File here.py, line 3"
    model.graph.node[1].metadata_props.add(key="stack_trace", value="here.py")
    stripped = strip(model)
    assert b"here.py" not in stripped.SerializeToString()
    kept = {t.name: bool(t.raw_data) for t in stripped.graph.initializer}
    assert kept == {"table": False, "gamma": False, "w": False, "up": False, "shape": True}
