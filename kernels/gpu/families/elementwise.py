"""Elementwise expressions on operands of any strides; one thread computes a run of a row."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import Chain

__all__ = ["launch", "name", "parameters", "shared"]


def _chain(call: Call) -> Chain:
    assert call.chain is not None
    return call.chain


def _views(call: Call) -> tuple[View, ...]:
    """Return operands and results with at least two axes."""
    views = [view for view in call.views if view is not None]
    rank = max(len(view.dims) for view in views)
    add = (1,) * (2 - rank)
    return tuple(View(v.buffer, (*add, *v.dims), (*(0 for _ in add), *v.strides), v.offset)
                 for v in views)  # fmt: skip


def _run(call: Call, variant: Variant) -> int:
    chain, width = _chain(call), variant.params["bytes"]
    return chain_parameters.vector_length(*chain.operand_types, *chain.result_types, width=width)


def name(call: Call) -> str:
    return f"chain_{_chain(call).key:016x}_rank{len(_views(call)[0].dims)}"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    made = chain_parameters.chain_template_parameters(_chain(call))
    rank = len(_views(call)[0].dims)
    names = [f"x{x.index}" for x in made["operands"]] + [f"y{y.index}" for y in made["results"]]
    wide = [x.wide for x in made["operands"]] + [True] * len(made["results"])
    offsets = {}
    for tensor, along in zip(names, wide, strict=True):
        terms = [f"(i64)i{axis} * {tensor}_{axis}" for axis in range(rank - 1)]
        offsets[tensor] = " + ".join(terms + [f"(i64)col * {tensor}_{rank - 1}"] * along)
    return {**made, "rank": rank, "tensors": names, "offsets": offsets, "run": _run(call, variant)}


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    chain, views = _chain(call), _views(call)
    *outer, cols = views[-1].dims
    rows, runs = product(tuple(outer)), combine("ceildiv", cols, _run(call, variant))
    blocks = combine("ceildiv", combine("mul", rows, runs), variant.threads)
    types = (*chain.operand_types, *chain.result_types)
    arguments: list[Argument] = [pointer(v, d) for v, d in zip(views, types, strict=True)]
    arguments += [i32(stride) for view in views for stride in view.strides]
    arguments += [divisor(dim) for dim in outer[1:]]
    arguments += [i32(rows), i32(cols), divisor(runs)]
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(arguments))
