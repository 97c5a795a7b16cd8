"""Drawings of the region graph, for notebooks and as pages."""

from __future__ import annotations

from tracea_graph.views.ttg.notebook import NOTEBOOK
from tracea_graph.views.ttg.page import graph_page

__all__ = ["NOTEBOOK", "graph_page"]
