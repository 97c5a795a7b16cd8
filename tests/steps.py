"""One-step chains of every elementary operation, and operands that make them interesting."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from tracea_graph.ir import DType
from tracea_graph.ops.chain import ELEMENTARY, Chain, Step

__all__ = ["LITERALS", "one_step", "typed"]

Array = npt.NDArray[Any]

LITERALS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "clip": (-1.5, 2.5),
        "saturate": (-1.5, 2.5),
        "leaky_relu": (0.01,),
        "elu": (1.25,),
        "selu": (1.6732632, 1.050701),
        "celu": (1.5,),
        "hard_sigmoid": (0.2, 0.5),
        "thresholded_relu": (0.75,),
    }
)
"""What the operations that need literals are tested with."""


def one_step(op: str, *literals: float) -> Chain:
    """``op`` over full operands; the given literals, or those of the table, come last."""
    takes = ELEMENTARY[op].takes
    literals = literals or LITERALS.get(op, ())
    count = len(takes) - len(literals)
    dtypes = tuple(DType.BOOL if t == "b" else DType.F32 for t in takes[:count])
    return Chain(("full",) * count, (Step(op, (*range(count), *literals)),), (count,), dtypes)


def typed(chain: Chain, arrays: list[Array]) -> list[Array]:
    """The arrays in the chain's operand types; a truth value is a number above zero."""
    return [
        a > 0 if d is DType.BOOL else a for a, d in zip(arrays, chain.operand_types, strict=True)
    ]
