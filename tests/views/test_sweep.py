"""What a sweep shows: a line per budget, and the points nothing beats joined in a picture."""

from __future__ import annotations

import io
from itertools import combinations
from xml.etree import ElementTree

from rich.console import Console

from tracea_graph.views.sweep import SweepPoint, pareto, pareto_svg, render_sweep

POINTS = (
    SweepPoint(1e-3, 8e-4, 20.0, 16.0, 2, "a.onnx"),
    SweepPoint(3e-3, 2e-3, 20.0, 17.0, 3, "b.onnx"),
    SweepPoint(1e-2, 9e-3, 20.0, 10.0, 9, "c.onnx"),
)


def test_the_front_is_what_nothing_beats() -> None:
    assert pareto(POINTS) == (POINTS[0], POINTS[2])


def test_the_table_has_a_line_each() -> None:
    page = io.StringIO()
    Console(width=160, file=page).print(render_sweep(POINTS))
    lines = [line.split() for line in page.getvalue().splitlines()]
    assert ["0.01", "0.009", "20", "ms", "10", "ms", "2.00×", "9", "yes", "c.onnx"] in lines


def test_the_picture_holds_every_point() -> None:
    root = ElementTree.fromstring(pareto_svg(POINTS, "a < b"))
    space = "{http://www.w3.org/2000/svg}"
    circles = root.findall(f"{space}circle")
    assert len(circles) == 3
    (line,) = root.findall(f"{space}polyline")
    assert len(line.attrib["points"].split()) == 2
    heights = [float(c.attrib["cy"]) for c in circles]
    assert heights[2] == max(heights)  # the fastest lies lowest


def test_a_sweep_that_gained_nothing_is_drawn_too() -> None:
    same = SweepPoint(1e-3, 0.0, 5.0, 5.0, 0, "a.onnx")
    ElementTree.fromstring(pareto_svg([same], "nothing"))


def test_labels_of_near_points_never_overlap() -> None:
    many = [SweepPoint(0.01 + i, 1e-3 * 1.02**i, 10.0, 5.0 - i / 50, 3, "m") for i in range(30)]
    root = ElementTree.fromstring(pareto_svg(many, "t"))
    drawn = [e for e in root.iter("{http://www.w3.org/2000/svg}text") if "×" in (e.text or "")]
    at = [(float(e.get("x", 0)), float(e.get("y", 0))) for e in drawn]
    assert 1 < len(at) < 30
    assert all(abs(a - c) >= 46 or abs(b - d) >= 15 for (a, b), (c, d) in combinations(at, 2))
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 30
