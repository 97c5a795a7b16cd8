"""Real inputs: all verify, a few are timed, and the sizes they have are those planned for."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.tiny import product
from tracea_graph import Options, api
from tracea_graph.check.verify_outputs import Verification, compare_with_reference
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import load
from tracea_graph.pipeline import evaluator
from tracea_graph.pipeline.model_inputs import gather_inputs

K, ROWS = 64, 5


def many(folder: Path, count: int) -> Path:
    """So many sets of five rows."""
    x = np.random.default_rng(0).standard_normal((count, ROWS, K)).astype(np.float32)
    np.savez(folder / "data.npz", x=x)
    return folder / "data.npz"


def test_few_of_many_are_timed_and_all_verify(tmp_path: Path) -> None:
    model = load(product(tmp_path / "m.onnx", K, K))
    found = gather_inputs(model, Options(data=many(tmp_path, 30)))
    assert found.labels == ("data[0]", "data[10]", "data[20]") and len(found.verification) == 30
    assert [dict(b.symbols) for b in found.timed] == [{"rows": ROWS}] * 3
    assert len(found.brief) == 4 and found.brief[0] == "data[0]"


def test_a_few_are_all_taken(tmp_path: Path) -> None:
    model = load(product(tmp_path / "m.onnx", K, K))
    found = gather_inputs(model, Options(data=many(tmp_path, 2)))
    assert found.labels == found.brief == tuple(found.verification) == ("data[0]", "data[1]")


def test_shapes_say_what_to_time_where_both_are_given(tmp_path: Path) -> None:
    model = load(product(tmp_path / "m.onnx", K, K))
    options = Options(data=many(tmp_path, 7), shapes=({"rows": 3},))
    found = gather_inputs(model, options)
    assert found.labels == ("rows=3",) and found.timing["rows=3"]["x"].shape == (3, K)
    assert len(found.verification) == 7 and found.real


@pytest.mark.compiler
def test_lower_instruction_sets_see_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Collection[str] | None] = {}

    def noted(*args: Any, **named: Any) -> Verification:
        asked[named["env"].get("TRACEA_ISA", "")] = named["labels"]
        return compare_with_reference(*args, **named)

    monkeypatch.setattr(evaluator, "compare_with_reference", noted)
    options = Options(tmp_path / "out", keep="all", data=many(tmp_path, 30), threads=(1,))
    report = api.optimize(product(tmp_path / "m.onnx", K, K), options)
    assert report.status == "passed" and report.library
    labels = [asked[isa] for isa in asked if isa]
    assert None in labels and len(labels) > 1
    assert all(len(one) == 4 for one in labels if one is not None)


def test_a_metric_needs_something_to_measure(tmp_path: Path) -> None:
    options = Options(metric="m.py:f", keep="all")
    with pytest.raises(UsageError, match="--metric needs --low-rank, --prune or"):
        api.optimize(product(tmp_path / "m.onnx", K, K), options)


def test_defaults_of_initializers_say_what_a_mask_hides(tmp_path: Path) -> None:
    """The number that hides keys may be an input too: without a feed it is −10000."""
    graph = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 4, 4] x, bool[2, 1, 4] keep, float low) => (float[2, 4, 4] y)
        <float low = {-10000.0}, float zero = {0.0}> {
            hidden = Not (keep)
            added = Where (hidden, low, zero)
            scores = Add (x, added)
            y = Softmax <axis = -1> (scores)
        }"""
    onnx.save(onnx.parser.parse_model(graph), tmp_path / "m.onnx")
    found = gather_inputs(load(tmp_path / "m.onnx"), Options())
    assert found.timing["fixed"].keys() == {"x", "keep"}
    assert found.timing["fixed"]["keep"].all()
    padded = found.verification["padded"]["keep"]
    assert not padded.all() and padded.any(axis=-1).all()
