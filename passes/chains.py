"""Reading elementwise regions as chains, and putting chains together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.chain import COL, FULL, MAX_OPERANDS, ROW, SCALAR, Chain, Ref, Step
from tracea_graph.ops.elementwise import MAX_RANK, ElementwiseParams, broadcast
from tracea_graph.rewrite import constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["IDENTITY", "Spelled", "inline", "kind_of", "read_chain"]

Spelled = tuple[Chain, tuple[str, ...]]
"""A chain and the values its operands stand for."""

IDENTITY = Chain((FULL,), (), (0,))

_STEPS: Mapping[str, str] = MappingProxyType(
    {
        "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min",
        "Neg": "neg", "Abs": "abs", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Exp": "exp",
        "Log": "log", "Erf": "erf", "Tanh": "tanh", "Sigmoid": "sigmoid", "Relu": "relu",
    }
)  # fmt: skip
_ARITY = MappingProxyType({"Add": 2, "Sub": 2, "Mul": 2, "Div": 2, "Max": 2, "Min": 2})


def kind_of(spec: TensorSpec, result: TensorSpec) -> str:
    """How an operand lies over the innermost rows and columns of a result."""
    shape, full = spec.shape or (), result.shape or ()
    if shape == full:
        return FULL
    if all(d == 1 for d in shape):
        return SCALAR
    if shape[-1] == full[-1]:
        return ROW if all(d == 1 for d in shape[:-1]) else FULL
    return COL


def read_chain(graph: TileGraph, region: Region) -> Spelled | None:
    """The chain an elementwise float32 region computes, or None if it is something else."""
    if isinstance(region.params, ElementwiseParams):
        return region.params.chain, region.operands
    if region.op == "Pow":
        return _read_power(graph, region)
    step = _STEPS.get(region.op)
    if step is None or len(region.operands) != _ARITY.get(region.op, 1):
        return None
    return _spell(graph, region, step, region.operands)


def _read_power(graph: TileGraph, region: Region) -> Spelled | None:
    exponent = constant_number(graph, region.operands[1])
    if exponent != 2.0:
        return None
    x = region.operands[0]
    return _spell(graph, region, "mul", (x, x))


def _spell(graph: TileGraph, region: Region, step: str, values: Sequence[str]) -> Spelled | None:
    """One step over values; constants of one element become literals."""
    result = graph.spec(region.results[0])
    specs = [graph.spec(v) for v in values]
    if any(s.dtype is not DType.F32 or s.shape is None for s in (*specs, result)):
        return None
    if (result.rank or 0) > MAX_RANK:
        return None
    names: list[str] = []
    args: list[Ref] = []
    for value in values:
        number = constant_number(graph, value)
        if number is not None:
            args.append(number)
            continue
        if value not in names:
            names.append(value)
        args.append(names.index(value))
    shapes = [graph.spec(v).shape or () for v in names]
    if not names or broadcast(shapes) != result.shape:
        return None
    kinds = tuple(kind_of(graph.spec(v), result) for v in names)
    return Chain(kinds, (Step(step, tuple(args)),), (len(names),)), tuple(names)


def inline(outer: Spelled, value: str, inner: Spelled) -> Spelled | None:
    """Replace operand ``value`` of ``outer`` by ``inner``'s first result.

    The inner operands keep their places, so an accumulator stays operand 0.  None if the result
    would have too many operands.

        outer(v, b), v = inner(a)   ->   (inner; outer)(a, b)
    """
    (after, after_names), (before, before_names) = outer, inner
    names = list(before_names)
    kinds = list(before.operands)
    for name, kind in zip(after_names, after.operands, strict=True):
        if name != value and name not in names:
            names.append(name)
            kinds.append(kind)
    if len(names) > MAX_OPERANDS:
        return None
    count, old = len(names), len(before_names)

    def place(ref: int) -> int:
        return ref if ref < old else ref - old + count

    joint = place(before.results[0])

    def move(ref: int) -> int:
        if ref >= len(after_names):
            return ref - len(after_names) + count + len(before.steps)
        name = after_names[ref]
        return joint if name == value else names.index(name)

    steps = (*_moved(before.steps, place), *_moved(after.steps, move))
    return Chain(tuple(kinds), steps, tuple(map(move, after.results))), tuple(names)


def _moved(steps: Sequence[Step], place: Callable[[int], int]) -> Iterator[Step]:
    """The steps with every value they refer to elsewhere; literals stay."""
    for step in steps:
        args: tuple[Ref, ...] = tuple(a if isinstance(a, float) else place(a) for a in step.args)
        yield Step(step.op, args)
