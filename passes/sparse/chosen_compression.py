"""Describe matrices that compression chose to approximate.

A search decides before planning, from calibration data, which matrix gets which replacement.
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
    """A replacement of a matrix ``[K, N]``, and the predicted error of the model's outputs.

    ``matrices`` are two factors ``[K, R]`` and ``[R, N]``, or one pruned matrix.
    """

    matrices: tuple[Floats, ...]
    error: float


def pruned_for(
    chosen: Mapping[str, CompressedMatrix], graph: TileGraph, region: Region
) -> CompressedMatrix | None:
    """Return the pruned matrix that was chosen for a product.

    None if there is none, or if the product's matrix must not be replaced.
    """
    found = chosen_for(chosen, region, 1)
    return found if found is None or replaceable_matrix(graph, region) is not None else None


def reason_not_compressed(value: str) -> Reason:
    """Return the reason of a rule for not changing a matrix: compression did not choose it."""
    return Reason(f"compression did not choose this for {value!r}", Code.NOT_APPLICABLE)


def chosen_for(
    chosen: Mapping[str, CompressedMatrix], region: Region, count: int
) -> CompressedMatrix | None:
    """Return the replacement chosen for a product if it consists of ``count`` matrices, else
    None."""
    params = region.params
    if not isinstance(params, GemmParams) or not isinstance(params.layout, PlainMatrix):
        return None
    found = chosen.get(region.operands[1])
    return found if found is not None and len(found.matrices) == count else None
