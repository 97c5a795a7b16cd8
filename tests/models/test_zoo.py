"""The zoo: small stored graphs, weights that are always the same, outputs that mean something."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from models.export import MODELS
from models.make import GRAPHS, available, load_stored, make, regrow, stripped
from tests.graphs import session
from tests.models.samples import (
    LLAMAS,
    Feeds,
    distance,
    feeds_of,
    models,
    opened,
)

LARGEST_STORED = 300_000
SPREAD = {"boxes": (30.0, 300.0), "scores": (0.1, 0.5)}
UNSEEN = re.compile(r"\b(key|k_proj|k_lin)\.bias$")
FAST = ("tiny-bert", "minilm", "tagger", "detector", "mobilenetv2")
MASKED = [name for name in available() if "attention_mask" in str(load_stored(name).graph.input)]
AXES = {
    "input_ids": ("batch", "sequence"),
    "token_type_ids": ("batch", "sequence"),
    "position_ids": ("batch", "sequence"),
    "attention_mask": ("batch", "sequence|past_sequence.sequence|total_sequence"),
    "past_key_values": ("batch", "4", "past_sequence", "64"),
    "pixel_values": ("batch", "3", "224", "224"),
    "images": ("batch", "3", "height|224", "width|224"),
    "features": ("batch", "frames", "80"),
    "input_features": ("batch", "80", "3000"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


def test_every_model_of_the_exporting_script_is_stored() -> None:
    assert available() == tuple(sorted(entry.name for entry in MODELS))


@pytest.mark.parametrize("name", available())
def test_stored_graphs_are_small_and_say_nothing_about_where_they_were_made(name: str) -> None:
    assert (GRAPHS / f"{name}.onnx.gz").stat().st_size <= LARGEST_STORED
    text = load_stored(name).SerializeToString()
    assert not any(word in text for word in (b"site-packages", b"/home/", b"/usr/", b'File "'))


@pytest.mark.parametrize("name", available())
def test_every_large_float_weight_is_stored_as_a_rule(name: str) -> None:
    for tensor in load_stored(name).graph.initializer:
        count = int(np.prod(tensor.dims))
        if stripped(tensor):
            assert not tensor.raw_data
            assert count > 50_000 or len(next(regrow(tensor))) == count
        elif tensor.data_type == TensorProto.FLOAT and count > 64:
            values = onnx.numpy_helper.to_array(tensor)
            assert len(np.unique(values)) < count // 4, f"{tensor.name} is no table"


@pytest.mark.parametrize("name", available())
def test_axes_stay_dynamic(name: str) -> None:
    for value in load_stored(name).graph.input:
        dims = [dim.dim_param or str(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
        expected = AXES[value.name.partition(".")[0]]
        assert len(dims) == len(expected)
        assert all(re.fullmatch(*pair) for pair in zip(expected, dims, strict=True)), dims


def test_regrown_twice_is_the_same_file(folder: Path, tmp_path: Path) -> None:
    assert make("tagger", folder).read_bytes() == make("tagger", tmp_path).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["tagger.onnx"]


def test_the_streamed_file_is_what_protobuf_would_write_of_it(folder: Path) -> None:
    model = onnx.load(make("minilm", folder))
    stored = load_stored("minilm")
    assert model.graph.node == stored.graph.node
    assert [t.name for t in model.graph.initializer] == [t.name for t in stored.graph.initializer]
    assert all(t.raw_data and not t.doc_string for t in model.graph.initializer)
    assert model.ByteSize() == (folder / "minilm.onnx").stat().st_size


@pytest.mark.parametrize("name", models(*FAST))
def test_models_are_valid_and_their_outputs_finite_and_alive(name: str, folder: Path) -> None:
    path = make(name, folder)
    onnx.checker.check_model(path, full_check=True)
    plain = session(path, optimized=True)
    feeds = feeds_of(plain)
    outputs = plain.run(None, feeds)
    for value, output in zip(plain.get_outputs(), outputs, strict=True):
        low, high = SPREAD.get(value.name, (0.3, 3.0))
        assert np.isfinite(output).all()
        assert low < output.std() < high
        assert np.abs(output[0] - output[1]).max() > 0.1, "the output ignores the input"
    plain = session(path).run(None, feeds)
    assert distance(plain, outputs) < 1e-4


@pytest.mark.parametrize("name", models("tiny-bert", "minilm", of=MASKED))
def test_a_padded_mask_changes_the_row_it_pads_and_no_other(name: str, folder: Path) -> None:
    plain = session(make(name, folder), optimized=True)
    feeds = feeds_of(plain)
    padded = {key: value.copy() for key, value in feeds.items()}
    padded["attention_mask"][1, :5] = 0
    output = plain.get_outputs()[-1 if name == "clip-text" else 0].name
    (before,), (after,) = plain.run([output], feeds), plain.run([output], padded)
    assert np.abs(before[0] - after[0]).max() < 1e-4
    assert np.abs(before[1, 5:] - after[1, 5:]).max() > 0.1


@pytest.mark.parametrize("name", models("llama", of=LLAMAS))
def test_a_decoder_step_after_a_prefill_is_the_whole_run(name: str, folder: Path) -> None:
    plain = session(make(name, folder), optimized=True)
    whole = feeds_of(plain, past=0)
    expected = plain.run(None, whole)

    def part(start: int, stop: int) -> Feeds:
        ids, positions = whole["input_ids"], whole["position_ids"]
        mask = whole["attention_mask"][:, :stop]
        tokens = {"input_ids": ids[:, start:stop], "position_ids": positions[:, start:stop]}
        return {**whole, **tokens, "attention_mask": mask}

    for new in (1, 3):
        _, *cache = plain.run(None, part(0, 12 - new))
        held = dict(zip([n for n in whole if n.startswith("past")], cache, strict=True))
        logits, *cache = plain.run(None, {**part(12 - new, 12), **held})
        assert distance([expected[0][:, -new:], *expected[1:]], [logits, *cache]) < 1e-4


@pytest.mark.parametrize("name", models("tiny-bert", "tagger"))
def test_every_layer_matters(name: str, folder: Path) -> None:
    plain, weights = opened(make(name, folder))
    feeds = feeds_of(session(folder / f"{name}.onnx", optimized=True), length=8)
    expected = plain.run(None, {**weights, **feeds})
    rng = np.random.default_rng(3)
    for weight, values in weights.items():
        if UNSEEN.search(weight):
            continue  # moves every score of a row alike, which a softmax does not see
        share = 0.3 if values.ndim > 1 else 1.0
        noise = np.abs(1 + share * rng.standard_normal(values.shape, dtype=np.float32))
        moved = plain.run(None, {**weights, **feeds, weight: values * noise})
        assert distance(expected, moved) > 1e-4, weight


def test_an_unknown_model_is_named_with_those_there_are() -> None:
    with pytest.raises(KeyError, match="no model 'nothing' in the zoo, only bert-base"):
        make("nothing")
