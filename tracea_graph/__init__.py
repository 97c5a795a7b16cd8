"""tracea-graph: a graph-level optimizer for ONNX models.

report = tracea_graph.optimize("model.onnx")       # writes model.tracea.onnx, .so, .json
session = tracea_graph.session(report.output)      # plain onnxruntime, library registered
graph = tracea_graph.load("model.onnx")            # the topological tile graph
"""

from __future__ import annotations

from tracea_graph.api import load, optimize, optimize_many, plan_kernel, session
from tracea_graph.doctor import Doctor
from tracea_graph.options import Options
from tracea_graph.ttg import TileGraph, TTGBuilder
from tracea_graph.version import VERSION as __version__
from tracea_graph.views import Report

__all__ = [
    "Doctor", "Options", "Report", "TTGBuilder", "TileGraph", "__version__", "load", "optimize",
    "optimize_many", "plan_kernel", "session",
]  # fmt: skip
