"""Convert reductions and softmax over any axes, and fuse elementwise ops around them.

Reduce…, GlobalAveragePool, GlobalMaxPool       -> FusedReduce
ArgMax, ArgMin                                  -> FusedArg
TopK                                            -> FusedTopK
Softmax, LogSoftmax, exp(x − max)/sum           -> FusedSoftmax
FusedReduce(elementwise(a, b))                  -> FusedReduce(a, b, prologue); FusedSoftmax and
                                                   FusedArg too
elementwise(FusedReduce(x), c)                  -> FusedReduce(x, c, epilogue)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.ops.arg_max import ARGS, MAX_LENGTH, ArgParams
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.elementwise import MAX_RANK, broadcast
from tracea_graph.ops.iteration_space_parts import constant_ints
from tracea_graph.ops.reduction import REDUCTIONS, ReduceParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.top_k import TopKParams
from tracea_graph.passes.pointwise.bound_expressions import (
    IDENTITY,
    inline_producer,
    matrix_broadcast_kind,
)
from tracea_graph.passes.pointwise.read_elementwise import read_chain
from tracea_graph.passes.region_helpers import (
    COMPARED,
    attribute,
    fused_region,
    is_f32,
    same_shape,
)
from tracea_graph.reason_codes import Code, Reason, other_readers_reason
from tracea_graph.rewrite import Match, Miss, Proposal, Rewrite, Rule
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "CONVERT_RULES",
    "MATCH_RULES",
    "ReduceEpilogue",
    "ReducePrologue",
    "axes_of",
]

_KINDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {op: (kind, "") for kind, (op, _) in REDUCTIONS.items()}
    | {"ReduceL2": ("sum_square", "sqrt"), "ReduceLogSum": ("sum", "log")}
)
"""Kind of a reduction operator, and the step after it."""
_POOLS: Mapping[str, str] = MappingProxyType({"GlobalAveragePool": "mean", "GlobalMaxPool": "max"})


def axes_of(graph: TileGraph, region: Region) -> tuple[int, ...] | str:
    """Return the reduced axes, negative and ascending, or why they are not known.

    Missing axes mean every axis, or none if ``noop_with_empty_axes`` is set.
    """
    rank = graph.spec(region.operands[0]).rank
    if rank is None:
        return f"the rank of {region.operands[0]!r} is not known"
    axes = constant_ints(region, graph, "axes", 1)
    if axes is None:
        return Reason(f"the axes {region.operands[1]!r} are not constant", Code.NOT_CONSTANT)
    if not axes:
        axes = () if attribute(region, "noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({a - rank if a >= 0 else a for a in axes}))


def _fits(graph: TileGraph, value: str, types: Sequence[DType] = (DType.F32,)) -> str | None:
    spec = graph.spec(value)
    if spec.dtype not in types:
        named = "float32" if len(types) == 1 else "float32, int32 or int64"
        return Reason(f"{value!r} is not {named}", Code.UNSUPPORTED_DTYPE)
    if spec.rank is None or not 0 < spec.rank <= MAX_RANK:
        return f"the rank of {value!r} is not within 1 .. {MAX_RANK}"
    return None


def _reduced(op: Any, x: Any) -> Any:
    return op.one_of((*_POOLS, *_KINDS), x, ...)


def _reduce(m: Match) -> Region | str:
    graph, region = m.graph, m.root
    if region.op in _POOLS:
        kind, after, keepdims = _POOLS[region.op], "", True
        rank = m.spec("x").rank or 0
        axes: tuple[int, ...] | str = tuple(range(2 - rank, 0))
    else:
        (kind, after), axes = _KINDS[region.op], axes_of(graph, region)
        keepdims = attribute(region, "keepdims", 1) == 1
    if isinstance(axes, str):
        return axes
    if (reason := _fits(graph, m.values["x"])) is not None:
        return reason
    if not axes:
        return "it reduces no axis"
    epilogue = Chain((FULL,), (Step(after, (0,)),), (1,)) if after else None
    params = ReduceParams(kind, axes, keepdims, None, epilogue)
    return fused_region("reduce", params, region.operands[:1], region.results, [region])


def _normalised(op: Any, x: Any) -> Any:
    return op.one_of(("Softmax", "LogSoftmax"), x)


def _convert_softmax(m: Match) -> Rewrite | str:
    value = m.values["x"]
    if (reason := _fits(m.graph, value)) is not None:
        return reason
    rank = m.spec("x").rank or 0
    axis = attribute(m.root, "axis", -1 if m.graph.opset >= 13 else 1)
    assert isinstance(axis, int)
    axis = axis - rank if axis >= 0 else axis
    if not -rank <= axis < 0:
        return f"{value!r} has no axis {axis}"
    if m.graph.opset < 13 and axis != -1:
        return "it normalises over several axes at once"
    params = SoftmaxParams(axis, m.root.op == "LogSoftmax")
    new = fused_region("softmax", params, (value,), m.root.results, [m.root])
    return Rewrite((new,), step=True)


def _chosen(op: Any, x: Any) -> Any:
    return op.one_of(ARGS.values(), x)


def _arg(m: Match) -> Region | str:
    value, region = m.values["x"], m.root
    if (reason := _fits(m.graph, value, COMPARED)) is not None:
        return reason
    shape = m.spec("x").shape or ()
    axis = attribute(region, "axis", 0)
    assert isinstance(axis, int)
    axis = axis - len(shape) if axis >= 0 else axis
    if not -len(shape) <= axis < 0:
        return f"{value!r} has no axis {axis}"
    length = shape[axis]
    if isinstance(length, int) and not 0 < length <= MAX_LENGTH:
        return f"kernels do not count {length} elements of {value!r}"
    keepdims, latest = (
        attribute(region, name, default) == 1
        for name, default in (("keepdims", 1), ("select_last_index", 0))
    )
    (kind,) = (kind for kind, op in ARGS.items() if op == region.op)
    params = ArgParams(kind, axis, keepdims, latest)
    return fused_region("arg-reduce", params, (value,), region.results, [region])


def _largest(op: Any, x: Any) -> Any:
    return op.TopK(x, ...)


def _top_k(m: Match) -> Region | str:
    found = _top_k_params(m.graph, m.root)
    if isinstance(found, str):
        return found
    return fused_region("top-k", found, m.root.operands[:1], m.root.results, [m.root])


def _top_k_params(graph: TileGraph, region: Region) -> TopKParams | str:
    value = region.operands[0]
    if (reason := _fits(graph, value, COMPARED)) is not None:
        return reason
    shape = graph.spec(value).shape or ()
    if attribute(region, "axis", -1) not in (-1, len(shape) - 1):
        return "it is not along the last axis"
    if attribute(region, "sorted", 1) != 1:
        return "its sorted is 0, which leaves the order of results open"
    given = constant_ints(region, graph, "k", 1)
    if not given:
        return Reason(
            f"the number of elements to choose, {region.operands[-1]!r}, is not constant",
            Code.NOT_CONSTANT,
        )
    if len(region.results) != 2:
        return "one of its results is missing"
    (k,) = given
    if k < 1 or (isinstance(shape[-1], int) and k > shape[-1]):
        return f"kernels do not choose {k} of {shape[-1]} elements"
    return TopKParams(k, attribute(region, "largest", 1) == 1)


REDUCE = Rule("reduce", (_reduced,), _reduce)
ARG_REDUCE = Rule("arg-reduce", (_chosen,), _arg)
TOP_K = Rule("top-k", (_largest,), _top_k)
SOFTMAX = Rule("softmax", (_normalised,), _convert_softmax)

CONVERT_RULES = (REDUCE, ARG_REDUCE, TOP_K, SOFTMAX)
"""Rules that convert one operator each."""


class ReducePrologue:
    """Compute the input of a reduction, arg-reduction or softmax inside it, tile by tile."""

    name = "reduce-prologue"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, ReduceParams | ArgParams | SoftmaxParams):
            return
        data = params.data_operands if isinstance(params, ReduceParams) else params.operands
        names, epilogue_inputs = region.operands[:data], region.operands[data:]
        shape = broadcast([graph.spec(n).shape or () for n in names])
        for value in dict.fromkeys(names):
            first = graph.producer(value)
            inner = read_chain(graph, first) if first is not None else None
            if first is None or inner is None or len(first.results) != 1:
                continue
            if graph.is_output(value) or any(u.region.id != region.id for u in graph.uses(value)):
                yield Miss(
                    self.name,
                    region.id,
                    other_readers_reason(value),
                )
                continue
            if value in epilogue_inputs:
                continue
            if graph.spec(value).shape != shape:
                yield Miss(self.name, region.id, f"{value!r} is broadcast")
                continue
            if not is_f32(graph, value):
                yield Miss(
                    self.name,
                    region.id,
                    Reason(f"{value!r} is not float32", Code.UNSUPPORTED_DTYPE),
                )
                continue
            outer = (params.prologue or IDENTITY, names)
            if (joined := inline_producer(outer, value, inner)) is None:
                yield Miss(
                    self.name,
                    region.id,
                    Reason("the chain would have too many operands", Code.TOO_MANY_OPERANDS),
                )
                continue
            chain, operands = joined
            kinds = tuple(
                matrix_broadcast_kind(graph.spec(n), graph.spec(value)) for n in operands
            )
            new_params = replace(params, prologue=replace(chain, operands=kinds))
            new = fused_region(
                self.name,
                new_params,
                (*operands, *epilogue_inputs),
                region.results,
                (first, region),
            )
            yield Proposal(self.name, (first, region), (new,))
            return


class ReduceEpilogue:
    """Apply elementwise ops to a reduced value before it is stored."""

    name = "reduce-epilogue"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        bound_chain = read_chain(graph, region)
        if bound_chain is None or len(region.results) != 1:
            return
        result = graph.spec(region.results[0])
        for value in dict.fromkeys(bound_chain[1]):
            first = graph.producer(value)
            if first is None or not isinstance(first.params, ReduceParams):
                continue
            params: ReduceParams = first.params
            if graph.is_output(value) or any(u.region.id != region.id for u in graph.uses(value)):
                yield Miss(
                    self.name,
                    region.id,
                    other_readers_reason(value),
                )
                continue
            if not same_shape(graph.spec(value), result) or not is_f32(graph, region.results[0]):
                yield Miss(self.name, region.id, f"{value!r} is broadcast or changes its type")
                continue
            data = first.operands[: params.data_operands]
            inner = (params.epilogue or IDENTITY, (value, *first.operands[len(data) :]))
            if (joined := inline_producer(bound_chain, value, inner)) is None:
                yield Miss(
                    self.name,
                    region.id,
                    Reason("the chain would have too many operands", Code.TOO_MANY_OPERANDS),
                )
                continue
            chain, names = joined
            kinds = (FULL, *(matrix_broadcast_kind(graph.spec(n), result) for n in names[1:]))
            new_params = replace(params, epilogue=replace(chain, operands=kinds))
            operands = (*data, *names[1:])
            new = fused_region(self.name, new_params, operands, region.results, (first, region))
            yield Proposal(self.name, (first, region), (new,))
            return


# ---- decomposed softmax ----------------------------------------------------------------


def _shifted(op: Any, x: Any) -> Any:
    return op.Sub(x, op.ReduceMax(x))


def _softmax(op: Any, x: Any) -> Any:
    """Match exp(x − max) / sum, or exp(x − max) times the reciprocal of the sum."""
    e = op.Exp(_shifted(op, x))
    total = op.ReduceSum(e)
    return op.either(op.Div(e, total), op.Mul(e, op.Reciprocal(total)))


def _log_softmax(op: Any, x: Any) -> Any:
    """Match x − max − log(sum)."""
    d = _shifted(op, x)
    return op.Sub(d, op.Log(op.ReduceSum(op.Exp(d))))


def _axis(m: Match) -> int | str:
    """Return the one axis that both reductions are over, or why there is none."""
    reductions = [r for r in m.covered if r.op.startswith("Reduce")]
    if any(attribute(r, "keepdims", 1) != 1 for r in reductions):
        return "a reduction does not keep its axis (keepdims=0)"
    found = {axes_of(m.graph, r) for r in reductions}
    axes = found.pop()
    if found or isinstance(axes, str) or len(axes) != 1:
        return "its maximum and its sum are not over the same single axis"
    return axes[0]


def _check(m: Match) -> str | None:
    axis = _axis(m)
    return axis if isinstance(axis, str) else _fits(m.graph, m.values["x"])


def _rule(name: str, pattern: Any, log: bool) -> Rule:
    def rewrite(m: Match) -> Region:
        axis = _axis(m)
        assert isinstance(axis, int)
        params = SoftmaxParams(axis, log)
        return fused_region(name, params, (m.values["x"],), m.root.results, m.covered)

    return Rule(name, (pattern,), rewrite, _check)


DECOMPOSED_SOFTMAX = _rule("decomposed-softmax", _softmax, False)
DECOMPOSED_LOG_SOFTMAX = _rule("decomposed-log-softmax", _log_softmax, True)

MATCH_RULES = (DECOMPOSED_SOFTMAX, DECOMPOSED_LOG_SOFTMAX)
"""Rules that match decomposed softmax."""
