"""Load pages in a headless Chromium, run a script in them and return what it reports."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
DARK = "--blink-settings=preferredColorScheme=0"
"""A switch under which pages are shown in dark colors."""

_FRAMES = "<script>window.requestAnimationFrame = (act) => setTimeout(act, 1);</script>"
"""Chromium draws no frames when it only dumps a page."""

_TOOLS = """
<pre id="found"></pre>
<script>
function report(found) { document.getElementById("found").textContent = JSON.stringify(found); }
function svgTexts() {
  return [...document.querySelectorAll("svg text")].filter((t) => t.textContent.trim());
}
function parallel(one, other) {  // slanted alike, on lines at least a letter apart
  const a = one.getScreenCTM(), b = other.getScreenCTM();
  if (Math.abs(a.b) < 0.01 || Math.abs(a.b - b.b) > 0.01) return false;
  const at = (t, m) => new DOMPoint(+t.getAttribute("x"), +t.getAttribute("y")).matrixTransform(m);
  const p = at(one, a), q = at(other, b);
  return Math.abs((q.y - p.y) * a.a - (q.x - p.x) * a.b) / Math.hypot(a.a, a.b) > 12;
}
function overlapping(texts) {
  const found = [], boxes = texts.map((t) => t.getBoundingClientRect());
  for (let i = 0; i < boxes.length; i += 1) {
    for (let j = i + 1; j < boxes.length; j += 1) {
      if (texts[i].ownerSVGElement !== texts[j].ownerSVGElement) continue;
      const a = boxes[i], b = boxes[j];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      const halo = Math.abs(a.left - b.left) < 1 && Math.abs(a.top - b.top) < 1;
      if (halo && texts[i].textContent === texts[j].textContent) continue;
      if (parallel(texts[i], texts[j])) continue;
      if (wide > 1 && high > 3) found.push([texts[i].textContent, texts[j].textContent]);
    }
  }
  return found;
}
</script>
"""


def probe(page: Path, script: str, folder: Path, *switches: str) -> Any:
    """Return what ``script`` passes to ``report()`` in a copy of a page.

    The script may call ``svgTexts()`` and ``overlapping(texts)``.
    """
    head, _, rest = page.read_text(encoding="utf-8").partition("<title>")
    copy = folder / "probed.html"
    copy.write_text(f"{head}{_FRAMES}<title>{rest}{_TOOLS}{script}", encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-dev-shm-usage", *switches,
        f"--user-data-dir={folder / 'profile'}", "--window-size=1600,1000",
        "--virtual-time-budget=60000", "--dump-dom", f"file://{copy}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True)
    said = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said and said[1], "the page's script did not run to its end"
    return json.loads(html.unescape(said[1]))


def overlapping_texts(svg: str, folder: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the texts of an SVG picture, and the pairs of them that overlap."""
    (page := folder / "picture.html").write_text(f"<title></title>{svg}", encoding="utf-8")
    script = """<script>
      const texts = svgTexts();
      report([texts.map((t) => t.textContent.trim()), overlapping(texts)]);
    </script>"""
    texts, overlaps = probe(page, script, folder)
    return texts, overlaps
