"""The example notebook runs, cell by cell, and what it shows can be shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import ROOT

NOTEBOOK = ROOT / "models" / "tile_graph.ipynb"


def run_cell(source: str, scope: dict[str, Any]) -> Any:
    """Run a cell; the value of its last expression, as a notebook would show it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), scope)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), scope) if last else None


@pytest.mark.compiler
def test_every_cell_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads(Path(NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    scope: dict[str, Any] = {}
    shown = [run_cell("".join(c["source"]), scope) for c in cells if c["cell_type"] == "code"]
    pictures = [value for value in shown if hasattr(value, "_repr_html_")]
    assert len(pictures) == 4
    for picture in pictures:
        page = picture._repr_html_()
        assert "<svg" in page or "rectangles" in page or "What changed" in page
    printed = capsys.readouterr().out
    together, apart = printed.partition("together ")[2].split()[0:3:2]
    assert float(together) < float(apart)
    assert float(printed.partition("largest difference ")[2].split()[0]) < 1e-4
    rules = {row.rule: row.count for row in scope["report"].rules}
    assert rules["tiled-gemm"] == 1 and rules["attention"] == 2


def test_it_ships_with_outputs_and_needs_the_package_only() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert "/tmp" not in text
    cells = json.loads(text)["cells"]
    code = [c for c in cells if c["cell_type"] == "code"]
    assert all(c["outputs"] and c["execution_count"] for c in code)
    assert not any(o["output_type"] == "error" for c in code for o in c["outputs"])
    assert not any("from models" in line for c in code for line in c["source"])
