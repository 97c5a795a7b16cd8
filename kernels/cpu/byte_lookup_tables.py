"""Replace steps of a chain that depend on one quantized number by a table look-up.

A number that is saturated to at most 256 integers leads to at most 256 values of a result that
depends on it alone.  If the result is stored in bytes and its steps cost more than a look-up, a
table replaces them: an activation between two quantizations then costs as much as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.ops.chain import ELEMENTARY, Chain, Ref, Step

__all__ = ["ByteTable", "with_tables"]

_LEAST = 24
"""Smallest number of vector instructions that a table replaces."""
_ENTRIES = 256


@dataclass(frozen=True)
class ByteTable:
    """Values of an 8-bit result, indexed by what the shortened chain computes for this result."""

    values: tuple[int, ...]


def with_tables(chain: Chain) -> tuple[Chain, Mapping[int, ByteTable]]:
    """Replace steps of a chain by tables; return the shortened chain and the tables.

    Tables are keyed by the number of the result that is looked up in them.
    """
    tables: dict[int, ByteTable] = {}
    steps, results = list(chain.steps), list(chain.results)
    for number, dtype in enumerate(chain.result_types):
        source = _source(chain, chain.results[number]) if dtype in (DType.U8, DType.I8) else None
        if source is None:
            continue
        low = float(chain.steps[source - len(chain.operands)].args[1])
        tables[number] = ByteTable(_values(chain, source, number, low))
        steps.append(Step("sub", (source, low)))
        results[number] = len(chain.operands) + len(steps) - 1
    if not tables:
        return chain, tables
    return _trimmed(replace(chain, steps=tuple(steps), results=tuple(results))), tables


def _source(chain: Chain, result: Ref) -> int | None:
    """Return the earliest saturated integer that alone determines a result; None if there is
    none, or a table would replace too little."""
    count = len(chain.operands)
    for source in range(count, count + len(chain.steps)):
        behind = _behind(chain, source, result) if _is_integer(chain, source) else None
        if behind is not None:
            cost = sum(ELEMENTARY[chain.steps[at - count].op].flops for at in behind)
            return source if cost >= _LEAST else None
    return None


def _behind(chain: Chain, source: int, result: Ref) -> set[int] | None:
    """Return the steps between a value and a result; None if it depends on other values."""
    count, seen, left = len(chain.operands), set[int](), [result]
    while left:
        at = left.pop()
        if isinstance(at, float) or at == source or at in seen:
            continue
        if at < count:
            return None
        seen.add(at)
        left += chain.steps[at - count].args
    return seen


def _is_integer(chain: Chain, value: int) -> bool:
    """Whether a value is rounded, maybe moved by a literal, and held to at most 256 integers."""
    step = chain.steps[value - len(chain.operands)]
    if step.op != "saturate":
        return False
    low, high = (float(bound) for bound in step.args[1:])
    moved = _step(chain, step.args[0])
    if moved is not None and moved.op == "add":
        zero, moved = moved.args[1], _step(chain, moved.args[0])
        if not isinstance(zero, float) or zero != np.rint(zero):
            return False
    whole = low == np.rint(low) and high == np.rint(high) and abs(low) < 1 << 20
    return bool(whole and 0 <= high - low < _ENTRIES and moved is not None and moved.op == "round")


def _step(chain: Chain, ref: Ref) -> Step | None:
    at = ref - len(chain.operands) if isinstance(ref, int) else -1
    return chain.steps[at] if at >= 0 else None


def _values(chain: Chain, source: int, number: int, low: float) -> tuple[int, ...]:
    """Return a result for each of 256 integers from ``low`` on, computed in float32."""
    count = len(chain.operands)
    behind = _behind(chain, source, chain.results[number]) or set()
    place = {source: 0}
    steps = _renumbered(chain, behind, place, 1)
    tail = Chain(
        ("full",), steps, (place[chain.results[number]],), stores=(chain.result_types[number],)
    )
    integers = (np.arange(_ENTRIES) + low).astype(np.float32)
    with np.errstate(all="ignore"):
        (found,) = tail.reference([integers])
    high = int(float(chain.steps[source - count].args[2]) - low)
    return tuple(int(value) for value in np.asarray(found)[np.minimum(np.arange(_ENTRIES), high)])


def _trimmed(chain: Chain) -> Chain:
    """Return the chain without steps that no result needs."""
    count = len(chain.operands)
    needed = _needed(chain, chain.results)
    place = {at: at for at in range(count)}
    steps = _renumbered(chain, needed, place, count)
    return replace(chain, steps=steps, results=tuple(place[r] for r in chain.results))


def _renumbered(
    chain: Chain, values: Iterable[int], place: dict[int, int], first: int
) -> tuple[Step, ...]:
    """Return the steps of ``values``; ``place`` maps old numbers to new, from ``first`` on."""
    steps = list[Step]()
    for value in sorted(values):
        step = chain.steps[value - len(chain.operands)]
        args = tuple(place[a] if isinstance(a, int) else a for a in step.args)
        place[value] = first + len(steps)
        steps.append(Step(step.op, args))
    return tuple(steps)


def _needed(chain: Chain, results: Iterable[int]) -> set[int]:
    count, seen, left = len(chain.operands), set[int](), list(results)
    while left:
        at = left.pop()
        if at < count or at in seen:
            continue
        seen.add(at)
        left += [a for a in chain.steps[at - count].args if isinstance(a, int)]
    return seen
