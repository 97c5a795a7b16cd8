"""Tables in 80 columns: whole columns go, never characters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from tests.commands.samples import profile, row
from tracea_graph.check.verify_outputs import OutputError, Verification
from tracea_graph.views.profile_table import render_profile
from tracea_graph.views.terminal_tables import Column, FittedTable
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
    found = VerifyReport("a.onnx", "b.onnx", "", Verification("passed", "ok", outputs), 0, 3, 3)
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


WHOLE = (
    "1.004×", "1.46–1.69×", "0.574 ms", "1,171.9 GiB", "5.3e-07", "12.5 GFLOP/s", "128×768×3072",
    "512 × 1024", "2026-11-26", "100 %", "99%", "-1e9", "--max-error", "--keep-on-interrupt", "-v",
)  # fmt: skip
"""What no line of a table may end in."""
WORDS = (
    *WHOLE, "kept", "at", "slower,", "/encoder/layer.10/attention/self/query/MatMul", "x" * 70,
    "sequence=128", "(2.5 ms", "merge-qkv,", "FusedRegion_84e78c",
)  # fmt: skip


@settings(max_examples=200)
@given(
    rows=st.lists(
        st.lists(st.lists(st.sampled_from(WORDS), max_size=9), min_size=1, max_size=6),
        min_size=1, max_size=3,
    ),
    folds=st.lists(st.booleans(), min_size=6, max_size=6),
    width=st.integers(50, 120),
)  # fmt: skip
def test_no_number_unit_or_option_is_broken(
    rows: list[list[list[str]]], folds: list[bool], width: int
) -> None:
    count = max(map(len, rows))
    made = FittedTable("", [Column(f"column {i}", folds=folds[i]) for i in range(count)])
    for cells in rows:  # a column that does not fold holds one number, not a sentence
        given = (" ".join(c if folds[i] else c[:1]) for i, c in enumerate(cells))
        made.add_row(*given)
    shown = lines(made, width)
    for part in WHOLE:
        texts = (text.plain for row in made.rows for text in row)
        assert sum(t.count(part) for t in texts) == sum(line.count(part) for line in shown), part


def test_a_table_that_has_no_room_becomes_a_list() -> None:
    made = FittedTable("", [Column(f"figure {i}", "right") for i in range(9)])
    made.add_row(*(f"{i}.046–1.069×" for i in range(9)))
    shown = lines(made, 60)
    assert max(map(len, shown)) <= 60
    assert [line.split() for line in shown if line.strip("─ ")] == [
        ["figure", str(i), f"{i}.046–1.069×"] for i in range(9)
    ]
