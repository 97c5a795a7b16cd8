"""``FusedElementwise``: one chain over broadcast operands of any rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Expr, Extent, TensorSpec
from tracea_graph.ops.body import Body, BodyBuilder
from tracea_graph.ops.chain import Chain

__all__ = ["MAX_RANK", "ElementwiseParams", "Shape", "broadcast", "is_clipped"]

MAX_RANK = 6
"""Axes a kernel loops over."""

Floats = npt.NDArray[np.floating[Any]]
Shape = tuple[Extent, ...]


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape by NumPy's rules, or None if symbols leave it open."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    result: list[Extent] = []
    for dims in zip(*padded, strict=True):
        wide = {d for d in dims if d != 1}
        whole = {d for d in wide if not any(is_clipped(d, other) for other in wide)}
        if len(whole) > 1:
            return None
        result.append(whole.pop() if whole else 1)
    return tuple(result)


def is_clipped(dim: Extent, other: Extent) -> bool:
    """True for ``dim`` = min(``other``, c), c ≥ 2: broadcast against ``other``, the two are equal.

    Were they not, ``dim`` would be c, smaller than ``other`` and not one: the original would fail.
    """
    if not isinstance(dim, Expr) or dim.op != "min" or other not in dim.args:
        return False
    return all(a == other or (isinstance(a, int) and a >= 2) for a in dim.args)


@dataclass(frozen=True)
class ElementwiseParams:
    """Operands and results are the chain's; kinds describe the innermost two loops."""

    chain: Chain

    @property
    def operands(self) -> int:
        return len(self.chain.operands)

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """The broadcast shape, once per result.  Raises ValueError if symbols leave it open."""
        shapes = [s.shape for s in specs if s.shape is not None]
        shape = broadcast(shapes) if len(shapes) == len(specs) else None
        if shape is None:
            raise ValueError("operand shapes do not provably broadcast")
        return tuple(TensorSpec(dtype, shape) for dtype in self.chain.result_types)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        return self.chain.reference(arrays)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        return b.done(*self.chain.spell(b, b.inputs))
