"""The roofline picture."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from tests.commands.samples import profile, row
from tracea_graph.errors import UsageError
from tracea_graph.views.roofline import (
    HEIGHT,
    LEFT,
    TOP,
    WIDTH,
    profile_page,
    roofline_png,
    roofline_svg,
)

UNDER_THE_AXIS = f"{TOP + HEIGHT + 17}"
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(t.itertext()) for t in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def circles(svg: str) -> list[tuple[float, float, float]]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}circle")
    return [(float(c.get("cx", 0)), float(c.get("cy", 0)), float(c.get("r", 0))) for c in found]


def test_every_family_has_a_disk_and_a_line_in_the_legend() -> None:
    made = profile(row(us=300.0), row("Softmax", us=100.0, flops=1e5, size="7"))
    said = texts(roofline_svg(made))
    assert said.count("1") >= 2
    assert any(t.startswith("FusedGemm_ab") for t in said)
    assert any("75.0 % of the time" in t for t in said)
    assert "generated kernels" in said
    assert "ONNX Runtime's own" in said


def test_disks_stand_where_the_axes_say() -> None:
    """Ten times the rate is one decade up, ten times the intensity one decade to the right."""
    made = profile(row("FusedA", us=100.0), row("FusedB", us=1000.0, weights=5e6, activations=5e6))
    fast, slow = sorted((c for c in circles(roofline_svg(made)) if c[2] > 9), key=lambda c: c[1])
    shown = ElementTree.fromstring(roofline_svg(made)).iter(f"{SVG}text")
    ticks = {t.text: float(t.get("x", 0)) for t in shown if t.get("y") == UNDER_THE_AXIS}
    assert fast[0] - slow[0] == pytest.approx(ticks["10"] - ticks["1"], abs=1.0)
    assert slow[2] > fast[2]


def test_numbers_do_not_cover_each_other() -> None:
    made = profile(*(row(f"FusedGemm_{i}", us=100.0 + i, size=str(i)) for i in range(8)))
    tags = [c[:2] for c in circles(roofline_svg(made)) if c[2] == 8.0]
    assert len(tags) >= 7
    assert all(abs(a[0] - b[0]) + abs(a[1] - b[1]) > 8 for a in tags for b in tags if a is not b)


def test_numbers_do_not_cover_the_peak() -> None:
    slow = row("FusedCopy", us=1000.0, flops=1e3)
    made = profile(slow, *(row(f"FusedGemm_{i}", us=500.0 + i, flops=1e8) for i in range(8)))
    svg = roofline_svg(made)
    shown = ElementTree.fromstring(svg).iter(f"{SVG}text")
    (peak,) = (t for t in shown if (t.text or "").endswith("GFLOP/s fp32"))
    x, y, width = float(peak.get("x", 0)), float(peak.get("y", 0)), 7 * len(peak.text or "")
    assert x >= LEFT and x + width <= LEFT + WIDTH
    near = [c for c in circles(svg) if abs(c[1] - y) < 12 and c[0] > x and c[0] < x + width]
    assert not near


def test_a_model_without_arithmetic_still_has_a_picture() -> None:
    svg = roofline_svg(
        profile(row("Reshape", flops=0.0), row("Unknown", flops=None, weights=None))
    )
    assert any("not drawn: 100.0 % of the time" in t for t in texts(svg))


def test_a_long_legend_says_how_many_are_missing() -> None:
    made = profile(*(row(f"FusedGemm_{i}", us=100.0 + i, size=str(i)) for i in range(20)))
    assert any(t.startswith("and 7 more") for t in texts(roofline_svg(made)))


def test_the_page_stands_alone_and_escapes_names() -> None:
    evil = row("<script>alert(1)</script>", originals=("</td><b>x",))
    page = profile_page(profile(evil, row(us=7.0)))
    assert "<script" not in page
    assert "</td><b>" not in page
    assert not re.search(r"""(src|href)=["']""", page)
    assert "&lt;script&gt;" in page


def test_control_characters_do_not_break_the_svg() -> None:
    assert texts(roofline_svg(profile(row("Fused\x00\x1bX"))))


def test_a_png_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"tracea-graph\[notebook\]"):
        roofline_png(profile(row()))
    assert "matplotlib" not in sys.modules


def test_a_png_is_drawn_where_matplotlib_is() -> None:
    pytest.importorskip("matplotlib")
    assert roofline_png(profile(row(), row("Softmax", us=3.0))).startswith(b"\x89PNG")


def test_a_program_is_shown_by_its_kernel_calls() -> None:
    calls = tuple(
        replace(row("gemm", us=us, size=size), name="", kernel=True)
        for us, size in ((200.0, "8×32×48"), (100.0, "8×32×48"), (90.0, "8×48×32"))
    )
    said = texts(roofline_svg(profile(replace(row("FusedRegion_ab", us=400.0), calls=calls))))
    assert not any(t.startswith("FusedRegion") for t in said)
    assert any(t.startswith("2 calls, 75.0 % of the time") for t in said)
    assert any(t.startswith("not drawn: 2.5 % of the time") for t in said)
