"""Find the divisions of an epilogue of integers that never divide an infinity.

A division by a constant is a multiplication by its inverse that is corrected once; an infinity
would make the correction NaN, which each division tests.  Sums of integers, bytes and bounded rows
stay below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracea_graph.ir import DType
from tracea_graph.ops.chain import ROW, Chain, Ref, Step

__all__ = ["LARGEST_ROW", "finite_divisions"]

LARGEST_ROW = 2.0**64
"""Bound of rows of float32: a kernel with such divisions replaces larger numbers by it."""
_LARGEST_SUM, _LARGEST = 2.0**31, 2.0**126
_INTEGERS = {DType.U8: 2.0**8, DType.I8: 2.0**7, DType.I32: _LARGEST_SUM}
_SAME = ("neg", "abs", "relu")


def finite_divisions(chain: Chain) -> frozenset[int]:
    """Return the steps that divide finite numbers by a constant, with finite quotients.

    The chain's first operand is a sum in int32.  There are none if a result has no small bounds,
    as its rows must remain what they are then.
    """
    first, bounds = len(chain.operands), _bounds(chain)
    if any(bounds[r] > _LARGEST_SUM for r in chain.results):
        return frozenset()
    return frozenset(
        i for i, step in enumerate(chain.steps)
        if step.op == "div" and isinstance(step.args[1], float)
        and max(_of(bounds, step.args[0]), bounds[first + i]) < _LARGEST
    )  # fmt: skip


def _bounds(chain: Chain) -> list[float]:
    """Return the largest magnitude of each operand and step; infinity where it is unknown."""
    pairs = [*zip(chain.operands, chain.operand_types, strict=True)][1:]
    bounds = [_LARGEST_SUM]
    bounds += [LARGEST_ROW if (kind, dtype) == (ROW, DType.F32) else _INTEGERS.get(dtype, math.inf)
               for kind, dtype in pairs]  # fmt: skip
    for step in chain.steps:
        bounds.append(_bound(step, bounds))
    return bounds


def _bound(step: Step, bounds: Sequence[float]) -> float:
    values = [_of(bounds, arg) for arg in step.args]
    if step.op == "saturate" and not any(isinstance(arg, int) for arg in step.args[1:]):
        return max(values[1:])
    if step.op in ("add", "sub"):
        return sum(values)
    if step.op in ("max", "min"):
        return max(values)
    if step.op == "mul" and math.inf not in values:
        return math.prod(values)
    if step.op == "div" and isinstance(step.args[1], float) and values[1]:
        return values[0] / values[1]
    if step.op == "round":
        return values[0] + 1
    return values[0] if step.op in _SAME else math.inf


def _of(bounds: Sequence[float], ref: Ref) -> float:
    return bounds[ref] if isinstance(ref, int) else abs(ref)
