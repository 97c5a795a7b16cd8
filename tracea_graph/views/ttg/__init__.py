"""Drawings of the region graph, for notebooks and as pages."""

from __future__ import annotations

from tracea_graph.views.ttg.graph_page import graph_page
from tracea_graph.views.ttg.notebook_display import NOTEBOOK

__all__ = ["NOTEBOOK", "graph_page"]
