"""Words for the command line: the CPU targets and the operations that one can name.

Parsers read them before anything else of the backend is loaded; keep this module light.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tracea_graph.kernels import operations
from tracea_graph.kernels.operations import KernelOperation, over_images

__all__ = ["OPERATIONS", "TARGETS"]

TARGETS = ("cpu:scalar", "cpu:avx2", "cpu:avx512", "cpu:neon")
"""Targets by architecture, the lowest level of each first."""

_LAYOUTS = (over_images("reorder_to_nchw16c"), over_images("reorder_to_nchw"))
OPERATIONS: Mapping[str, KernelOperation] = MappingProxyType(
    {**operations.OPERATIONS, **{o.name: o for o in _LAYOUTS}}
)
"""Operations one can ask for: the shared ones, and those between this backend's layouts."""
