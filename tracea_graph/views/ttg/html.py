"""The region graph as an interactive HTML fragment, for notebooks and pages.

The fragment is self-contained: SVG, a sidebar of details, and a script without external resources.
Without scripts the drawing and its tooltips remain.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache, partial
from importlib import resources
from typing import Any
from zlib import crc32

from tracea_graph.errors import GraphError
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.blocks import signature
from tracea_graph.ttg.model import RegionModel
from tracea_graph.views.ttg.drawing import clean_text, draw
from tracea_graph.views.ttg.tile_drawing import TileDrawing, tile_map

__all__ = ["diff_html", "family_of", "graph_html", "tile_map_html"]

NEUTRAL = {"input": "#dbeafe", "output": "#fde68a", "region": "#f1f3f4", "const": "#e5e7eb"}
FAMILIES = {
    "contraction": "#fecaca",
    "stencil": "#fed7aa",
    "reduction": "#ddd6fe",
    "elementwise": "#bbf7d0",
    "movement": "#e2e8f0",
    "program": "#fbcfe8",
    "opaque": "#f1f3f4",
}
_STYLE = (
    "font:12px system-ui,sans-serif;color:#202124;background:#fff;"
    "display:grid;grid-template-columns:minmax(0,1fr);gap:6px"
)
_HALF = "flex:1 1 440px;min-width:0;overflow:auto"
_DRAWN = (
    "flex:0 1 auto;min-width:min(440px,100%);max-width:max(440px,calc(100% - 480px));"
    "max-height:max(720px,85vh);overflow:auto"
)
"""Style of a drawing beside a sidebar."""
_ALONE = "min-width:0;max-height:max(720px,85vh);overflow:auto"
"""Style of a drawing without a sidebar."""


def family_of(model: RegionModel | None) -> str:
    """Classify a region's loop nest; see :data:`FAMILIES`."""
    if model is None:
        return "opaque"
    summed = set(model.space.reductions)
    windows = [{n for n, _ in dim.terms} for access in model.reads for dim in access.dims]
    if any(names & summed and names - summed - {"g"} for names in windows):
        return "stencil"
    if model.depth:
        return "contraction"
    dims = (dim for access in model.reads for dim in access.dims)
    rows = any(not dim.terms and dim.window != 1 and dim.indirect is None for dim in dims)
    if model.space.reductions or (rows and any(work.flops for work in model.work)):
        return "reduction"
    return "elementwise" if any(work.flops for work in model.work) else "movement"


def graph_html(graph: TileGraph) -> str:
    """Return the drawing with selectable colors, and details of a region when it is clicked."""
    drawing = draw(graph, _by_rule(graph))
    regions = graph.regions()
    shown = f"{len(drawing.shown)} of {drawing.total} nodes are drawn"
    caption = f"{clean_text(graph.name) or 'graph'}: {len(regions)} regions, "
    caption += f"{len(graph.weights)} constants"
    if graph.bindings:
        sizes = ", ".join(f"{clean_text(k)}={v}" for k, v in graph.bindings.items())
        caption += f"; tiles and times at {sizes}"
    if drawing.blocks:
        counts = ", ".join(f"× {len(block.copies)}" for block in drawing.blocks)
        caption += f"; repeated blocks ({counts}) are drawn once"
    if len(drawing.shown) < drawing.total:
        caption += f"; the first {shown}"
    rules = Counter(r.rule for r in regions if r.rule)
    legend = " ".join(_chip(f"{rule} × {n}", _colour(rule)) for rule, n in sorted(rules.items()))
    return _fragment(caption, legend, drawing.svg, _facts(graph, drawing.shown))


def tile_map_html(shown: TileDrawing) -> str:
    """Return one region's tile map."""
    caption = f"{clean_text(shown.region)} {clean_text(shown.op)}"
    return _fragment(caption, "", "", {"map": shown.to_dict()})


def diff_html(before: TileGraph, after: TileGraph) -> str:
    """Return two graphs, one above the other; merged regions have their result's color in both."""
    colours: dict[str, str] = {}
    for region in after.regions():
        made = (before.producer(v) for n in region.nodes for v in n.outputs if v)
        old = {r.id: r for r in made if r is not None}
        if any(r.op != region.op for r in old.values()) or len(old) > 1:
            colours |= dict.fromkeys((region.id, *old), _colour(region.id))

    parts = []
    for title, graph in (("before", before), ("after", after)):
        drawing = draw(graph, partial(_changed, graph, colours))
        caption = f"{title}: {len(graph.regions())} regions"
        parts.append(f'<div style="{_HALF}">{_fragment(caption, "", drawing.svg, {})}</div>')
    return f'<div style="display:flex;flex-wrap:wrap;gap:18px">{"".join(parts)}</div>'


def _changed(graph: TileGraph, colours: Mapping[str, str], name: str) -> str:
    return colours.get(name, NEUTRAL[graph.nx.nodes[name]["kind"]])


# ---- data for the script ---------------------------------------------------------------


def _facts(graph: TileGraph, shown: tuple[str, ...]) -> dict[str, Any]:
    """Sidebar data per drawn region; data common to equal regions is stored once."""
    nodes: dict[str, Any] = {}
    kinds: dict[str, Any] = {}
    for name in shown:
        region = graph.region(name)
        if region is None:
            continue
        key = _key(graph, region)
        if key not in kinds:
            kinds[key] = _kind(graph, region)
        nodes[name] = {
            "kind": key,
            "op": region.op,
            "rule": region.rule,
            "pass": _colour(region.rule) if region.rule else NEUTRAL["region"],
            "reads": [f"{v}: {graph.spec(v)}" for v in region.reads],
            "sources": _sources(graph, region),
            "writes": [f"{v}: {graph.spec(v)}" for v in region.writes],
            "originals": [n.name or n.op for n in region.nodes[:40]],
            **graph.cost_of(region),
        }
    return {"nodes": nodes, "kinds": kinds, "families": FAMILIES}


def _key(graph: TileGraph, region: Region) -> str:
    """Key of regions that have equal tiles and dependences, including their producers."""
    made = (graph.producer(v) for v in region.reads)
    parts = [signature(graph, r) if r is not None else "" for r in (region, *made)]
    return f"{crc32('|'.join(parts).encode(errors='replace')):08x}"


def _sources(graph: TileGraph, region: Region) -> list[str]:
    """Writer of each value a region reads; empty for inputs and constants."""
    return [r.id if (r := graph.producer(v)) is not None else "" for v in region.reads]


def _kind(graph: TileGraph, region: Region) -> dict[str, Any]:
    inside = graph.subgraph_of(region, graph)
    if inside is not None:
        return {"family": "program", **_steps(graph, inside)}
    model = graph.model(region)
    found: dict[str, Any] = {"family": family_of(model)}
    if model is None:
        return found
    try:
        found["flops"] = model.flops(graph.bindings)
        found["map"] = tile_map(graph, region, graph.bindings).to_dict()
    except GraphError as why:
        found["why"] = str(why)
    return found


def _steps(graph: TileGraph, inside: TileGraph) -> dict[str, Any]:
    """Steps of a program, in order; data common to equal steps is stored once."""
    kinds: dict[str, Any] = {}
    steps, keys = [], []
    inside.bindings = graph.bindings
    for step in inside.regions():
        keys.append(_key(inside, step))
        if keys[-1] not in kinds:
            kinds[keys[-1]] = _kind(inside, step)
        steps.append(
            {
                "op": step.op,
                "kind": keys[-1],
                "reads": [_inner(inside, v) for v in step.reads],
                "writes": [_inner(inside, v) for v in step.writes],
                "sources": [_step_name(source) for source in _sources(inside, step)],
            }
        )
    flops = sum(kinds[key].get("flops", 0.0) for key in keys)
    return {"steps": steps, "kinds": kinds, "flops": flops}


def _inner(inside: TileGraph, value: str) -> str:
    """A value with its spec; values between steps by number only."""
    _, mark, number = value.rpartition("#") if inside.producer(value) else ("", "", value)
    return f"{mark}{number}: {inside.spec(value)}"


def _step_name(step: str) -> str:
    return f"#{step.rpartition('#')[2]}" if step else ""


def _by_rule(graph: TileGraph) -> Any:
    def colour(name: str) -> str:
        region = graph.region(name)
        if region is None:
            return NEUTRAL[graph.nx.nodes[name]["kind"]]
        return _colour(region.rule) if region.rule else NEUTRAL["region"]

    return colour


# ---- markup ----------------------------------------------------------------------------


def _fragment(caption: str, legend: str, svg: str, facts: Mapping[str, Any]) -> str:
    data = json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    mark = f"ttg{crc32((caption + svg + data).encode(errors='replace')):08x}"
    script = sidebar = ""
    if facts:
        hint = "click a region for its loops and tiles" if svg else ""
        sidebar = f'<div class="sidebar" style="{_HALF}">{hint}</div>'
        code = _script().replace("ROOT", json.dumps(mark)).replace("FACTS", data)
        script = f"<script>//<![CDATA[\n{code}\n//]]></script>"
    drawing = f'<div style="{_DRAWN if facts else _ALONE}">{svg}</div>' if svg else ""
    return (
        f'<div id="{mark}" style="{_STYLE}"><p>{caption}</p><div class="bar">{legend}</div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:18px">{drawing}{sidebar}</div>{script}</div>'
    )


def _chip(label: str, colour: str) -> str:
    return (
        f'<span style="background:{colour};border:1px solid #5f6368;border-radius:4px;'
        f'padding:0 6px">{clean_text(label)}</span>'
    )


def _colour(rule: str) -> str:
    """Pastel color of a rule, the same in every graph."""
    hue = crc32(rule.encode(errors="replace")) % 360
    return f"hsl({hue},70%,84%)"


@cache
def _script() -> str:
    return resources.files("tracea_graph.views.ttg").joinpath("graph.js").read_text("utf-8")
