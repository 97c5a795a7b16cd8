"""Tables in 80 columns: whole columns go, never characters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from tests.commands.samples import profile, row
from tracea_graph.check.verify import OutputError, Verification
from tracea_graph.views.profile_table import render_profile
from tracea_graph.views.tables import Column, FittedTable
from tracea_graph.views.verify import VerifyReport, render_comparison


def lines(shown: RenderableType, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as said:
        console.print(shown)
    return said.get().splitlines()


def table() -> FittedTable:
    columns = (
        Column("name", folds=True), Column("first", "right", spare=1),
        Column("second", "right", spare=2), Column("last", "right"),
    )  # fmt: skip
    made = FittedTable("title", columns)
    made.add_row("a-name-of-30-characters-in-all", "1" * 10, "2" * 10, "9" * 10)
    return made


@pytest.mark.parametrize(
    ("width", "kept"),
    [(80, ["1", "2", "9"]), (59, ["1", "2", "9"]), (58, ["1", "9"]), (40, ["9"]), (33, ["9"])],
)
def test_what_is_most_spare_goes_first(width: int, kept: list[str]) -> None:
    shown = lines(table(), width)
    assert max(map(len, shown)) <= width
    assert [digit for digit in "129" if any(digit * 10 in line for line in shown)] == kept


def test_a_comparison_fits_a_terminal() -> None:
    outputs = tuple(
        OutputError(
            f"last_hidden_state_{i}", "batch=3 sequence=13, padded", 1e-6, 1e-7, 1.0, 0, True
        )
        for i in range(2)
    )
    found = VerifyReport("a.onnx", "b.onnx", "", Verification("passed", "ok", outputs), 0, 3)
    narrow, wide = lines(render_comparison(found), 80), lines(render_comparison(found), 200)
    assert max(map(len, narrow)) <= 80 and any("last_hidden_state_1" in line for line in narrow)
    assert "ONNX Runtime's own   verdict" in wide[1] and "verdict" in "".join(narrow[1:5])


@pytest.mark.parametrize("width", [60, 80])
def test_words_are_broken_at_separators_and_no_column_vanishes(width: int) -> None:
    made = FittedTable("", [Column("layer", folds=True), Column("why", folds=True)])
    layer = "/encoder/layer.10/attention/self/LayerNormalization"
    why = "its operands are not known to be contiguous " * 3
    made.add_row(layer, why)
    made.add_row("x" * 300, "[bold]text[/bold]")
    shown = lines(made, width)
    assert max(map(len, shown)) <= width
    cuts = slice(shown[0].index("why")), slice(shown[0].index("why"), None)
    parts, words = ([line[cut].strip() for line in shown[2:]] for cut in cuts)
    assert "".join(parts) == layer + "x" * 300
    assert all(p.endswith(("/", ".", "LayerNormalization", "x")) for p in parts if p)
    assert " ".join(" ".join(words).split()) == f"{why.strip()} [bold]text[/bold]"


@pytest.mark.parametrize("verbosity", [0, 1])
def test_a_profile_fits_a_terminal(verbosity: int) -> None:
    one = replace(row("FusedRegion_0fb552", size="128×768×3072"), originals=("layer/0/MatMul",))
    shown = lines(render_profile(profile(one), verbosity), 80)
    assert max(map(len, shown)) <= 80
    assert any("Fused" in line and "%" in line for line in shown)
