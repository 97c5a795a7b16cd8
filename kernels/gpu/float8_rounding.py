"""Round the factors of matmuls to 8-bit floats (e4m3), with scales, under ``--precision fp8``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Extent, evaluate, product
from tracea_graph.kernels.gpu.lowering.float8 import MOST_BESIDE
from tracea_graph.ops.chain import LARGEST_FLOAT8
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.weight_layouts import KN, NK
from tracea_graph.passes import UNMEASURED
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.reason_codes import not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite

__all__ = ["FLOAT8_FACTORS", "Float8Factors", "loss_of_sums"]

FLOAT8_FACTORS = "float8-factors"
_LEAST_ROWS, _LEAST_SIDE, _RUN = 384, 64, 16
"""Minimum rows, and minimum columns and depth, for which reading bytes saves time; the depth is a
multiple of ``_RUN``, which copies by tensor maps need.
"""
_HEADROOM = 2.0
"""Factor by which inputs may exceed the largest magnitude that was measured."""
_ERROR = 2.0**-4 / 12
"""Estimated error that one matmul adds to the outputs, as a fraction of max|y|."""
_LOSS = 2.0**-8
"""Error of sums, as a share of the results, from which they are promoted: a tenth of what rounding
the factors costs.
"""
_LOST = 2.0**-16
"""Share of a sum of numbers of one sign that tensor cores lose with each product (H100)."""
_LARGEST, _SMALLEST = 1e30, 1e-30
"""Bounds of a largest magnitude whose scale is an ordinary number."""


def _matmul(op: Any, x: Any, w: Any) -> Any:
    return op.FusedGemm(x, w, ...)


def loss_of_sums(matrix: npt.NDArray[Any], by_columns: bool) -> float:
    """Return what sums of products of 8-bit floats lose in 14 bits, as a share of the results.

    The left operand has one sign, as activations may; ``matrix`` is ``[K, N]`` if ``by_columns``,
    else ``[N, K]``.  Columns of both signs lose little: what is cut off is of both signs too.
    """
    axis = 0 if by_columns else 1
    total, sizes = np.abs(matrix.sum(axis)), np.abs(matrix).sum(axis)
    alike = total / np.where(sizes > 0, sizes, 1)
    spread = float(np.sqrt((alike**2).mean()))
    return spread * float(matrix.shape[axis]) * _LOST


@dataclass(frozen=True)
class Float8Factors(PatternPass):
    """Multiply a computed matrix by a constant one in 8-bit floats, if its magnitude is known.

    ``dtype`` is the type of values between matmuls, ``ranges`` the largest measured magnitudes,
    ``sizes`` likely values of symbols.
    """

    dtype: str
    ranges: Mapping[str, float] = field(default_factory=lambda: UNMEASURED, compare=False)
    sizes: Mapping[str, int] = field(default_factory=dict, compare=False)
    name: str = FLOAT8_FACTORS
    patterns = (_matmul,)

    def check(self, m: Match) -> str | None:
        p, (x, weight, *_) = m.root.params, m.root.operands
        if p.integers or p.layout not in (KN, NK):
            return unsuited_reason("its matrix is not stored as plain numbers")
        if m.graph.weight(weight) is None:
            return not_constant_reason(weight)
        if min(p.k, p.n) < _LEAST_SIDE or p.k % _RUN:
            return unsuited_reason(
                f"its matrix has a side below {_LEAST_SIDE}, or its depth is no multiple of {_RUN}"
            )
        if p.epilogue_inputs > MOST_BESIDE:
            return unsuited_reason("its epilogue has no room for scales")
        if self._rows(m.graph.spec(x).shape or ()) < _LEAST_ROWS:
            return unsuited_reason(f"it has fewer than {_LEAST_ROWS} rows")
        if not _SMALLEST < self.ranges.get(x, 0.0) < _LARGEST:
            return unsuited_reason("the magnitude of its left operand is not known")
        return None

    def _rows(self, shape: Sequence[Extent]) -> int:
        """Return the likely number of rows of x; many if it is unknown."""
        try:
            return evaluate(product(tuple(shape[:-1])), self.sizes)
        except KeyError:
            return _LEAST_ROWS

    def rewrite(self, m: Match) -> Rewrite:
        region = m.root
        weight = m.graph.weights[region.operands[1]]
        promoted = loss_of_sums(weight.array(), region.params.layout == KN) > _LOSS
        largest = _HEADROOM * self.ranges[region.operands[0]]
        factor = 2.0 ** math.floor(math.log2(LARGEST_FLOAT8 / largest))
        lower = RegionParams.of(
            region.params, len(region.operands), len(region.results), self.dtype, factor,
            promoted,
        )  # fmt: skip
        new = fused_region(self.name, lower, region.operands, region.results, [region])
        return Rewrite((new,), error=_ERROR, step=True)
