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
from tracea_graph.kernels.cpu.added_bytes import AddedBytes
from tracea_graph.kernels.cpu.division_by_constant_scale import reciprocal
from tracea_graph.ops.chain import ELEMENTARY, FULL, ROW, Chain, Ref, Step

__all__ = ["ByteTable", "looked_up_rows", "rounded_twice", "with_tables"]

_LEAST = 24
"""Smallest number of vector instructions that a table replaces."""
_ENTRIES = 256
_TWICE = ("mul", "round", "saturate", "mul", "add", "div", "round")
"""Operations of a chain whose sums are rounded before something is added, and after."""


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


def looked_up_rows(chain: Chain) -> tuple[int, tuple[int, ...]] | None:
    """Return z and a table of 256 bytes if a chain stores ``table[round(x · a + b) + z]``.

    x is the full operand 0; a and b are operands 1 and 2, one row each.
    """
    found = _byte_of_rows(chain)
    if found is None or not found.table:
        return None
    wanted = (Step("mul", (0, 1)), Step("add", (3, 2)), Step("round", (4,)))
    return (found.zero, found.table) if found.steps == wanted else None


def rounded_twice(chain: Chain) -> tuple[int, AddedBytes, tuple[int, ...]] | None:
    """Return z, numbers and a table, maybe of nothing, if a chain rounds x · a before it adds b.

    It stores ``round((q · s + b) / t) + z`` as a byte, or the byte of the table that this numbers;
    q is ``round(x · a)`` between two bounds.  The numbers are these bounds, s, and the two parts
    of the reciprocal of t.
    """
    found = _byte_of_rows(chain)
    if found is None or tuple(step.op for step in found.steps) != _TWICE:
        return None
    (_, low, high), (_, times), (_, by) = (found.steps[i].args for i in (2, 3, 5))
    wanted = (
        Step("mul", (0, 1)), Step("round", (3,)), Step("saturate", (4, low, high)),
        Step("mul", (5, times)), Step("add", (2, 6)), Step("div", (7, by)), Step("round", (8,)),
    )  # fmt: skip
    numbers = [low, high, times, by]
    if found.steps != wanted or not all(isinstance(n, float) for n in numbers):
        return None
    parts = reciprocal(float(by), -found.zero, _ENTRIES - 1 - found.zero)
    if parts is None:
        return None
    return found.zero, AddedBytes(float(low), float(high), float(times), *parts), found.table


@dataclass(frozen=True)
class _ByteOfRows:
    """Steps up to a rounded number, to which ``zero`` is added; the byte numbers one of ``table``
    if this holds any."""

    steps: tuple[Step, ...]
    zero: int
    table: tuple[int, ...]


def _byte_of_rows(chain: Chain) -> _ByteOfRows | None:
    """Return how a chain of one full operand and two rows makes bytes; None for other chains."""
    if chain.operands != (FULL, ROW, ROW) or chain.dtypes or len(chain.results) != 1:
        return None
    short, tables = with_tables(chain)
    steps, zero = list(short.steps), 0.0
    if tables:
        zero -= float(steps.pop().args[1])
    elif chain.result_types != (DType.U8,):
        return None
    if not steps or steps[-1].op != "saturate":
        return None
    low, high = (float(bound) for bound in steps.pop().args[1:])
    if high - low != _ENTRIES - 1 or (not tables and low):
        return None
    if steps and steps[-1].op == "add" and isinstance(steps[-1].args[1], float):
        zero += float(steps.pop().args[1])
    # every step reads the one before, so that the last one is what is stored
    chained = all(len(chain.operands) + i in s.args for i, s in enumerate(short.steps[1:]))
    rounded = bool(steps) and steps[-1].op == "round"
    if not chained or not rounded or zero != int(zero) or not 0 <= zero < _ENTRIES:
        return None
    return _ByteOfRows(tuple(steps), int(zero), tables[0].values if tables else ())


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
    moved = chain.step_of(step.args[0])
    if moved is not None and moved.op == "add":
        zero, moved = moved.args[1], chain.step_of(moved.args[0])
        if not isinstance(zero, float) or zero != np.rint(zero):
            return False
    whole = low == np.rint(low) and high == np.rint(high) and abs(low) < 1 << 20
    return bool(whole and 0 <= high - low < _ENTRIES and moved is not None and moved.op == "round")


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
        steps.append(step.renumbered(place.__getitem__))
        place[value] = first + len(steps) - 1
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
