"""The region graph as an HTML page."""

from __future__ import annotations

from tracea_graph.ttg import TileGraph
from tracea_graph.views.layer_names import model_name
from tracea_graph.views.ttg.graph_html import diff_html, graph_html, region_count
from tracea_graph.views.ttg.graph_svg import clean_text

__all__ = ["graph_page"]

_STYLE = (
    "body{margin:12px 16px;background:#fff;color:#1f2630;font:15px/1.4 system-ui,sans-serif}"
    "h1{font-size:1.3rem;margin:.2rem 0 .4rem;overflow-wrap:anywhere}h2{font-size:1.1rem}"
    "@media(prefers-color-scheme:dark){body{background:#13181e;color:#e3e8ee}}"
)


def graph_page(graph: TileGraph, before: TileGraph | None = None) -> str:
    """Return one self-contained HTML page; with ``before``, changes are shown below the graph."""
    title = clean_text(model_name(graph))
    parts = [f"<h1>{title}{_became(before, graph)}</h1>", graph_html(graph)]
    if before is not None:
        parts.append("<h2>Before and after: regions that became one have its color</h2>")
        parts.append(diff_html(before, graph))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}: region graph</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _became(before: TileGraph | None, graph: TileGraph) -> str:
    if before is None:
        return ""
    return f": {region_count(before)} became {len(graph.regions())}"
