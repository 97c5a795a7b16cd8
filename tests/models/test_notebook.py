"""The example notebook runs, cell by cell, and what it shows can be shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from tiny import ROOT

NOTEBOOK = ROOT / "models" / "tile_graph.ipynb"


def run_cell(source: str, scope: dict[str, Any]) -> Any:
    """Run a cell; the value of its last expression, as a notebook would show it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), scope)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), scope) if last else None


@pytest.mark.compiler
def test_every_cell_runs(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(ROOT)
    cells = json.loads(Path(NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    scope: dict[str, Any] = {}
    shown = [run_cell("".join(c["source"]), scope) for c in cells if c["cell_type"] == "code"]
    pictures = [value for value in shown if hasattr(value, "_repr_html_")]
    assert len(pictures) == 3
    for picture in pictures:
        assert "<svg" in picture._repr_html_() or "rectangles" in picture._repr_html_()
    printed = capsys.readouterr().out
    together, apart = printed.partition("together ")[2].split()[0:3:2]
    assert float(together) < float(apart)
    assert float(printed.partition("largest difference ")[2]) < 1e-4
    rules = {row.rule: row.count for row in scope["report"].rules}
    assert rules["tiled-gemm"] == 1 and rules["attention"] == 2
    assert all(not c.get("outputs") for c in cells)
