"""Bind elementwise expressions (chains) to values, and inline one into another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tracea_graph.ir import TensorSpec
from tracea_graph.ops.chain import COL, FULL, MAX_OPERANDS, ROW, SCALAR, Chain, Ref, Step
from tracea_graph.passes.pointwise.requantize import shorten_requantization

__all__ = ["IDENTITY", "BoundChain", "inline_producer", "matrix_broadcast_kind"]

BoundChain = tuple[Chain, tuple[str, ...]]
"""A chain and the values bound to its operands."""

IDENTITY = Chain((FULL,), (), (0,))


def matrix_broadcast_kind(spec: TensorSpec, result: TensorSpec) -> str:
    """Return the kind of an operand that broadcasts over ``[rows, columns]`` of a result.

    The innermost axis has the columns; all other axes together are the rows.
    """
    shape, full = spec.shape or (), result.shape or ()
    if shape == full:
        return FULL
    if all(d == 1 for d in shape):
        return SCALAR
    if shape[-1] == full[-1]:
        return ROW if all(d == 1 for d in shape[:-1]) else FULL
    return COL


def inline_producer(
    outer: BoundChain, results: str | Sequence[str], inner: BoundChain, kept: Sequence[int] = ()
) -> BoundChain | None:
    """Replace the operands of ``outer`` that are named in ``results`` by ``inner``'s results.

    The inner operands come first, so an accumulator stays operand 0.  ``kept`` lists the indices
    of inner results that remain results, after the outer ones.  Returns None if the chain would
    have too many operands.

        outer(v, b), v = inner(a)   ->   (inner; outer)(a, b)
    """
    (after, after_names), (before, before_names) = outer, inner
    made = (results,) if isinstance(results, str) else results
    names = list(before_names)
    kinds, dtypes = list(before.operands), list(before.operand_types)
    for i, name in enumerate(after_names):
        if name not in made and name not in names:
            names.append(name)
            kinds.append(after.operands[i])
            dtypes.append(after.operand_types[i])
    if len(names) > MAX_OPERANDS:
        return None
    count, old = len(names), len(before_names)

    def place(ref: int) -> int:
        return ref if ref < old else ref - old + count

    def move(ref: int) -> int:
        if ref >= len(after_names):
            return ref - len(after_names) + count + len(before.steps)
        name = after_names[ref]
        return place(before.results[made.index(name)]) if name in made else names.index(name)

    steps = (*_moved(before.steps, place), *_moved(after.steps, move))
    chosen = (*map(move, after.results), *(place(before.results[i]) for i in kept))
    stores = (*after.result_types, *(before.result_types[i] for i in kept))
    return shorten_requantization(
        Chain(tuple(kinds), steps, chosen, tuple(dtypes), stores)
    ), tuple(names)


def _moved(steps: Sequence[Step], place: Callable[[int], int]) -> Iterator[Step]:
    """Yield the steps with renumbered references; literals stay."""
    for step in steps:
        args: tuple[Ref, ...] = tuple(a if isinstance(a, float) else place(a) for a in step.args)
        yield Step(step.op, args)
