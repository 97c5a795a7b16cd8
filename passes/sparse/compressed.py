"""Matrices that were chosen to become others, where the caller accepted an error.

What was chosen for which matrix is decided before planning, from calibration data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weights import Plain
from tracea_graph.passes.matmul.constant_matrices import replaceable_matrix
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PRUNED", "Compressed", "chosen_for", "pruned_for"]

Floats = npt.NDArray[np.floating[Any]]
PRUNED = ("prune-blocks", "prune-channels", "prune-heads")
"""Rules that make use of zeros that were chosen."""


@dataclass(frozen=True)
class Compressed:
    """What stands for a matrix ``[K, N]``: two factors ``[K, R]``, ``[R, N]``, or itself with
    zeros; and the error predicted for the model's outputs."""

    matrices: tuple[Floats, ...]
    error: float


def pruned_for(
    chosen: Mapping[str, Compressed], graph: TileGraph, region: Region
) -> Compressed | None:
    """The matrix with zeros that was chosen for that of a product, if one was and may stand."""
    found = chosen_for(chosen, region, 1)
    return found if found is None or replaceable_matrix(graph, region) is not None else None


def chosen_for(chosen: Mapping[str, Compressed], region: Region, count: int) -> Compressed | None:
    """So many matrices, if they were chosen for that of a product."""
    params = region.params
    if not isinstance(params, GemmParams) or not isinstance(params.layout, Plain):
        return None
    found = chosen.get(region.operands[1])
    return found if found is not None and len(found.matrices) == count else None
