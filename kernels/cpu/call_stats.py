"""Operation counts of each call of a plan at given sizes: products, bytes, results.

    bytes of a view = element size × product of its dims other than those of stride 0

A table that rows are picked from counts at most as many bytes as the result has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, evaluate
from tracea_graph.kernels.cpu.plan_encoding import DecodedCall, DecodedPlan, decode
from tracea_graph.kernels.program import Buffer, CallStats, View, ViewAccess
from tracea_graph.kernels.schema import Operand, Sizes

__all__ = ["call_stats"]


def call_stats(plan: Sequence[int], symbols: Sequence[int]) -> tuple[CallStats, ...]:
    """Return the operation counts of every call; ``symbols`` holds the symbols' values.

    Raises GraphError for a plan of another version or a malformed one, and for missing values.
    """
    made = decode(plan)
    if len(symbols) < len(made.symbols):
        raise GraphError(
            f"The plan has {len(made.symbols)} symbols, but there are {len(symbols)} values."
        )
    bound = {f"s{i}": value for i, value in enumerate(symbols[: len(made.symbols)])}
    types = _types(made)
    try:
        return tuple(_in_all(made, i, call, types, bound) for i, call in enumerate(made.calls))
    except (ArithmeticError, LookupError, RecursionError, ValueError) as error:
        raise GraphError(f"the plan cannot be read: {error!r}") from error


def _types(plan: DecodedPlan) -> dict[Buffer, DType]:
    held = {Buffer("temp", i): temp.dtype for i, temp in enumerate(plan.temps)}
    for kind, specs in (("input", plan.inputs), ("output", plan.outputs)):
        held |= {Buffer(kind, i): s.dtype for i, s in enumerate(specs) if s.dtype is not None}
    return held


def _in_all(
    plan: DecodedPlan,
    index: int,
    call: DecodedCall,
    types: Mapping[Buffer, DType],
    bound: Mapping[str, int],
) -> CallStats:
    """The counts of a call, summed over all iterations if it is in a loop."""
    for loop in plan.loops:
        if loop.first <= index <= loop.last:
            iterations = loop.iterations(evaluate(loop.extent, bound))
            if iterations:
                return _together([_work(call, types, {**bound, **one}) for one in iterations])
            bound = {**bound, loop.start: 0, loop.end: 0}
    return _work(call, types, bound)


def _together(iterations: Sequence[CallStats]) -> CallStats:
    """Add up the iterations of a call; a view equal in all of them counts once."""
    first = iterations[0]
    views = [
        seen[0] if len({*seen}) == 1 and seen[0].input is not None
        else replace(seen[0], bytes=sum(v.bytes for v in seen))
        for seen in zip(*(t.views for t in iterations), strict=True)
    ]  # fmt: skip
    return replace(
        first,
        products=sum(t.products for t in iterations),
        results=sum(t.results for t in iterations),
        views=tuple(views),
        size=f"{len(iterations)} × {first.size}",
    )


def _work(
    one: DecodedCall, types: Mapping[Buffer, DType], symbols: Mapping[str, int]
) -> CallStats:
    schema, call = one.schema, one.call
    dims: dict[str, list[tuple[int, ...]]] = {operand.name: [] for operand in schema.operands}
    accesses: list[tuple[Operand, ViewAccess]] = []
    for operand in schema.operands:
        for view in call.views[one.slices[operand.name]]:
            if view is None:
                continue
            seen = _access(view, types[view.buffer], symbols)
            dims[operand.name].append(seen.dims)
            accesses.append((operand, seen))
    _, result = accesses[-1]
    views = [_share(operand, view, result) for operand, view in accesses]
    size = "×".join(str(d) for d in result.dims if d > 1)
    products = 0.0
    if schema.problem is not None:
        count, *problem = schema.problem(Sizes(call, dims))
        products = 2.0 * count * prod(problem)
        size = f"{count}·" * (count > 1) + "×".join(map(str, problem))
    return CallStats(
        schema.name, products, float(prod(result.dims)), tuple(views), size,
        schema.product_type or schema.dtype,
    )  # fmt: skip


def _access(view: View, dtype: DType, symbols: Mapping[str, int]) -> ViewAccess:
    dims = tuple(evaluate(d, symbols) for d in view.dims)
    strides = [evaluate(s, symbols) for s in view.strides]
    once = prod(d for d, stride in zip(dims, strides, strict=True) if stride or not d)
    where = view.buffer.index if view.buffer.kind == "input" else None
    return ViewAccess(where, dims, once * dtype.size, evaluate(view.offset, symbols))


def _share(operand: Operand, view: ViewAccess, result: ViewAccess) -> ViewAccess:
    """The view, with the number of bytes that the call really touches."""
    if operand.touched == "none":
        return replace(view, bytes=0.0)
    if operand.touched == "picks":
        return replace(view, bytes=min(view.bytes, result.bytes))
    return view
