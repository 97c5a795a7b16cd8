"""The region graph drawn: in a notebook, or as a page."""

from __future__ import annotations

from tracea_graph.views.ttg.notebook import NOTEBOOK
from tracea_graph.views.ttg.page import graph_page

__all__ = ["NOTEBOOK", "graph_page"]
