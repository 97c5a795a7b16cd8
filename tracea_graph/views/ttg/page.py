"""The region graph as an HTML page."""

from __future__ import annotations

from html import escape

from tracea_graph.ttg import TileGraph
from tracea_graph.views.ttg.html import diff_html, graph_html

__all__ = ["graph_page"]


def graph_page(graph: TileGraph, before: TileGraph | None = None) -> str:
    """Return one self-contained HTML page; with ``before``, changes are shown below the graph."""
    title = escape(graph.name or "graph")
    parts = [graph_html(graph)]
    if before is not None:
        parts.append(diff_html(before, graph))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}: region graph</title></head>\n"
        f'<body style="margin:16px">{"<hr>".join(parts)}</body></html>\n'
    )
