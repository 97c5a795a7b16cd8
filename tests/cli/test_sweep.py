"""``tracea sweep``: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracea_graph.cli import main


@pytest.mark.compiler
def test_a_result_for_each_budget(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "good.onnx", "--max-error", "1e-1,1e-2", "-o", "out", "--svg", "p.svg"]
    assert main([*words, "--keep", "all", "--json", "--prune", "block:16x1:0.2"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert [p["budget"] for p in points] == [0.01, 0.1]
    assert all(Path(p["output"]).is_file() and p["error"] <= p["budget"] for p in points)
    assert (home / "p.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("good.onnx",), "required: --max-error"),
        (("good.onnx", "--max-error", "0"), "is not a list of errors above 0"),
        (("good.onnx", "--max-error", "x"), "is not a list of errors above 0"),
        (("good.onnx", "good.onnx", "--max-error", "1e-2"), "takes one model"),
        (("good.onnx", "--max-error", "1e-2", "-o", "a.onnx"), "must be a folder"),
    ],
)
@pytest.mark.usefixtures("home")
def test_what_it_refuses(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["sweep", *words]) == 2
    assert said in capsys.readouterr().err
