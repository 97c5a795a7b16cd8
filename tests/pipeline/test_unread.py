"""Models that ONNX Runtime takes and this tool cannot read are copied, with a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net
from tracea_graph import Options, api
from tracea_graph.cli import optimize_main
from tracea_graph.errors import ModelError
from tracea_graph.onnx_io import model_reader

UNTIMED = Options(keep="all", target="cpu:scalar")


def relu(path: Path, opset: int = 17) -> Path:
    net = Net(opset)
    return net.save(path, net("Relu", net.input("x", 2)))


def broken_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(model_reader, "canonicalize", fail)


def test_an_operator_set_older_than_can_be_read(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx", opset=6)
    report = api.optimize(model, UNTIMED)
    assert report.outcome == "kept original" and not report.warnings
    assert report.reason.startswith(
        "ONNX Runtime can read it, this tool cannot: opset 6 is not supported"
    )
    assert (report.nodes_before, report.nodes_after) == (1, 1)
    assert Path(report.output).read_bytes() == model.read_bytes()
    (y,) = api.session(report.output).run(None, {"x": np.float32([-1, 2])})
    assert y.tolist() == [0, 2]


def test_one_that_onnx_runtime_lacks_too_is_refused(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx", opset=1)
    with pytest.raises(ModelError, match="opset 1 is not supported"):
        api.optimize(model, UNTIMED)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_the_command_ends_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among several models, too, and where the import has a bug."""
    monkeypatch.delenv("TRACEA_STRICT")
    models = [
        relu(tmp_path / "a.onnx", opset=6),
        relu(tmp_path / "b.onnx", opset=6),
    ]
    names = [str(model) for model in models]
    assert optimize_main([*names, "--keep", "all"]) == 0
    said = capsys.readouterr().out
    assert said.count("kept original: ONNX Runtime can read it, this tool cannot: ") == 2
    broken_import(monkeypatch)
    assert optimize_main([str(relu(tmp_path / "c.onnx")), "-v"]) == 0
    said = capsys.readouterr().out
    assert "cannot: KeyError: 'lost' (a bug; -v shows where)" in said and "Traceback" in said


def test_strictly_a_bug_of_the_import_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_import(monkeypatch)
    with pytest.raises(KeyError, match="lost"):
        api.optimize(relu(tmp_path / "m.onnx"), UNTIMED)


def test_external_data_goes_along(tmp_path: Path) -> None:
    net = Net(6)
    net.graph(net("MatMul", net.input("x", 4, 4), np.eye(4, dtype=np.float32)[::-1]))
    model, where = tmp_path / "m.onnx", {"location": "m.data", "size_threshold": 0}
    onnx.save(net.model, model, save_as_external_data=True, **where)
    report = api.optimize(model, Options(keep="all", output=tmp_path / "out"))
    assert report.outcome == "kept original"
    assert report.data is not None and Path(report.data).parent == tmp_path / "out"
    (y,) = api.session(report.output).run(None, {"x": np.eye(4, dtype=np.float32)})
    np.testing.assert_array_equal(y, np.eye(4)[::-1])
