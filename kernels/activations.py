"""Activations that calls of the C interface may end with: one elementwise chain each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tracea_graph.ops.chain import FULL, Chain, Step

__all__ = ["ACTIVATIONS"]

ACTIVATIONS: Mapping[str, Chain] = MappingProxyType(
    {
        name: Chain((FULL,), (Step(name, (0,)),), (1,))
        for name in ("relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu")
    }
)
"""By name, in the order of ``TraceaActivation`` after ``TRACEA_NONE``."""
