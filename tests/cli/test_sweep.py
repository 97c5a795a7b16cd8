"""``tracea sweep``: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracea_graph import Options, Report, api
from tracea_graph.cli import main
from tracea_graph.errors import VerifyError


@pytest.mark.compiler
@pytest.mark.usefixtures("home")
def test_a_result_for_each_budget(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "good.onnx", "--max-error", "1e-1,1e-2", "-o", "out"]
    assert main([*words, "--keep", "all", "--json", "--prune", "block:16x1:0.2"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert [p["budget"] for p in points] == [0.01, 0.1]
    assert all(Path(p["output"]).is_file() and p["error"] <= p["budget"] for p in points)
    assert all("no --data" in p["warnings"][0] for p in points)


@pytest.mark.compiler
def test_originals_that_were_kept_are_no_points(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "good.onnx", "--max-error", "1e-9", "--svg", "p.svg", "--threads", "1"]
    assert main([*words, "--only", "low-rank-exact", "--budget", "2"]) == 0
    out = capsys.readouterr().out
    assert "original kept" in out and "nothing was timed: p.svg was not written" in out
    assert "warning: no matmul of this model has a compressible weight" in out
    assert not (home / "p.svg").exists()


@pytest.mark.compiler
@pytest.mark.usefixtures("home")
def test_an_error_loses_no_earlier_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimize = api.optimize

    def failing(model: Path, options: Options, *more: Any) -> Report:
        if options.max_error == 0.5:
            raise VerifyError("wrong")
        return optimize(model, options, *more)

    monkeypatch.setattr(api, "optimize", failing)
    words = ["sweep", "good.onnx", "--max-error", "0.1,0.5", "--keep", "all", "--json"]
    assert main(words) == 3
    out, err = capsys.readouterr()
    assert [point["output"] for point in json.loads(out)] == ["good.0.1.onnx"]
    assert "error: wrong" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("good.onnx",), "required: --max-error"),
        (("good.onnx", "--max-error", "0"), "is not a list of errors above 0"),
        (("good.onnx", "--max-error", "x"), "is not a list of errors above 0"),
        (("good.onnx", "good.onnx", "--max-error", "1e-2"), "takes one model"),
        (("good.onnx", "--max-error", "1e-2", "-o", "a.onnx"), "must be a folder"),
        (("good.onnx", "--max-error", "1", "--svg", "p.svg", "--keep", "all"), "measures none"),
    ],
)
@pytest.mark.usefixtures("home")
def test_what_it_refuses(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["sweep", *words]) == 2
    assert said in capsys.readouterr().err
