"""A region graph as one self-contained piece of HTML: what a notebook shows for it."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from tracea_graph.ttg.graph import TileGraph

__all__ = ["MAX_NODES", "graph_html"]

MAX_NODES = 200
WIDTH, HEIGHT, GAP_X, GAP_Y = 172, 36, 16, 30
LABEL = 24
NEUTRAL = {"input": "#dbeafe", "output": "#fde68a", "region": "#f1f3f4"}

Place = tuple[float, float]


def graph_html(graph: TileGraph) -> str:
    """An SVG drawing with a legend: producers above consumers, regions coloured by their rule.

    At most :data:`MAX_NODES` nodes are drawn, the first in topological order; the caption says so.
    Constants are counted, not drawn.
    """
    regions = graph.regions()
    names = [f"input:{v}" for v in graph.inputs] + [r.id for r in regions]
    names += [f"output:{v}" for v in graph.outputs]
    shown = names[:MAX_NODES]
    places = _layout(graph, shown)
    width = max((x for x, _ in places.values()), default=0.0) + WIDTH + GAP_X
    height = max((y for _, y in places.values()), default=0.0) + HEIGHT + GAP_Y
    drawing = "".join(_edges(graph, places)) + "".join(_node(graph, n, places[n]) for n in shown)
    caption = f"{_text(graph.name) or 'graph'}: {len(regions)} regions, "
    caption += f"{len(graph.weights)} constants"
    if len(names) > len(shown):
        caption += f"; the first {len(shown)} of {len(names)} nodes are drawn"
    rules = Counter(r.rule for r in regions if r.rule)
    return (
        '<div style="font:12px system-ui,sans-serif;color:#202124;background:#fff">'
        f"<p>{caption}</p><p>{' '.join(_legend(*item) for item in sorted(rules.items()))}</p>"
        '<div style="overflow:auto;max-height:640px">'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-size="12">{drawing}</svg></div></div>'
    )


def _layout(graph: TileGraph, names: list[str]) -> dict[str, Place]:
    """Top-left corners: a layer per longest path from a source, parents' order kept within it."""
    drawn, depth = set(names), dict[str, int]()
    for name in names:
        parents = [p for p in graph.nx.predecessors(name) if p in depth]
        depth[name] = 1 + max((depth[p] for p in parents), default=-1)
    layers: dict[int, list[str]] = {}
    for name in names:
        layers.setdefault(depth[name], []).append(name)
    widest = max(map(len, layers.values()), default=0)
    places: dict[str, Place] = {}
    for level, members in sorted(layers.items()):
        key = {
            n: _mean([places[p][0] for p in set(graph.nx.predecessors(n)) & drawn])
            for n in members
        }
        left = (widest - len(members)) / 2
        for i, name in enumerate(sorted(members, key=key.__getitem__)):
            x = GAP_X + (left + i) * (WIDTH + GAP_X)
            places[name] = (x, GAP_Y / 2 + level * (HEIGHT + GAP_Y))
    return places


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _edges(graph: TileGraph, places: dict[str, Place]) -> list[str]:
    paths = []
    for source, target, data in graph.nx.edges(data=True):
        if source in places and target in places:
            title = _text(f"{data['value']}: {graph.spec(data['value'])}")
            path = _curve(places[source], places[target])
            line = f'<path d="{path}" fill="none" stroke="#9aa0a6">'
            paths.append(f"{line}<title>{title}</title></path>")
    return paths


def _curve(source: Place, target: Place) -> str:
    """Bottom to top; an edge that passes other layers bends out of their way."""
    (x, y), (u, v) = source, target
    x, y, u = x + WIDTH / 2, y + HEIGHT, u + WIDTH / 2
    out = 0.75 * WIDTH if v - y > GAP_Y + 1 else 0.0
    left = f"{x + out:.0f} {y + GAP_Y:.0f}"
    return f"M{x:.0f} {y:.0f}C{left} {u + out:.0f} {v - GAP_Y:.0f} {u:.0f} {v:.0f}"


def _node(graph: TileGraph, name: str, place: Place) -> str:
    kind, region = graph.nx.nodes[name]["kind"], graph.region(name)
    value = graph.nx.nodes[name].get("value", "")
    label = region.op if region else value
    detail = f"{kind} {value}: {graph.spec(value)}"
    if region:
        results = ", ".join(f"{v}: {graph.spec(v)}" for v in region.writes)
        originals = " ".join(n.name or n.op for n in region.nodes[:20])
        detail = f"{name} {region.op} {region.rule}\n{results}\n{originals}"
        value = next(iter(region.writes), "")
    colour = _colour(region.rule) if region and region.rule else NEUTRAL[kind]
    x, y = place
    middle = f'<text x="{x + WIDTH / 2:.0f}" text-anchor="middle"'
    return (
        f'<g><title>{_text(detail)}</title><rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" '
        f'height="{HEIGHT}" rx="6" fill="{colour}" stroke="#5f6368"/>'
        f'{middle} y="{y + 15:.0f}">{_text(_short(label))}</text>'
        f'{middle} y="{y + 29:.0f}" font-size="10" fill="#5f6368">'
        f"{_text(_short(str(graph.spec(value))))}</text></g>"
    )


def _legend(rule: str, count: int) -> str:
    return (
        f'<span style="background:{_colour(rule)};border:1px solid #5f6368;border-radius:4px;'
        f'padding:0 6px">{_text(rule)} × {count}</span>'
    )


def _colour(rule: str) -> str:
    """The same pastel for the same rule, in every graph."""
    hue = crc32(rule.encode(errors="replace")) % 360
    return f"hsl({hue},70%,84%)"


def _short(label: str) -> str:
    return label if len(label) <= LABEL else f"{label[: LABEL - 9]}…{label[-8:]}"


def _text(words: str) -> str:
    """Escaped, with what markup forbids (control and lone surrogate characters) replaced."""
    clean = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in words)
    return escape(clean)
