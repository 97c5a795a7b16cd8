"""Pages in a real browser: they load, no labels overlap, and a click opens a region's tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.make import make
from models.scale import layers
from tests.browser import BROWSER, probe
from tracea_graph.cli import main

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium")

PROBE = """
<script>
window.addEventListener("load", function () {
  const found = { seconds: performance.now() / 1000, regions: 0, failed: [] };
  const texts = svgTexts();
  found.overlaps = overlapping(texts);
  found.labels = texts.length;
  const sidebar = document.querySelector(".sidebar");
  found.tiles = 0;
  for (const box of document.querySelectorAll("g[data-node]")) {
    if (box.style.cursor !== "pointer") continue;
    found.regions += 1;
    box.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    if (!sidebar.textContent.includes(box.dataset.node)) found.failed.push(box.dataset.node);
    if (box.getAttribute("tabindex") !== "0") found.failed.push(box.dataset.node);
    const tile = sidebar.querySelector("svg rect");
    if (tile) { tile.dispatchEvent(new MouseEvent("click")); found.tiles += 1; }
  }
  const field = document.querySelector(".ttg input[type=search]");
  field.value = document.querySelector("g[data-node] text").textContent;
  field.dispatchEvent(new Event("input"));
  found.hits = document.querySelectorAll("g.found").length;
  field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  setTimeout(function () {  // Panzoom moves in the next frame
    const drawing = document.querySelector(".drawing").getBoundingClientRect();
    const hit = document.querySelector("g.found > rect").getBoundingClientRect();
    const across = hit.left >= drawing.left && hit.right <= drawing.right;
    found.revealed = across && hit.top >= drawing.top && hit.bottom <= drawing.bottom;
    const svg = document.querySelector(".drawing svg");
    const before = svg.style.transform;
    document.querySelector('.tools button[aria-label="zoom in"]').click();
    setTimeout(function () {
      found.zoomed = svg.style.transform !== before;
      found.wide = document.documentElement.scrollWidth > innerWidth;
      report(found);
    }, 600);
  }, 200);
});
</script>
"""


CENTRED = """
<script>
window.addEventListener("load", function () {
  document.body.style.width = "700px";  // one below the other, and narrower
  dispatchEvent(new Event("resize"));
  setTimeout(function () {
    report([...document.querySelectorAll(".drawing")].map(function (drawing) {
      const whole = drawing.getBoundingClientRect();
      const inner = drawing.querySelector("svg").getBoundingClientRect();
      return Math.abs(inner.left + inner.right - whole.left - whole.right) < 2;
    }));
  }, 500);
});
</script>
"""


def assert_usable(model: Path, folder: Path, *options: str) -> dict[str, Any]:
    page = folder / "page.html"
    assert main(["inspect", str(model), "--html", str(page), *options]) == 0
    assert "http://" not in page.read_text(encoding="utf-8").replace("http://www.w3.org", "")
    found = probe(page, PROBE, folder)
    assert found["regions"] and not found["failed"] and found["tiles"] > 0
    assert not found["overlaps"] and found["labels"] >= found["regions"]
    assert found["hits"] and found["revealed"] and found["zoomed"] and not found["wide"]
    return found


def test_a_small_model(tmp_path: Path) -> None:
    assert_usable(make("tiny-bert", tmp_path, hollow=True), tmp_path)


def test_graphs_stay_in_the_middle_when_the_layout_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    model = make("tiny-bert", tmp_path, hollow=True)
    assert main(["inspect", str(model), "--fused", "--html", str(page)]) == 0
    assert probe(page, CENTRED, tmp_path) == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [(), ("--fused", "--skip", "cluster", "--skip", "cluster-conv")]
)
@pytest.mark.parametrize("name", ["minilm", "resnet50", "layers"])
def test_whole_models(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Drawn and ready within two seconds."""
    if name == "layers":
        (path := tmp_path / "layers.onnx").write_bytes(layers(2000).SerializeToString())
    else:
        path = make(name, tmp_path, hollow=True)
    assert assert_usable(path, tmp_path, *options)["seconds"] < 2
