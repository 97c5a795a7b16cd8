"""Epilogues whose end depends on one number that was rounded to 8 bits: a table holds the results.

A graph of 8-bit integers rounds between any two operators, so that what a GELU is made of follows
a value of at most 256 levels.  Blocks compute the rest of such a chain once for each level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.families.merged_roundings import LEVELS, is_level
from tracea_graph.ops.chain import FULL, Chain, Ref, Step

__all__ = ["LevelTable", "split_at_levels"]

_LEAST_STEPS, _STEEP = 8, 5
"""Least cheap steps that a table replaces, and number of those that take as long as a function."""
_CHEAP = ("add", "sub", "mul", "div", "max", "min", "neg", "abs", "relu", "round", "saturate")


@dataclass(frozen=True)
class LevelTable:
    """A chain in two parts: ``head`` computes a level, ``low`` or above, ``tail`` the result."""

    head: Chain
    tail: Chain
    low: float

    def parameters(self) -> dict[str, Any]:
        """Return the template's parameters: statements over ``x0``, and the result in C."""
        made = chain_parameters.chain_template_parameters(self.tail)
        (result,) = made["results"]
        return {"steps": made["steps"], "result": result.expression, "low": f"{self.low:.1f}f",
                "levels": LEVELS}  # fmt: skip


def split_at_levels(chain: Chain) -> LevelTable | None:
    """Cut a chain behind the first rounding to 8 bits on which alone its result depends.

    Returns None unless the result has 8 bits and the part behind the cut is long.
    """
    if chain.result_types not in ((DType.U8,), (DType.I8,)):
        return None
    first = len(chain.operands)
    for i, step in enumerate(chain.steps):
        after = chain.steps[i + 1 :]
        if sum(1 if s.op in _CHEAP else _STEEP for s in after) < _LEAST_STEPS:
            return None
        if is_level(chain, i) and _least_of(after) == first + i < chain.results[0]:
            return LevelTable(_head(chain, i), _tail(chain, i), float(step.args[1]))
    return None


def _least_of(steps: tuple[Step, ...]) -> int:
    """Return the first value that steps read; literals are none."""
    return min((a for s in steps for a in s.args if isinstance(a, int)), default=-1)


def _head(chain: Chain, i: int) -> Chain:
    return replace(chain, steps=chain.steps[: i + 1], results=(len(chain.operands) + i,))


def _tail(chain: Chain, i: int) -> Chain:
    """Return the steps behind step ``i`` over one operand, its value."""
    cut = len(chain.operands) + i

    def moved(ref: Ref) -> Ref:
        return ref - cut if isinstance(ref, int) else ref

    steps = tuple(Step(s.op, tuple(map(moved, s.args))) for s in chain.steps[i + 1 :])
    results = tuple(int(moved(r)) for r in chain.results)
    return Chain((FULL,), steps, results, (DType.F32,), chain.stores)
