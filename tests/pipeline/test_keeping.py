"""Keeping the original: its bytes, its data, and nothing of earlier results."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import Net
from tests.tiny import answers, product
from tracea_graph import Options, api
from tracea_graph.check.verify_outputs import Verification
from tracea_graph.config import AttentionWindow
from tracea_graph.pipeline import evaluator
from tracea_graph.pipeline.candidate_models import BuiltModel, CandidateBuilder
from tracea_graph.reason_codes import Code

pytestmark = pytest.mark.usefixtures("highest_level")

KEEP = Options(keep="all", only=("attention",))
"""Rules that cannot apply to a product, so that the original is kept."""
X = {"x": np.random.default_rng(1).standard_normal((3, 48), np.float32)}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def locations(model: Path) -> set[str]:
    tensors = onnx.load(model, load_external_data=False).graph.initializer
    return {e.value for t in tensors for e in t.external_data if e.key == "location"}


def test_inline_weights_are_copied_byte_for_byte(tmp_path: Path) -> None:
    original = product(tmp_path / "m.onnx")
    report = api.optimize(original, KEEP)
    assert (report.outcome, report.code) == ("kept original", Code.NO_REWRITE)
    assert names(tmp_path) == {"m.onnx", "m.tracea.onnx", "m.tracea.json"}
    assert Path(report.output).read_bytes() == original.read_bytes()
    told = json.loads((tmp_path / "m.tracea.json").read_text())
    assert (told["outcome"], told["library"], told["data"]) == ("kept original", None, None)


def test_external_data_is_linked_and_references_follow(tmp_path: Path) -> None:
    original = product(tmp_path / "m.onnx", 48, external="weights.bin")
    before = original.read_bytes()
    report = api.optimize(original, KEEP)
    data = Path(str(report.data))
    digest = hashlib.sha256((tmp_path / "weights.bin").read_bytes()).hexdigest()
    assert data.name == f"m.tracea.{digest[:10]}.data"
    assert data.samefile(tmp_path / "weights.bin")
    assert locations(Path(report.output)) == {data.name}
    assert original.read_bytes() == before
    expected = answers(original, X)["y"]
    assert np.array_equal(answers(Path(report.output), X)["y"], expected)


def test_several_data_files_become_one(tmp_path: Path) -> None:
    original = product(tmp_path / "m.onnx", 48, copies=2, external="first.bin")
    model = onnx.load(original, load_external_data=False)
    (tmp_path / "second.bin").write_bytes((tmp_path / "first.bin").read_bytes())
    for tensor in model.graph.initializer[2:]:
        next(e for e in tensor.external_data if e.key == "location").value = "second.bin"
    original.write_bytes(model.SerializeToString())
    report = api.optimize(original, KEEP)
    assert locations(Path(report.output)) == {Path(str(report.data)).name}
    found = answers(Path(report.output), X)["y"]
    assert np.array_equal(found, answers(original, X)["y"])


def test_where_links_fail_data_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "links are not allowed here")

    monkeypatch.setattr("tracea_graph.onnx_io.original_files.os.link", refuse)
    original = product(tmp_path / "m.onnx", 48, external="weights.bin")
    data = Path(str(api.optimize(original, KEEP).data))
    assert not data.samefile(tmp_path / "weights.bin")
    assert data.read_bytes() == (tmp_path / "weights.bin").read_bytes()


@pytest.mark.compiler
def test_an_earlier_result_gives_way_and_its_neighbours_stay(tmp_path: Path) -> None:
    original = product(tmp_path / "m.onnx", 1472, 1472, copies=2)
    neighbour = product(tmp_path / "n.onnx", 1472, 1472, copies=2, external="n.weights")
    legal = Options(keep="all", verify=False)
    first, other = api.optimize(original, legal), api.optimize(neighbour, legal)
    assert first.data and first.library and other.data and other.data != first.data
    foreign = tmp_path / "m.tracea.ffffffffff.data"
    foreign.write_bytes(b"another's")
    api.optimize(original, KEEP)
    kept = {Path(file).name for file in other.files}
    assert names(tmp_path) == kept | {
        "m.onnx", "n.onnx", "n.weights", "m.tracea.onnx", "m.tracea.json", foreign.name,
    }  # fmt: skip
    x = {"x": np.ones((2, 1472), np.float32)}
    expected = answers(neighbour, x)["y"]
    found = answers(Path(other.output), x, Path(other.library or ""))["y"]
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_model_without_nodes_is_kept(tmp_path: Path) -> None:
    net = Net()
    net.save(tmp_path / "m.onnx", net.input("x", "n"))
    report = api.optimize(tmp_path / "m.onnx", Options(keep="all"))
    assert (report.outcome, report.nodes_before) == ("kept original", 0)


def test_a_window_without_attention_is_said_to_change_nothing(tmp_path: Path) -> None:
    model = product(tmp_path / "m.onnx", 8, 8)
    report = api.optimize(model, replace(KEEP, windows=(AttentionWindow(4),)))
    assert any("--window changes nothing" in said for said in report.warnings)


def test_inputs_the_original_rejects_are_named(tmp_path: Path) -> None:
    """Nothing can be verified where no input works: the original is kept, and not as verified."""
    model = onnx.load(product(tmp_path / "m.onnx", 8, 8))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7, -1]), "shape"))
    model.graph.node.append(onnx.helper.make_node("Reshape", ["y", "shape"], ["z"]))
    z = onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [7, "columns"])
    model.graph.output[0].CopyFrom(z)  # only for multiples of seven rows
    onnx.save(model, tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(keep="all"))
    assert (report.outcome, report.status) == ("kept original", "inconclusive")
    assert report.code is Code.INCONCLUSIVE


@pytest.mark.compiler
def test_sizes_the_original_rejects_are_replaced_for_timing(tmp_path: Path) -> None:
    """A table of 64 rows is added to the input: longer inputs are no inputs of this model."""
    model = onnx.load(product(tmp_path / "m.onnx", 64, 64))
    rng = np.random.default_rng(0)
    table = rng.standard_normal((64, 64)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["rows"])
    )
    model.graph.node.insert(0, onnx.helper.make_node("Gather", ["table", "ids"], ["rows_of"]))
    model.graph.node[1].input[0] = "mixed"
    add = onnx.helper.make_node("Add", ["x", "rows_of"], ["mixed"])
    model.graph.node.insert(1, add)
    onnx.save(model, tmp_path / "m.onnx")
    data = {"x": np.ones((1, 5, 64), np.float32), "ids": np.full((1, 5), 64)}
    good = {"x": np.ones((1, 5, 64), np.float32), "ids": np.full((1, 5), 3)}
    both = {name: np.concatenate([data[name], good[name]]) for name in data}
    np.savez(tmp_path / "d.npz", **both)
    options = Options(data=tmp_path / "d.npz", threads=(1,), budget=20.0)
    report = api.optimize(tmp_path / "m.onnx", options)
    assert [*report.rejected] == ["data[0]"]
    assert report.warnings[0].startswith("the original rejects inputs with data[0]: ")
    assert {row.binding for row in (*report.timings, *report.tried)} == {"data[1]"}


@pytest.mark.compiler
def test_where_even_the_plain_form_is_wrong_no_rewrite_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, built = product(tmp_path / "m.onnx", 32, 32, copies=4), list[frozenset[str]]()
    build = CandidateBuilder.build

    def noted(
        shop: CandidateBuilder, dropped: frozenset[str] = frozenset(), **more: Any
    ) -> BuiltModel:
        built.append(dropped)
        return build(shop, dropped, **more)

    monkeypatch.setattr(CandidateBuilder, "build", noted)
    wrong = Verification("failed", "output 'y' with rows=1: it is off by 1")
    monkeypatch.setattr(evaluator, "compare_with_reference", lambda *args, **more: wrong)
    options = Options(keep="all", target="cpu:scalar", skip=("cluster",))
    report = api.optimize(original, options)
    assert (report.outcome, report.library, len(built)) == ("kept original", None, 2)
    assert report.code is Code.OUT_OF_TOLERANCE and "without rewrites is wrong" in report.reason
