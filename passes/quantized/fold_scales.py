"""Fold the scale of a quantized result into the factors that rescale sums of integers.

quantize(sums · r + b, scale)   ->   round(sums · (r / scale) + b / scale) …

This saves one rounding, so results are not bit-identical: a quotient within float32's error of a
half may round to the other integer.  This may happen in ONNX Runtime too, which folds all scales
into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tracea_graph.ir import Array, Weight
from tracea_graph.ops.chain import ROW, SCALAR, Chain
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.passes.pointwise.requantize import readers_of, without_step
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["FoldScales"]

_SMALLEST, _LARGEST = 1e-30, 1e30
_ODD = unsuited_reason("a scale or a bias is not constant, or out of range")


@dataclass(frozen=True)
class _Rescaling:
    """Parts of a chain: the factor of the sums, the summand if there is one, and the step that
    divides by the result's scale."""

    factor: int
    summand: int
    divides: int
    scale: float
    quotient_of: int


class FoldScales:
    """Divide constant scales and biases by the scale with which the result is quantized.

    The scale of the result must be constant too.
    """

    name = "fold-scales"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, ConvIntegerParams | GemmParams) or params.epilogue is None:
            return
        if params.integers is None:
            return
        chain = params.epilogue
        found = _rescaling(chain)
        if found is None:
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(
                    "its epilogue is not one that only rescales sums and quantizes them"
                ),
            )
            return
        operands, weights = list(region.operands), dict[str, Weight]()
        first = params.first + (params.bias if isinstance(params, GemmParams) else 0)
        for place in filter(None, (found.factor, found.summand)):
            old = graph.weight(operands[first + place - 1])
            folded = None if old is None else _divided(old, found.scale, place == found.factor)
            if folded is None:
                yield Miss(self.name, region.id, _ODD)
                return
            weights[folded.name] = folded
            operands[first + place - 1] = folded.name
        shorter = without_step(chain, found.divides, found.quotient_of)
        made = replace(region.params, epilogue=shorter)
        new = replace(region, params=made, operands=tuple(operands))
        yield Proposal(self.name, (region,), (new,), weights=weights, step=True)


def _rescaling(chain: Chain) -> _Rescaling | None:
    """Return how a chain rescales its first operand and divides it by a literal; None for other
    chains."""
    step = _only_reader(chain, 0, "mul")
    factor = None if step is None else _other_operand(chain, step, 0)
    if step is None or factor is None:
        return None
    value, summand = len(chain.operands) + step, 0
    if (step := _only_reader(chain, value, "add")) is not None:
        other = _other_operand(chain, step, value)
        if other is None:
            return None
        value, summand = len(chain.operands) + step, other
    if (step := _only_reader(chain, value, "relu")) is not None:
        value = len(chain.operands) + step
    step = _only_reader(chain, value, "div")
    scale = None if step is None else chain.steps[step].args[1]
    if step is None or not isinstance(scale, float) or scale <= 0:
        return None
    if any(r is None or chain.steps[r].op != "round" for r in readers_of(chain, step)):
        return None
    return _Rescaling(factor, summand, step, scale, value)


def _other_operand(chain: Chain, step: int, value: int) -> int | None:
    """Return the chain operand that a step combines with a value; None if that operand is neither
    a row nor a scalar."""
    others = [a for a in chain.steps[step].args if a != value or isinstance(a, float)]
    if len(others) != 1 or not isinstance(others[0], int) or others[0] >= len(chain.operands):
        return None
    return others[0] if chain.operands[others[0]] in (ROW, SCALAR) else None


def _only_reader(chain: Chain, value: int, op: str) -> int | None:
    """Return the only step that reads a value if its op is ``op``, else None.

    The value must be the dividend of a division.
    """
    readers = list(readers_of(chain, value - len(chain.operands)))
    step = readers[0] if len(readers) == 1 else None
    if step is None or chain.steps[step].op != op:
        return None
    return None if op == "div" and chain.steps[step].args[0] != value else step


def _divided(weight: Weight, scale: float, factor: bool) -> Weight | None:
    """Return a constant divided by a scale; None if a quotient is too large or too small."""
    made = _quotient(weight, scale)
    size = np.abs(made())
    if not np.all(size < _LARGEST) or (factor and not np.all(size > _SMALLEST)):
        return None
    return Weight(f"{weight.name}_over_{scale!r}", weight.dtype, weight.shape, made)


def _quotient(weight: Weight, scale: float) -> Callable[[], Array]:
    def load() -> Array:
        with np.errstate(all="ignore"):
            return (np.asarray(weight.load(), np.float64) / scale).astype(np.float32)

    return load
