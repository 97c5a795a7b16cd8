"""Chains that round a number twice: the second rounding is found from the first one's integers.

A graph of 8-bit integers divides scores by a constant between two roundings whose steps differ by
that constant.  The second rounding then changes nothing, which is proved for every integer.  What
it adds to scores between roundings of one step, such as a mask, can be rounded before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracea_graph.ops.chain import FULL, Chain, Step

__all__ = ["LEVELS", "is_level", "merged_roundings"]

LEVELS = 256
"""The most integers of 8 bits."""
_LINEAR = ("mul", "div")


def merged_roundings(chain: Chain) -> Chain:
    """Return a chain without the roundings that follow from an earlier one of the same value.

    ``round, saturate, mul a, div b, …, round, saturate`` becomes ``round, saturate``, with another
    ``saturate`` if its bounds are narrower, where float32 gives the same number for every integer
    of the first rounding.  ``mul a, add x, div a, round, saturate`` behind an integer becomes the
    sum with ``round(x / a)``, which is the same except where x / a lies half way between integers.
    """
    first = len(chain.operands)
    for i in range(len(chain.steps)):
        if not is_level(chain, i):
            continue
        last = _next_level(chain, i)
        if last is not None and (new := _replacement(chain, i, last)) is not None:
            return merged_roundings(_without(chain, first + i, first + last, new))
        if (summed := _rounded_before(chain, i)) is not None:
            return merged_roundings(summed)
    return chain


def is_level(chain: Chain, i: int) -> bool:
    """Whether a step bounds an integer by at most 256 levels."""
    step, before = chain.steps[i], i - 1
    if step.op != "saturate" or step.args[0] != len(chain.operands) + before or before < 0:
        return False
    low, high = step.args[1:]
    if chain.steps[before].op != "round" or not (
        isinstance(low, float) and isinstance(high, float)
    ):
        return False
    return low.is_integer() and high.is_integer() and 0 <= high - low < LEVELS


def _next_level(chain: Chain, i: int) -> int | None:
    """Return the next step like step ``i``, if all between use the step in front of them alone."""
    first = len(chain.operands)
    for at in range(i + 1, len(chain.steps)):
        step = chain.steps[at]
        value, *rest = step.args
        if value != first + at - 1 or not all(isinstance(n, float) for n in rest):
            return None
        if step.op == "saturate":
            return at if is_level(chain, at) and _read_once(chain, i, at) else None
        if step.op not in (*_LINEAR, "round"):
            return None
    return None


def _read_once(chain: Chain, i: int, last: int) -> bool:
    """Whether the values from step ``i`` up to ``last`` are read by the next step only."""
    own = range(len(chain.operands) + i, len(chain.operands) + last)
    reads = [a for s in chain.steps for a in s.args if isinstance(a, int)] + [*chain.results]
    return all(reads.count(value) == 1 for value in own)


def _replacement(chain: Chain, i: int, last: int) -> tuple[Step, ...] | None:
    """Return the steps behind integer 0 that replace those after step ``i``; None if there are
    none.
    """
    low, high = (float(n) for n in chain.steps[i].args[1:])
    levels = np.arange(low, high + 1, dtype=np.float32)
    first = len(chain.operands) + i
    steps = tuple(
        Step(s.op, (int(s.args[0]) - first, *s.args[1:])) for s in chain.steps[i + 1 : last + 1]
    )
    with np.errstate(all="ignore"):  # bounds follow infinities
        (made,) = Chain((FULL,), steps, (len(steps),)).reference([levels])
    bounds = [float(n) for n in chain.steps[last].args[1:]]
    if not np.array_equal(made, np.clip(levels, bounds[0], bounds[1])):
        return None
    return () if np.array_equal(made, levels) else (Step("saturate", (0, *bounds)),)


def _rounded_before(chain: Chain, i: int) -> Chain | None:
    """Return a chain that rounds what it adds to the integer of step ``i``; None if it cannot."""
    level, found = len(chain.operands) + i, chain.steps[i + 1 : i + 6]
    if [s.op for s in found] != ["mul", "add", "div", "round", "saturate"]:
        return None
    step, added = found[0].args[1], [a for a in found[1].args if a != level + 1]
    (other,) = added if len(added) == 1 else (None,)
    if not isinstance(other, int) or other == level or not isinstance(step, float):
        return None
    wanted = ((level, step), found[1].args, (level + 2, step), (level + 3,))
    if tuple(s.args for s in found[:4]) != wanted or not is_level(chain, i + 5):
        return None
    low, high = (float(n) for n in chain.steps[i].args[1:])
    levels = np.arange(low, high + 1, dtype=np.float32)
    steps = Step("mul", (0, step)), Step("div", (1, step)), Step("round", (2,))
    back = Chain((FULL,), steps, (3,))
    if not np.array_equal(back.reference([levels])[0], levels) or not _read_once(chain, i, i + 5):
        return None
    div, bounds = Step("div", (other, step)), found[4].args[1:]
    new = (div, Step("round", (level + 1,)), Step("add", (level, level + 2)),
           Step("saturate", (level + 3, *bounds)))  # fmt: skip

    def moved(ref: int) -> int:
        return ref - 1 if ref >= level + 5 else ref

    after = tuple(s.renumbered(moved) for s in chain.steps[i + 6 :])
    results = tuple(map(moved, chain.results))
    return replace(chain, steps=(*chain.steps[: i + 1], *new, *after), results=results)


def _without(chain: Chain, value: int, last: int, new: tuple[Step, ...]) -> Chain:
    """Return a chain in which ``new`` stands for the steps behind ``value`` up to ``last``."""
    first, gone = len(chain.operands), last - value - len(new)

    def moved(ref: int) -> int:
        return ref - gone if ref >= last else ref

    put = tuple(Step(s.op, (value, *s.args[1:])) for s in new)
    kept = chain.steps[: value - first + 1]
    after = tuple(s.renumbered(moved) for s in chain.steps[last - first + 1 :])
    results = tuple(map(moved, chain.results))
    return replace(chain, steps=(*kept, *put, *after), results=results)
