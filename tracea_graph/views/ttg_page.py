"""The region graph as a page of its own."""

from __future__ import annotations

from html import escape

from tracea_graph.ttg import TileGraph

__all__ = ["graph_page"]


def graph_page(graph: TileGraph, before: TileGraph | None = None) -> str:
    """One self-contained HTML file; with ``before`` what changed is shown below the graph."""
    title = escape(graph.name or "graph")
    parts = [graph._repr_html_()]
    if before is not None:
        parts.append(before.diff(graph)._repr_html_())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}: region graph</title></head>\n"
        f'<body style="margin:16px">{"<hr>".join(parts)}</body></html>\n'
    )
