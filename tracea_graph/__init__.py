"""tracea-graph: a graph-level optimizer for ONNX models.

report = tracea_graph.optimize("model.onnx")       # writes model.tracea.onnx, .so, .json
session = tracea_graph.session(report.output)      # plain onnxruntime, library registered
graph = tracea_graph.load("model.onnx")            # the topological tile graph

Names are loaded when they are first used (PEP 562): ``--help`` needs no NumPy.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tracea_graph.version import VERSION as __version__

if TYPE_CHECKING:
    from tracea_graph.api import (
        load,
        optimize,
        optimize_many,
        plan_kernel,
        session,
        validate_shapes,
    )
    from tracea_graph.command_api import bench, doctor, explain, profile, tune, verify
    from tracea_graph.commands.autotuner import AutoTuner
    from tracea_graph.context import Context
    from tracea_graph.health_check import Doctor
    from tracea_graph.options import Options
    from tracea_graph.policy import SearchSpace
    from tracea_graph.problem_descriptor import ProblemDescriptor
    from tracea_graph.ttg import TileGraph, TTGBuilder
    from tracea_graph.views import Report

__all__ = [
    "AutoTuner", "Context", "Doctor", "Options", "ProblemDescriptor", "Report", "SearchSpace",
    "TTGBuilder", "TileGraph", "__version__", "bench", "doctor", "explain", "load", "optimize",
    "optimize_many", "plan_kernel", "profile", "session", "tune", "validate_shapes", "verify",
]  # fmt: skip

logging.getLogger(__name__).addHandler(logging.NullHandler())  # applications configure logging

_HOMES: Mapping[str, str] = MappingProxyType(
    {
        "AutoTuner": "commands.autotuner", "Context": "context", "Doctor": "health_check",
        "Options": "options", "ProblemDescriptor": "problem_descriptor", "Report": "views",
        "SearchSpace": "policy",
        "TTGBuilder": "ttg", "TileGraph": "ttg",
    }
    | dict.fromkeys(("bench", "doctor", "explain", "profile", "tune", "verify"), "command_api")
    | dict.fromkeys(
        ("load", "optimize", "optimize_many", "plan_kernel", "session", "validate_shapes"), "api"
    )
)  # fmt: skip
"""The module that defines each public name."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
