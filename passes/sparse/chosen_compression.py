"""Describe matrices that compression chose to approximate.

Which matrix gets which replacement is decided before planning, from calibration data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import PlainMatrix
from tracea_graph.passes.matmul.constant_matrices import replaceable_matrix
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PRUNED", "CompressedMatrix", "chosen_for", "pruned_for", "reason_not_compressed"]

Floats = npt.NDArray[np.floating[Any]]
PRUNED = ("prune-blocks", "prune-channels", "prune-heads")
"""Rules that exploit pruned weights."""


@dataclass(frozen=True)
class CompressedMatrix:
    """Replacement of a matrix ``[K, N]``: two factors ``[K, R]`` and ``[R, N]``, or a pruned copy;
    and the predicted error of the model's outputs."""

    matrices: tuple[Floats, ...]
    error: float


def pruned_for(
    chosen: Mapping[str, CompressedMatrix], graph: TileGraph, region: Region
) -> CompressedMatrix | None:
    """Return the pruned matrix chosen for a product, if there is one and it may be replaced."""
    found = chosen_for(chosen, region, 1)
    return found if found is None or replaceable_matrix(graph, region) is not None else None


def reason_not_compressed(value: str) -> Reason:
    """Return the reason to leave a matrix that compression did not choose for a rule."""
    return Reason(f"the search did not choose {value!r} for this", Code.NOT_APPLICABLE)


def chosen_for(
    chosen: Mapping[str, CompressedMatrix], region: Region, count: int
) -> CompressedMatrix | None:
    """Return the replacement chosen for a product if it has ``count`` matrices."""
    params = region.params
    if not isinstance(params, GemmParams) or not isinstance(params.layout, PlainMatrix):
        return None
    found = chosen.get(region.operands[1])
    return found if found is not None and len(found.matrices) == count else None
