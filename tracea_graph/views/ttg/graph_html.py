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
from tracea_graph.ttg.loop_nest_model import RegionModel
from tracea_graph.ttg.repeated_blocks import region_signature
from tracea_graph.views.layer_names import LayerNames, model_name
from tracea_graph.views.terminal_tables import format_three_digits
from tracea_graph.views.ttg.graph_svg import (
    Drawing,
    clean_text,
    draw_graph,
    layer_names,
    original_names,
)
from tracea_graph.views.ttg.tile_map import TileDrawing, tile_map

__all__ = ["diff_html", "graph_html", "loop_nest_family", "region_count", "tile_map_html"]

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
_SLOWEST = 15
"""Regions listed beside a drawing until one is opened."""


def loop_nest_family(model: RegionModel | None) -> str:
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
    drawing = draw_graph(graph, _by_rule(graph))
    regions = graph.regions()
    shown = f"{len(drawing.shown)} of {drawing.total} nodes are drawn"
    caption = f"{clean_text(model_name(graph))}: {region_count(graph)}, "
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
    return _fragment(caption, legend, drawing, _facts(graph, drawing.shown), _overview(graph))


def tile_map_html(shown: TileDrawing) -> str:
    """Return one region's tile map."""
    caption = f"{clean_text(shown.region)} {clean_text(shown.op)}"
    return _fragment(caption, "", None, {"map": shown.to_dict()})


def region_count(graph: TileGraph) -> str:
    """Return the number of regions in words."""
    count = len(graph.regions())
    return f"{count} region{'s' * (count != 1)}"


def diff_html(before: TileGraph, after: TileGraph) -> str:
    """Return two graphs, one above the other.

    Regions that were merged have the color of the region that they became.
    """
    colours: dict[str, str] = {}
    for region in after.regions():
        made = (before.producer(v) for n in region.nodes for v in n.outputs if v)
        old = {r.id: r for r in made if r is not None}
        if any(r.op != region.op for r in old.values()) or len(old) > 1:
            colours |= dict.fromkeys((region.id, *old), _colour(region.id))

    parts = []
    for title, graph in (("before", before), ("after", after)):
        drawing = draw_graph(graph, partial(_changed, graph, colours))
        caption = f"{title}: {region_count(graph)}"
        parts.append(f'<div class="compared">{_fragment(caption, "", drawing, {})}</div>')
    columns = (
        "display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr))"
    )
    return f'<div style="{columns}">{"".join(parts)}</div>'


def _changed(graph: TileGraph, colours: Mapping[str, str], name: str) -> str:
    return colours.get(name, NEUTRAL[graph.nx.nodes[name]["kind"]])


# ---- data for the script ---------------------------------------------------------------


def _facts(graph: TileGraph, shown: tuple[str, ...]) -> dict[str, Any]:
    """Sidebar data per drawn region; data common to equal regions is stored once."""
    nodes: dict[str, Any] = {}
    kinds: dict[str, Any] = {}
    layers = layer_names(graph)
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
            "layer": layers.of([n.name for n in region.nodes if n.name]),
            "rule": region.rule,
            "pass": _colour(region.rule) if region.rule else NEUTRAL["region"],
            "reads": [f"{v}: {graph.spec(v)}" for v in region.reads],
            "sources": _sources(graph, region),
            "writes": [f"{v}: {graph.spec(v)}" for v in region.writes],
            "originals": original_names(region.nodes[:40]),
            "steps": [layers.of([n.name for n in own if n.name]) for own in region.step_nodes],
            **graph.cost_of(region),
        }
    return {"nodes": nodes, "kinds": kinds, "families": FAMILIES}


def _key(graph: TileGraph, region: Region) -> str:
    """Key of regions that have equal tiles and dependences, including their producers."""
    made = (graph.producer(v) for v in region.reads)
    parts = [region_signature(graph, r) if r is not None else "" for r in (region, *made)]
    return f"{crc32('|'.join(parts).encode(errors='replace')):08x}"


def _sources(graph: TileGraph, region: Region) -> list[str]:
    """Writer of each value a region reads; empty for inputs and constants."""
    return [r.id if (r := graph.producer(v)) is not None else "" for v in region.reads]


def _kind(graph: TileGraph, region: Region) -> dict[str, Any]:
    inside = graph.subgraph_of(region, graph)
    if inside is not None:
        return {"family": "program", **_steps(graph, inside)}
    model = graph.model(region)
    found: dict[str, Any] = {"family": loop_nest_family(model)}
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


def _fragment(
    caption: str,
    legend: str,
    drawing: Drawing | None,
    facts: Mapping[str, Any],
    overview: str = "",
) -> str:
    """A drawing with a sidebar that shows ``overview`` until a region is opened."""
    svg = drawing.svg if drawing else ""
    data = json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    mark = f"ttg{crc32((caption + svg + data).encode(errors='replace')):08x}"
    code = _script("graph.js").replace("ROOT", json.dumps(mark)).replace("FACTS", data)
    # without a module loader of the page, such as a notebook's, the library defines a global
    library = f"(function(exports,module,define){{{_script('panzoom.min.js')}}})();"
    panes = [f'<div class="sidebar">{overview}</div>'] if facts else []
    if drawing:
        height = f"--height:{drawing.height + 2:.0f}px"
        panes.insert(0, f'<div class="drawing" style="{height}">{svg}</div>')
    return (
        f'<div id="{mark}" class="ttg"><style>{_script("graph.css")}</style>'
        f'<p>{caption}</p><div class="bar">{legend}</div>'
        f'<div class="panes{"" if drawing else " alone"}">{"".join(panes)}</div>'
        f"<script>//<![CDATA[\n{library if drawing else ''}\n{code}\n//]]></script></div>"
    )


def _overview(graph: TileGraph) -> str:
    """Table of the regions that are predicted to take longest; of all, if nothing is predicted."""
    layers = layer_names(graph)
    times = {r.id: float(graph.cost_of(r).get("microseconds", 0.0)) for r in graph.regions()}
    total = sum(times.values())
    rows = sorted(graph.regions(), key=lambda r: -times[r.id])[:_SLOWEST]
    what = "slowest regions, as predicted" if total else "first regions"
    timed = "".join(f'<th scope="col" class="n">{head}</th>' for head in ("time", "share"))
    cells = "".join(_overview_row(r, layers, times[r.id], total) for r in rows)
    return (
        f"<p>{what}; a box or a name opens its loops and tiles</p><table><thead><tr>"
        f'<th scope="col">region</th><th scope="col">layer</th>{timed if total else ""}</tr>'
        f"</thead><tbody>{cells}</tbody></table>"
    )


def _overview_row(region: Region, layers: LayerNames, us: float, total: float) -> str:
    link = f'<a href="#" data-open="{clean_text(region.id)}">{clean_text(region.op)}</a>'
    layer = clean_text(layers.of([n.name for n in region.nodes if n.name]))
    time = f"{us:.3g} µs" if us < 999.5 else f"{format_three_digits(us / 1000)} ms"
    digits = ".0%" if us >= 0.1 * total else ".2%"
    share = f'<td class="n">{us / total:{digits}}</td>' if total else ""
    timed = f'<td class="n">{time}</td>{share}' if total else ""
    return f'<tr><th scope="row">{link}</th><td>{layer}</td>{timed}</tr>'


def _chip(label: str, colour: str) -> str:
    return f'<span class="chip" style="background:{colour}">{clean_text(label)}</span>'


def _colour(rule: str) -> str:
    """Pastel color of a rule, the same in every graph."""
    hue = crc32(rule.encode(errors="replace")) % 360
    return f"hsl({hue},70%,84%)"


@cache
def _script(name: str) -> str:
    return resources.files("tracea_graph.views.ttg").joinpath(name).read_text("utf-8")
