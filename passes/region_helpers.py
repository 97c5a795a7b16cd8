"""Build fused regions, and answer questions that several rules ask of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tracea_graph.ir import DType, Extent, TensorSpec, Weight
from tracea_graph.ops import OPS, OpParams
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "COMPARED",
    "attribute",
    "broadcasts_over_matrix",
    "first_value_read_outside",
    "fused_region",
    "gemm_producer",
    "input_with",
    "int_constant",
    "is_f32",
    "only_read_by",
    "operand_producer",
    "product_producer",
    "same_shape",
    "sized_alike",
    "with_private_producers",
]

_OP_NAMES = {kind: op for op, kind in OPS}


def fused_region(
    rule: str,
    params: OpParams,
    operands: Sequence[str],
    results: Sequence[str],
    covered: Sequence[Region],
) -> Region:
    """Return a region of a custom op that replaces ``covered``, given in graph order.

    Raises ValueError if ``params`` takes a different number of operands.
    """
    if len(operands) != params.operands:
        raise ValueError(
            f"{rule} passes {len(operands)} operands to an op that takes {params.operands}"
        )
    nodes = {id(n): n for r in covered for n in r.nodes}
    order = sorted(nodes.values(), key=lambda n: n.source if n.source is not None else -1)
    # a rule that changes the steps of one region keeps their number and order
    steps = covered[0].step_nodes if len(covered) == 1 else ()
    return Region(
        f"{rule}:{results[0]}",
        _OP_NAMES[type(params)],
        tuple(operands),
        tuple(results),
        tuple(order),
        params,
        rule,
        step_nodes=steps,
    )


def int_constant(numbers: int | Sequence[int]) -> Weight:
    """Return an int64 constant, scalar or one-dimensional, named after its numbers."""
    array = np.array(numbers, np.int64)
    digits = "_".join(str(n).replace("-", "m") for n in array.ravel())
    name = f"ints_{digits}" if array.ndim else f"int_{digits}"
    return Weight(name, DType.I64, array.shape, lambda: array)


def attribute(region: Region, name: str, default: object) -> object:
    """Return an attribute of an original ONNX operator, or ``default``."""
    return region.node.attrs.get(name, default)


COMPARED = (DType.F32, DType.I32, DType.I64)
"""Element types of ArgMax, TopK and GatherElements for which a backend may have kernels."""


def is_f32(graph: TileGraph, *values: str) -> bool:
    return all(graph.spec(v).dtype is DType.F32 for v in values)


def same_shape(a: TensorSpec, b: TensorSpec) -> bool:
    """Return whether both shapes are known and provably equal."""
    return a.shape is not None and a.shape == b.shape


def broadcasts_over_matrix(spec: TensorSpec, result: TensorSpec) -> bool:
    """Return whether an operand broadcasts over ``[rows, columns]`` as full, row, column or
    scalar."""
    shape, full = spec.shape, result.shape
    if shape is None or full is None:
        return False
    if shape == full or all(d == 1 for d in shape[:-1]):
        return not shape or shape[-1] in (1, full[-1])
    return shape[-1] == 1 and shape[:-1] == full[:-1]


def operand_producer(graph: TileGraph, value: str, op: str) -> Region | None:
    """Return the region that writes ``value`` if its op is ``op``, else None."""
    region = graph.producer(value)
    return region if region is not None and region.op == op else None


def product_producer(graph: TileGraph, value: str) -> Region | None:
    """Return the matrix product or integer convolution that computes ``value``.

    None if ``value`` is not its first result, or if nothing more can be fused into it.
    """
    found = operand_producer(graph, value, "FusedConvInteger")
    if found is not None:
        return found if found.results[0] == value else None
    return gemm_producer(graph, value)


def gemm_producer(graph: TileGraph, value: str) -> Region | None:
    """Return the matrix product that computes ``value``; None if nothing can be fused into it."""
    region = graph.producer(value)
    if region is None or region.op not in ("FusedGemm", "FusedMatMul"):
        return None
    closed = getattr(region.params, "norm", None) is not None or region.results[0] != value
    return None if closed else region


def only_read_by(graph: TileGraph, value: str, region: Region) -> bool:
    """Return whether ``region`` is the only reader of a value that is no graph output."""
    uses = graph.uses(value)
    return not graph.is_output(value) and all(u.region.id == region.id for u in uses)


def first_value_read_outside(
    graph: TileGraph, values: Iterable[str], covered: Sequence[Region]
) -> str:
    """Return the first of ``values`` that is a graph output or read outside ``covered``, or ""."""
    inside = {r.id for r in covered}
    for value in values:
        if graph.is_output(value) or any(u.region.id not in inside for u in graph.uses(value)):
            return value
    return ""


def with_private_producers(
    graph: TileGraph, covered: Sequence[Region], operands: Sequence[str]
) -> list[Region]:
    """Return ``covered``, and all regions that compute something for them alone.

    Regions that write one of ``operands`` are left out, and with them what they read.  For
    example, the shape arithmetic of Reshape(x, Concat(Shape(x), …)) is returned with the Reshape.
    """
    inside = {r.id: r for r in covered}
    kept, waiting = set(operands), list(covered)
    while waiting:
        for value in waiting.pop().reads:
            region = graph.producer(value)
            if region is None or region.id in inside or not kept.isdisjoint(region.writes):
                continue
            readers = {u.region.id for v in region.writes for u in graph.uses(v)}
            if readers <= inside.keys() and not any(map(graph.is_output, region.writes)):
                inside[region.id] = region
                waiting.append(region)
    return list(inside.values())


def sized_alike(graph: TileGraph, value: str, axis: int) -> tuple[str, int]:
    """Return a graph input, and its axis, of the size that an axis of ``value`` has.

    A program that reads a value for its size alone then needs no other program to compute it.
    """
    shape = graph.spec(value).shape
    found = None if value in graph.inputs or shape is None else input_with(graph, shape[axis])
    return found or (value, axis)


def input_with(graph: TileGraph, size: Extent) -> tuple[str, int] | None:
    """Return a graph input and its axis of extent ``size``; None if no input has such an axis."""
    for value in graph.inputs:
        for axis, dim in enumerate(graph.spec(value).shape or ()):
            if dim == size and not isinstance(size, int):
                return value, axis
    return None
