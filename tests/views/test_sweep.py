"""What a sweep shows: a line per budget, and the points nothing beats joined in a picture."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from tests.browser import BROWSER, overlapping_texts
from tracea_graph.errors import UsageError
from tracea_graph.views.sweep import SweepPoint, pareto, pareto_svg, render_sweep, sweep_warnings

AT = ("rows=128", 1)
POINTS = (
    SweepPoint(1e-3, 8e-4, 20.0, 16.0, 2, "a.onnx", *AT, warnings=("busy", "no data")),
    SweepPoint(3e-3, 2e-3, 20.0, 17.0, 3, "b.onnx", *AT, warnings=("no data",)),
    SweepPoint(1e-2, 9e-3, 20.0, 10.0, 9, "c.onnx", *AT, warnings=("no data",)),
)
UNTIMED = SweepPoint(1e-4, 0.0, 0.0, 0.0, 0, "d.onnx", improved=False, warnings=("no data",))


def test_the_front_is_what_nothing_beats() -> None:
    assert pareto(POINTS) == pareto((UNTIMED, *POINTS)) == (POINTS[0], POINTS[2])


def test_the_table_has_a_line_each() -> None:
    page = io.StringIO()
    Console(width=160, file=page).print(render_sweep((UNTIMED, *POINTS)))
    assert page.getvalue().startswith("error against time, rows=128, 1 thread ")
    lines = [line.split() for line in page.getvalue().splitlines()]
    assert ["0.0001", "not", "timed", "original", "kept", "d.onnx"] in lines
    assert ["0.01", "0.009", "20", "ms", "10", "ms", "2.00×", "9", "yes", "c.onnx"] in lines


def test_warnings_are_said_once() -> None:
    assert sweep_warnings((UNTIMED, *POINTS)) == ["no data", "under 0.001: busy"]


def test_without_times_there_is_no_picture() -> None:
    with pytest.raises(UsageError, match="nothing was timed"):
        pareto_svg((UNTIMED,), "t")


SPACE = "{http://www.w3.org/2000/svg}"


def test_the_picture_holds_every_point_and_loads_nothing() -> None:
    svg = pareto_svg(POINTS, "a < b")
    root = ElementTree.fromstring(svg)
    said = "".join(root.itertext())
    assert all(f"{p.speedup:.2f}×" in said for p in POINTS)
    assert "a < b" in said and "Pareto front" in said
    assert not list(root.iter(f"{SPACE}script"))
    assert "http" not in svg.replace("http://www.w3.org/", "")


def test_the_picture_has_colors_for_dark_pages() -> None:
    svg = pareto_svg(POINTS, "t")
    assert "@media (prefers-color-scheme: dark)" in svg
    for color in ("#1c2430", "#ffffff"):
        red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
        assert svg.count(f'="rgb({red},{green},{blue})"') > 2  # in the rules and in the drawing


def test_a_sweep_that_gained_nothing_is_drawn_too() -> None:
    same = SweepPoint(1e-3, 0.0, 5.0, 5.0, 0, "a.onnx")
    assert "1.00×" in pareto_svg([same], "nothing")


@pytest.mark.slow  # lays out 30 labels
@pytest.mark.skipif(not BROWSER, reason="there is no Chromium")
def test_labels_of_near_points_never_overlap(tmp_path: Path) -> None:
    many = [SweepPoint(0.01 + i, 1e-3 * 1.02**i, 10.0, 5.0 - i / 50, 3, "m") for i in range(30)]
    texts, overlaps = overlapping_texts(pareto_svg(many, "t"), tmp_path)
    assert "2.00×" in texts and not overlaps


def test_a_chart_needs_lets_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"tracea-graph\[charts\]"):
        pareto_svg(POINTS, "t")
