"""Detect ill-conditioned outputs: operands so large that rounding alone can change the result.

Softmax, Sigmoid and similar operators resolve differences of about 1.  float32 sums of magnitude
1e8 differ by more than that when added in another order.  A probability of 0 may then become 1,
and no rewrite can be shown to be right or wrong.  ONNX Runtime reproduces its own answers on such
inputs only because its order of additions is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tracea_graph.check.worker_process import Array
from tracea_graph.config import TOLERANCE
from tracea_graph.ir import DType
from tracea_graph.onnx_io.derived_weights import RESHAPING
from tracea_graph.ttg.region_graph import TileGraph

__all__ = ["sigmoid_results", "values_before_saturation", "why_unstable"]

_SATURATING = frozenset(
    ("Softmax", "Sigmoid", "HardSigmoid", "Tanh", "Erf", "Softsign", "Sign")
)  # fmt: skip
_SIGMOIDS = frozenset(("Sigmoid", "HardSigmoid"))
_MOVING = RESHAPING | {"Transpose", "Slice", "Concat"}
_STEPS = 16
"""Maximum distance, in operators, from an output to a saturating operator."""


def values_before_saturation(graph: TileGraph) -> tuple[str, ...]:
    """Return the float32 values that saturating operators read shortly before an output."""
    found: dict[str, None] = {}
    seen: set[str] = set()
    level = list(graph.outputs)
    for _ in range(_STEPS):
        regions = [r for r in map(graph.producer, level) if r is not None]
        level = []
        for region in regions:
            operand = region.operands[0] if region.operands else ""
            if region.op in _SATURATING and graph.spec(operand).dtype is DType.F32:
                found[operand] = None
            level += [v for v in region.operands if v and v not in seen]
            seen.update(level)
    return tuple(v for v in found if v not in graph.weights)


def sigmoid_results(graph: TileGraph) -> frozenset[str]:
    """Return the values that hold results of a sigmoid, also after data movement.

    The error of a sigmoid is a share of its range, 0 to 1. A tolerance relative to the largest
    result would be too strict if all results are tiny.
    """
    found = set[str]()
    for region in graph.regions():
        operands = [v for v in region.operands if v]
        moved = region.op in _MOVING and (
            found.issuperset(operands) if region.op == "Concat" else operands[0] in found
        )
        if region.op in _SIGMOIDS or moved:
            found.update(region.results)
    return frozenset(found)


def why_unstable(runs: Iterable[Mapping[str, Array]], watched: Iterable[str]) -> str:
    """Return why the answers ``runs`` cannot be a reference; empty if they can.

    They cannot if float32 rounding moves a ``watched`` value by enough to change an output.  This
    happens only where elements are large and differ from each other, not for a mask of −1e9 or a
    constant value.
    """
    names = tuple(watched)
    for run in runs:
        for name in (n for n in names if n in run):
            finite = run[name][np.isfinite(run[name])].astype(np.float64)
            top = float(finite.max(initial=-np.inf))
            moved = TOLERANCE.rounding * min(top, top - float(finite.min(initial=top)))
            if moved > TOLERANCE.overturn:
                return (
                    f"{name!r} reaches {top:.0e} before it saturates; rounding at that size moves "
                    f"it by {moved:.0e}, enough to change an output; give real inputs with --data"
                )
    return ""
