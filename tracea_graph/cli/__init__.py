"""Parse command lines and print; a command's code is loaded when it is given."""

from __future__ import annotations

from tracea_graph.cli.main import main, optimize_main

__all__ = ["main", "optimize_main"]
