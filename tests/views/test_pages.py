"""Pages in a real browser, light and dark: readable, no texts overlap, keys and search work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.browser import BROWSER, DARK, probe
from tests.commands.samples import profile, row
from tests.views.test_report import IMPROVED, KEPT, KEPT_ORIGINAL
from tracea_graph.views import ReportProfiles, report_page
from tracea_graph.views.profile_record import ProfileRow
from tracea_graph.views.roofline import profile_page

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium")

LAYERS = tuple(
    f"/encoder/layer.{i}/{module}/MatMul"
    for i in range(3)
    for module in ("attention/self/query", "output/dense")
)
LEAST_CONTRAST = 4.5
"""What WCAG 2 asks of text (AA)."""

PROBE = """
<script>
function color(text) {
  const numbers = (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  return numbers.length > 3 && numbers[3] === 0 ? null : numbers.slice(0, 3);
}
function luminance(rgb) {
  const [r, g, b] = rgb.map((v) => {
    const part = v / 255;
    return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function background(element) {
  for (let e = element; e; e = e.parentElement) {
    const found = color(getComputedStyle(e).backgroundColor);
    if (found) return found;
  }
  return [255, 255, 255];
}
function contrast(element) {
  const style = getComputedStyle(element), inDrawing = element.closest("svg");
  const ink = luminance(color(inDrawing ? style.fill : style.color));
  const paper = luminance(background(element));
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}
window.addEventListener("load", function () {
  document.getElementById("found").remove();
  const found = { dim: [], overlaps: overlapping(svgTexts()), opened: 0, rows: 0, left: 0 };
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  for (const element of document.querySelectorAll("main *")) {
    if (/^(style|title)$/i.test(element.tagName) || element.classList.contains("on")) continue;
    if (own(element) && contrast(element) < LEAST) found.dim.push(element.textContent);
  }
  found.papers = background(document.querySelector("main"));
  found.wide = document.documentElement.scrollWidth > innerWidth;
  const field = document.querySelector(".find");
  if (field) {
    const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key: key }));
    const rows = [...document.querySelectorAll("[data-find]")];
    press("/");
    found.focused = document.activeElement === field;
    field.value = "layer.1";
    field.dispatchEvent(new Event("input"));
    found.rows = rows.length;
    found.left = rows.filter((r) => !r.hidden).length;
    press("Escape");
    found.back = rows.filter((r) => !r.hidden).length;
    for (const button of document.querySelectorAll("button[aria-expanded=false]")) {
      button.click();
      found.opened += button.closest("tbody").querySelectorAll(".steps:not([hidden])").length;
    }
  }
  const shown = document.createElement("pre");
  shown.id = "found";
  document.body.append(shown);
  report(found);
});
</script>
""".replace("LEAST", str(LEAST_CONTRAST))


def program() -> ProfileRow:
    """A program over three layers, two kernel calls each."""
    calls = tuple(row("gemm", us=90.0 + i, originals=(name,)) for i, name in enumerate(LAYERS))
    return replace(row(us=300.0), originals=LAYERS, calls=calls)


@pytest.mark.parametrize("switches", [(), (DARK,)], ids=["light", "dark"])
def test_a_report(tmp_path: Path, switches: tuple[str, ...]) -> None:
    timed = profile(program(), row("Softmax", us=40.0))
    report = replace(IMPROVED, groups=(replace(KEPT, originals=LAYERS), *IMPROVED.groups[1:]))
    profiles = {report.output: ReportProfiles(timed, timed)}
    page = tmp_path / "report.html"
    page.write_text(report_page(report, KEPT_ORIGINAL, profiles=profiles), encoding="utf-8")
    found = probe(page, PROBE, tmp_path, *switches)
    assert not found["dim"] and not found["wide"]
    assert (max(found["papers"]) < 40) == bool(switches)
    assert found["focused"] and 0 < found["left"] < found["rows"] == found["back"]
    assert found["opened"] >= 2


@pytest.mark.parametrize("switches", [(), (DARK,)], ids=["light", "dark"])
def test_a_profile(tmp_path: Path, switches: tuple[str, ...]) -> None:
    many = (
        row(f"FusedGemm_{i}", us=100.0 + 9 * i, flops=1e6 * (i + 1) ** 2, size=f"{i}×384×384")
        for i in range(15)
    )
    page = tmp_path / "profile.html"
    made = profile_page(profile(program(), row("Softmax", us=100.0, flops=1e5), *many))
    page.write_text(made, encoding="utf-8")
    found = probe(page, PROBE, tmp_path, *switches)
    assert not found["dim"] and not found["overlaps"] and not found["wide"]
    assert (max(found["papers"]) < 40) == bool(switches)


@pytest.mark.parametrize("switches", [(), (DARK,)], ids=["light", "dark"])
@pytest.mark.parametrize("around", ["#fff", "#111"])
def test_a_report_in_a_notebook_of_another_theme(
    tmp_path: Path, switches: tuple[str, ...], around: str
) -> None:
    """A notebook's theme, here as JupyterLab has it, need not be the system's."""
    page = tmp_path / "notebook.html"
    page.write_text(
        f"""<!doctype html><title>notebook</title><style>
        body, .cell tbody tr:nth-child(n) {{ background: {around}; }}
        </style><body><div class="cell">{IMPROVED._repr_html_()}</div></body>""",
        encoding="utf-8",
    )
    assert not probe(page, PROBE, tmp_path, *switches)["dim"]
