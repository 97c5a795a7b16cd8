"""Cost of deciding about a new kind of region: compiling its kernel, and timing it."""

from __future__ import annotations

from tracea_graph.ops.chain import Chain
from tracea_graph.ttg import Region

__all__ = ["decision_cost"]

_TIMING_S, _COMPILE_S = 2.0, 1.0
"""Seconds for timing a group on the whole model, and for a unit the build cache lacks."""


def decision_cost(region: Region, budget: float) -> float:
    """Share of ``budget`` (seconds) that one region of its kind takes before it is decided.

    An operator that stays one of ONNX Runtime's costs nothing.  Micro-kernels are in the build
    cache after the first model; elementwise parts are compiled for each model.
    """
    if region.params is None:
        return 0.0
    parts = (getattr(region.params, name, None) for name in ("chain", "epilogue", "prologue"))
    units = sum(isinstance(part, Chain) for part in parts)
    return (_TIMING_S + units * _COMPILE_S) / budget
