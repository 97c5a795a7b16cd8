"""The region graph as SVG: producers above consumers, each repeated block drawn once.

Layers are longest paths from a source (Sugiyama et al. 1981); within a layer, nodes are ordered by
their producers.  Boxes have one size, which keeps labels from overlapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tracea_graph.ir import Node
from tracea_graph.ttg import TileGraph
from tracea_graph.ttg.repeated_blocks import RepeatedBlock, repeated_blocks
from tracea_graph.views.layer_names import LayerNames, shorten

__all__ = ["MAX_NODES", "Drawing", "clean_text", "draw_graph", "layer_names", "original_names"]

MAX_NODES = 2500
WIDTH, HEIGHT, GAP_X, GAP_Y, PAD = 190, 50, 16, 30, 10
LABEL_SIZE, DETAIL_SIZE = 12, 10
"""Font sizes of a box's first line and of the lines below it."""
_WIDE = frozenset("mwMW@%&")
STEP = WIDTH + GAP_X
_SWEEPS = 7

Place = tuple[float, float]
Colour = Callable[[str], str]
"""Fill color of a node's box, by the node's name."""


@dataclass(frozen=True)
class Drawing:
    """A drawing of a graph.

    ``shown`` are the names of the nodes that are drawn, ``total`` is the number of nodes that
    there are to draw, ``blocks`` are the repeated blocks of which one copy is drawn.
    """

    svg: str
    height: float
    shown: tuple[str, ...]
    total: int
    blocks: tuple[RepeatedBlock, ...]


def draw_graph(graph: TileGraph, colour: Colour, collapse: bool = True) -> Drawing:
    """Draw at most :data:`MAX_NODES` nodes, the first in topological order.

    With ``collapse`` only the first copy of each repeated block is drawn, in a group box.
    Constants are not drawn.
    """
    blocks = tuple(repeated_blocks(graph)) if collapse else ()
    stands_for = {
        other: shown
        for b in blocks
        for c in b.copies[1:]
        for other, shown in zip(c, b.shown, strict=True)
    }
    every = [f"input:{v}" for v in graph.inputs] + [r.id for r in graph.regions()]
    every += [f"output:{v}" for v in graph.outputs]
    names = [n for n in every if n not in stands_for and not _serves(graph, n, stands_for)]
    shown = tuple(names[:MAX_NODES])
    edges = _edges(graph, shown, stands_for)
    places = _layout(shown, edges)
    width = max((x for x, _ in places.values()), default=0.0) + WIDTH + GAP_X
    height = max((y for _, y in places.values()), default=0.0) + HEIGHT + GAP_Y
    layers = layer_names(graph)
    parts = [
        *_group_boxes(blocks, places),
        *(_path(graph, edge, places) for edge in edges),
        *(_box(graph, name, places[name], colour(name), layers) for name in shown),
    ]
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-size="{LABEL_SIZE}">{"".join(parts)}</svg>'
    )
    return Drawing(svg, height, shown, len(names), blocks)


def layer_names(graph: TileGraph) -> LayerNames:
    """Return what layers of the graph are called."""
    return LayerNames(n.name for r in graph.regions() for n in r.nodes if n.name)


def original_names(nodes: Sequence[Node]) -> list[str]:
    """Return the names of original operators; one without a name goes by its type."""
    return [n.name or n.op for n in nodes]


def _serves(graph: TileGraph, name: str, stands_for: Mapping[str, str]) -> bool:
    """Whether an input or output belongs to copies of a block that are not drawn."""
    if graph.region(name) is not None:
        return False
    near = {*graph.nx.predecessors(name), *graph.nx.successors(name)}
    return bool(near) and near <= stands_for.keys()


Edge = tuple[str, str, str]
"""Source, target, value."""


def _edges(graph: TileGraph, shown: Sequence[str], stands_for: Mapping[str, str]) -> list[Edge]:
    """Edges between drawn nodes, without those from one copy of a block to the next.

    An edge of a copy that is not drawn is used where the drawn copy has none.
    """
    rank = {name: i for i, name in enumerate(shown)}
    own: dict[Edge, None] = {}
    others: dict[tuple[str, str], Edge] = {}
    for source, target, data in graph.nx.edges(data=True):
        a, b = stands_for.get(source, source), stands_for.get(target, target)
        if a in rank and b in rank and rank[a] < rank[b]:
            edge = a, b, data["value"]
            if (a, b) == (source, target):
                own[edge] = None
            else:
                others.setdefault((a, b), edge)
    drawn = {(a, b) for a, b, _ in own}
    return [*own, *(edge for pair, edge in others.items() if pair not in drawn)]


def _layout(names: Sequence[str], edges: Sequence[Edge]) -> dict[str, Place]:
    """Top-left corners: layers by longest path, then sweeps that move neighbors together."""
    parents: dict[str, list[str]] = {name: [] for name in names}
    children: dict[str, list[str]] = {name: [] for name in names}
    for source, target, _ in edges:
        parents[target].append(source)
        children[source].append(target)
    depth = _depths(names, parents, children)
    layers: dict[int, list[str]] = {}
    for name in names:
        layers.setdefault(depth[name], []).append(name)
    x: dict[str, float] = {
        name: i * STEP for members in layers.values() for i, name in enumerate(members)
    }
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = parents if down else children
        for level in sorted(layers, reverse=not down):
            wanted = {n: _mean([x[p] for p in near[n]], x[n]) for n in layers[level]}
            x |= _spread_out(wanted)
    left = min(x.values(), default=0.0) - GAP_X - PAD
    return {n: (x[n] - left, GAP_Y + depth[n] * (HEIGHT + GAP_Y)) for n in names}


def _depths(
    names: Sequence[str],
    parents: Mapping[str, Sequence[str]],
    children: Mapping[str, Sequence[str]],
) -> dict[str, int]:
    """Layer of each node; a node without producers is just above its first reader."""
    depth: dict[str, int] = {}
    for name in names:
        depth[name] = 1 + max((depth[p] for p in parents[name]), default=-1)
    for name in names:
        if not parents[name] and children[name]:
            depth[name] = max(0, min(depth[c] for c in children[name]) - 1)
    return depth


def _spread_out(wanted: Mapping[str, float]) -> dict[str, float]:
    """Positions nearest to the wanted ones, in order and without overlap of boxes."""
    order = sorted(wanted, key=wanted.__getitem__)
    placed: list[float] = []
    for name in order:
        placed.append(max(wanted[name], placed[-1] + STEP) if placed else wanted[name])
    shift = _mean([at - wanted[n] for at, n in zip(placed, order, strict=True)], 0.0)
    return {n: at - shift for n, at in zip(order, placed, strict=True)}


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _group_boxes(blocks: Sequence[RepeatedBlock], places: Mapping[str, Place]) -> Iterator[str]:
    """Group box around the drawn copy of each block, with the number of copies."""
    for block in blocks:
        inside = [places[name] for name in block.shown if name in places]
        if not inside:
            continue
        left, top = min(x for x, _ in inside) - PAD, min(y for _, y in inside) - PAD
        right = max(x for x, _ in inside) + WIDTH + PAD
        bottom = max(y for _, y in inside) + HEIGHT + PAD
        yield (
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{right - left:.0f}" '
            f'height="{bottom - top:.0f}" rx="8" class="frame"/>'
            f'<text x="{left + 4:.0f}" y="{top - 4:.0f}" class="frame">'
            f"× {len(block.copies)}</text>"
        )


def _path(graph: TileGraph, edge: Edge, places: Mapping[str, Place]) -> str:
    source, target, value = edge
    title = clean_text(f"{value}: {graph.spec(value)}")
    line = f'<path d="{_curve(places[source], places[target])}">'
    return f"{line}<title>{title}</title></path>"


def _curve(source: Place, target: Place) -> str:
    """Curve from bottom to top; an edge across several layers bends around them."""
    (x, y), (u, v) = source, target
    x, y, u = x + WIDTH / 2, y + HEIGHT, u + WIDTH / 2
    out = 0.75 * WIDTH if v - y > GAP_Y + 1 else 0.0
    left = f"{x + out:.0f} {y + GAP_Y:.0f}"
    return f"M{x:.0f} {y:.0f}C{left} {u + out:.0f} {v - GAP_Y:.0f} {u:.0f} {v:.0f}"


def _box(graph: TileGraph, name: str, place: Place, fill: str, layers: LayerNames) -> str:
    """A box of three lines: the operator, the layer it belongs to, and its result's shape."""
    kind, region = graph.nx.nodes[name]["kind"], graph.region(name)
    value = graph.nx.nodes[name].get("value", "")
    label, layer = value, kind
    detail = f"{kind} {value}: {graph.spec(value)}"
    if region:
        results = ", ".join(f"{v}: {graph.spec(v)}" for v in region.writes)
        originals = original_names(region.nodes)
        label, layer = region.op, layers.of([n.name for n in region.nodes if n.name])
        detail = f"{name} {region.op} {region.rule}\n{results}\n{' '.join(originals[:20])}"
        value = next(iter(region.writes), "")
    x, y = place
    middle = f'<text x="{x + WIDTH / 2:.0f}" text-anchor="middle"'
    small = f'{middle} class="small"'
    return (
        f'<g data-node="{clean_text(name)}"><title>{clean_text(detail)}</title>'
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
        f'fill="{fill}"/>'
        f'{middle} y="{y + 15:.0f}">{clean_text(_short(label, LABEL_SIZE))}</text>'
        f'{small} y="{y + 29:.0f}">{clean_text(_short(layer, DETAIL_SIZE))}</text>'
        f'{small} y="{y + 43:.0f}">'
        f"{clean_text(_short(str(graph.spec(value)), DETAIL_SIZE))}</text></g>"
    )


def _short(label: str, size: int) -> str:
    """A label that fits a box: its middle is left out if it is too wide."""
    label, most = label.split("\n")[0], len(label)
    while _width(short := shorten(label, most)) * size > WIDTH - 8 and most > 1:
        most = min(most, len(short)) - 1
    return short


def _width(text: str) -> float:
    """Estimated width in ems, rather too large."""
    return sum(1.0 if c in _WIDE or ord(c) > 0x1100 else 0.62 for c in text)


def clean_text(words: str) -> str:
    """Escape text and replace characters that markup forbids (control and lone surrogates)."""
    clean = "".join(c if c.isprintable() or c == "\n" else "�" for c in words)
    return escape(clean)
