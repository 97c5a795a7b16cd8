"""Cost of deciding about a new kind of region: compiling its kernel, and timing it."""

from __future__ import annotations

from tracea_graph.ops.chain import Chain
from tracea_graph.ttg import Region

__all__ = ["decision_cost"]

_TIMING_S, _COMPILE_S = 2.0, 1.0
"""Seconds to time a group on the whole model, and to compile a unit that is not cached."""


def decision_cost(region: Region, budget: float) -> float:
    """Return the fraction of ``budget`` (seconds) that deciding about one such region takes.

    An operator that stays with ONNX Runtime costs nothing.  Micro-kernels are in the build cache
    after the first model; elementwise parts are compiled for each model.
    """
    if region.params is None:
        return 0.0
    parts = (getattr(region.params, name, None) for name in ("chain", "epilogue", "prologue"))
    units = sum(isinstance(part, Chain) for part in parts)
    return (_TIMING_S + units * _COMPILE_S) / budget
