"""Argument parsing and printing, nothing else."""

from __future__ import annotations

from tracea_graph.cli.main import main, optimize_main

__all__ = ["main", "optimize_main"]
