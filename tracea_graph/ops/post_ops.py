"""Post-ops of a convolution: the part of its epilogue that is applied in registers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tracea_graph.ops.chain import FULL, Chain, Step

__all__ = ["PostOps", "post_ops_of"]


@dataclass(frozen=True)
class PostOps:
    """Operations on a sum, in this order: add an operand, clamp to a range, apply a chain.

    ``add`` is the index of an epilogue input, None if nothing is added.
    """

    add: int | None
    low: float
    high: float
    chain: Chain | None


def post_ops_of(epilogue: Chain | None) -> PostOps:
    """Split an epilogue into an operand to add, a clamp, and a chain of what remains.

    Kernels add and clamp in registers.  Only a leading addition of a ``full`` operand is split
    off.  For example, ``relu(acc + r)`` leaves no chain.
    """
    add, low, high = None, -math.inf, math.inf
    if epilogue is None:
        return PostOps(add, low, high, None)
    chain = epilogue
    if (taken := _addend(chain)) is not None:
        add, chain = taken
    if chain.steps and (bounds := _clamp(chain)) is not None:
        low, high = bounds
        chain = _without_first(chain)
    return PostOps(add, low, high, None if _is_identity(chain) else chain)


def _is_identity(chain: Chain) -> bool:
    return chain.results == (0,) and len(chain.operands) == 1 and not chain.stores


def _addend(chain: Chain) -> tuple[int, Chain] | None:
    """Full operand the first step adds to the accumulator, and the chain without that step."""
    first = chain.steps[0] if chain.steps else None
    if first is None or first.op != "add" or 0 not in first.args:
        return None
    other = first.args[1] if first.args[0] == 0 else first.args[0]
    if not isinstance(other, int) or other == 0 or other >= len(chain.operands):
        return None
    if chain.operands[other] != FULL or _readers(chain, other) > 1 or _readers(chain, 0) > 1:
        return None
    rest = _without_first(chain)
    # later operands move down by one
    moved = tuple(Step(s.op, tuple(_down(a, other) for a in s.args)) for s in rest.steps)
    kinds = (*rest.operands[:other], *rest.operands[other + 1 :])
    dtypes = (*rest.dtypes[:other], *rest.dtypes[other + 1 :])
    results = tuple(r - (r > other) for r in rest.results)
    without = replace(rest, operands=kinds, steps=moved, results=results, dtypes=dtypes)
    return other - 1, without


def _down(ref: int | float, gone: int) -> int | float:
    return ref - 1 if isinstance(ref, int) and ref > gone else ref


def _clamp(chain: Chain) -> tuple[float, float] | None:
    """Bounds of a first step that clamps the accumulator and is its only reader."""
    step = chain.steps[0]
    if step.args[0] != 0 or _readers(chain, 0) > 1:
        return None
    if step.op == "relu":
        return 0.0, math.inf
    low, high = (*step.args[1:], None, None)[:2]
    if step.op == "clip" and isinstance(low, float) and isinstance(high, float) and low <= high:
        return low, high
    return None


def _readers(chain: Chain, value: int) -> int:
    reads = [a for s in chain.steps for a in s.args if isinstance(a, int)]
    return reads.count(value) + chain.results.count(value)


def _without_first(chain: Chain) -> Chain:
    """Chain in which the first step's result is the accumulator."""
    count = len(chain.operands)

    def move(ref: int | float) -> int | float:
        if isinstance(ref, float) or ref < count:
            return ref
        return 0 if ref == count else ref - 1

    steps = tuple(Step(s.op, tuple(map(move, s.args))) for s in chain.steps[1:])
    results = tuple(int(move(r)) for r in chain.results)
    return replace(chain, steps=steps, results=results)
