"""Remove channels between two products that need not be computed.

FusedGemm(FusedGemm(x, A), B)    ->    both with fewer columns in A and fewer rows in B
FusedConv(FusedConv(x, A), B)    ->    both with fewer filters in A, fewer channels in B

Depthwise convolutions between the two lose these channels too.

A channel is *constant* if its column of A is zero: it equals the epilogue applied to the bias (0
for ReLU of a negative bias), and B's bias absorbs its contribution.  A depthwise filter of zeros
makes a channel constant too; other depthwise filters keep a channel constant unless they pad it
with a different number.  A channel is *unused* if its row of B is zero.  The rewrite is exact for
finite values: a NaN or an infinity that reached the output only through such a channel no longer
does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Node, TensorSpec, Weight
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import ALIGNED
from tracea_graph.passes.convolution.derived_filters import must_stay_plain
from tracea_graph.passes.matmul.constant_matrices import replaceable_matrix, why_not_replaceable
from tracea_graph.passes.region_helpers import fused_region, only_read_by
from tracea_graph.passes.sparse.pruned_weights import (
    in_channels,
    is_depthwise,
    out_channels,
    pruned_bias,
    pruned_row,
    pruned_weight,
    shifted_bias,
    weights_by_result,
    with_channels,
    with_matrix,
)
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.reason_codes import Code, Reason, other_readers_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "DEAD_CHANNELS",
    "DeadChannels",
    "channel_producers",
    "remove_channels",
    "whole_vectors",
]

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]
DEAD_CHANNELS = "dead-channels"
_PRODUCTS = ("MatMul", "Gemm", "Conv")


@dataclass(frozen=True)
class DeadChannels:
    """Match two products, the first read only by the second, directly or through depthwise
    convolutions."""

    scan: WeightScan = field(default_factory=WeightScan)
    name: str = DEAD_CHANNELS

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, GemmParams | ConvParams) or is_depthwise(region.params):
            return  # not the last of two products
        found = self._dead(graph, region)
        if isinstance(found, str):
            yield Miss(self.name, region.id, found)
            return
        makers, own, unused = found
        constant, values = _constants(graph, makers, own)
        if isinstance(region.params, ConvParams) and region.params.window.padded:
            constant &= values == 0  # padding is 0, whatever the channel's constant
        kept = whole_vectors(~(constant | unused))
        if kept.all():
            reason = f"{makers[0].results[0]!r} has too few dead channels for a narrower product"
            yield Miss(self.name, region.id, reason)
            return
        gone = ~kept & ~unused
        idle = np.where(gone, values, 0.0)
        yield remove_channels(self.name, graph, makers, region, kept, idle)

    def _dead(
        self, graph: TileGraph, region: Region
    ) -> tuple[tuple[Region, ...], list[Mask], Mask] | str:
        """Return the producers, their constant channels and the unused channels, or why there
        are none to remove."""
        makers, value = _makers(graph, region), region.operands[0]
        if not makers:
            return Reason(
                f"no product or convolution like it computes {value!r}", Code.NOT_APPLICABLE
            )
        own, unused = [self._constant(graph, m) for m in makers], self._unused(graph, region)
        if not any(found.any() for found in (*own, unused)):
            return Reason(f"no channel of {value!r} is dead", Code.DENSE_WEIGHTS)
        reason = _check(graph, makers, region)
        return (makers, own, unused) if reason is None else reason

    def _constant(self, graph: TileGraph, region: Region) -> Mask:
        """Return which result channels have only zero weights."""
        found = self._lines(graph, region, result=True)
        for norm in (n for n in region.nodes if n.op == "BatchNormalization"):
            gamma = graph.weight(norm.inputs[1])
            made = norm.inputs[0] in {v for n in region.nodes for v in n.outputs}
            if made and gamma is not None and gamma.count == len(found):
                found[gamma.array().reshape(-1) == 0] = True
        return found

    def _unused(self, graph: TileGraph, region: Region) -> Mask:
        """Return which operand channels have only zero weights."""
        return self._lines(graph, region, result=False)

    def _lines(self, graph: TileGraph, region: Region, result: bool) -> Mask:
        params = region.params
        count, node = (out_channels if result else in_channels)(params), _product(region)
        weight = graph.weight(node.inputs[1]) if node else None
        nothing = np.zeros(count, np.bool_)
        if node is None or weight is None:
            return nothing
        found = self.scan.structure(weight)
        results_first = node.op == "Conv" or bool(node.attrs.get("transB", 0))
        lines = found.rows if result == results_first else found.columns
        taps = 1 if result or node.op != "Conv" else prod(weight.shape[2:])
        if lines.size != count * taps:  # none is zero, or some were removed before
            return nothing
        return np.asarray(lines.reshape(count, -1).all(1))


def remove_channels(
    rule: str,
    graph: TileGraph,
    makers: Sequence[Region],
    last: Region,
    kept: Mask,
    values: Floats,
    matrix: Floats | None = None,
    error: float = 0.0,
) -> Proposal:
    """Propose products that compute and read only the ``kept`` channels.

    ``makers`` compute the channels, ``last`` reads them.  ``values`` are the constants that the
    removed channels hold; their contribution moves to the bias of ``last``.  ``matrix`` ``[k,
    n]``, if given, replaces the matrix of ``last``.
    """
    n, new, stored, specs = int(kept.sum()), list[Region](), dict[str, Weight](), {}
    x = makers[0].operands[0]
    for maker in makers:
        middle = f"{maker.results[0]}_alive"
        params, own = _narrowed(graph, maker, kept, middle)
        operands = (x, *(w.name for w in own))
        new.append(fused_region(rule, params, operands, (middle,), [maker]))
        stored |= {w.name: w for w in own}
        specs[middle] = _shape(graph.spec(maker.results[0]), maker.params, n)
        x = middle
    b: Any = dataclasses.replace(with_channels(last.params, "operand", n), bias=True)
    _, wb, shift, *_ = last.params.split(last.operands)
    params, whole = last.params, graph.weights[wb]
    if matrix is not None:
        params, whole = with_matrix(params, matrix)
    other = pruned_weight(f"{x}_b", whole, params, b, kept, 1)
    old = graph.weights[shift] if shift else None
    moved = shifted_bias(f"{x}_b_bias", whole, old, params, values)
    rest = last.operands[2 + last.params.bias :]
    new.append(fused_region(rule, b, (x, other.name, moved.name, *rest), last.results, [last]))
    stored |= {w.name: w for w in (other, moved)}
    return Proposal(rule, (*makers, last), tuple(new), specs, stored, error)


def _narrowed(graph: TileGraph, region: Region, kept: Mask, name: str) -> tuple[Any, list[Weight]]:
    """Return a product's parameters with only the kept channels, and its new weights."""
    params: Any = with_channels(region.params, "result", int(kept.sum()))
    _, matrix, bias, epilogue_inputs, *_ = region.params.split(region.operands)
    weights = graph.weights
    own = [pruned_weight(f"{name}_a", weights[matrix], region.params, params, kept, 0)]
    if bias:
        own.append(pruned_bias(f"{name}_a_bias", weights[bias], params, kept))
    own += [pruned_row(f"{name}_{i}", weights[v], kept) for i, v in enumerate(epilogue_inputs)]
    return params, own


def _shape(spec: TensorSpec, params: Any, n: int) -> TensorSpec:
    assert spec.shape is not None
    axis = 1 if isinstance(params, ConvParams) else len(spec.shape) - 1
    return TensorSpec(DType.F32, (*spec.shape[:axis], n, *spec.shape[axis + 1 :]))


def channel_producers(graph: TileGraph, region: Region) -> tuple[Region, ...]:
    """Return the producers of the channels that a matrix product reads; empty if no channel may
    be removed."""
    if not isinstance(region.params, GemmParams):
        return ()
    makers = _makers(graph, region)
    return makers if makers and _check(graph, makers, region) is None else ()


def _makers(graph: TileGraph, region: Region) -> tuple[Region, ...]:
    """Return the product that computes the channels ``region`` reads, then the depthwise
    convolutions between the two; empty if there is no such product."""
    found: list[Region] = []
    maker = graph.producer(region.operands[0])
    while maker is not None and is_depthwise(maker.params):
        found.insert(0, maker)
        maker = graph.producer(maker.operands[0])
    if maker is None or not isinstance(maker.params, GemmParams | ConvParams):
        return ()
    return (maker, *found) if type(maker.params) is type(region.params) else ()


def _why_fixed(graph: TileGraph, region: Region) -> str | None:
    """Return why the number of a product's channels cannot change, or None."""
    params = region.params
    if isinstance(params, ConvParams):
        grouped = params.groups > 1 and not is_depthwise(params)
        said = f"the convolution that computes {region.results[0]!r} has groups"
        return Reason(said, Code.NOT_APPLICABLE) if grouped else None
    return None if replaceable_matrix(graph, region) else why_not_replaceable(graph, region)


def _check(graph: TileGraph, makers: Sequence[Region], last: Region) -> str | None:
    """Return why channels between products must stay, or None."""
    for maker, reader in pairwise((*makers, last)):
        if (reason := _check_one(graph, maker, reader)) is not None:
            return reason
    for product in (*makers, last):
        if (reason := _why_fixed(graph, product)) is not None:
            return reason
    value = makers[-1].results[0]
    if any(not _replaceable(graph, r) for r in (*makers, last)):
        return f"weights around {value!r} must stay: they are computed, or others read them"
    if any(graph.weight(v) is None for v in last.operands[2 : 2 + last.params.bias]):
        return Reason(
            f"the bias of the product that reads {value!r} is not constant", Code.NOT_CONSTANT
        )
    return None


def _replaceable(graph: TileGraph, region: Region) -> bool:
    """Return whether new weights may be stored for a product."""
    value = region.operands[1]
    weight = graph.weight(value)
    if weight is None or weight.computed_by:
        return False
    return not isinstance(region.params, ConvParams) or not must_stay_plain(graph, value)


def _check_one(graph: TileGraph, maker: Region, reader: Region) -> str | None:
    value, params = maker.results[0], maker.params
    if not only_read_by(graph, value, reader) or len(maker.results) > 1:
        return other_readers_reason(value)
    if graph.spec(value).shape is None:
        return f"the rank of {value!r} is not known"
    if isinstance(params, GemmParams) and (params.norm or params.splits):
        return f"{value!r} is normalised over its channels"
    if params.epilogue and not set(params.epilogue.operands[1:]) <= {"row", "scalar"}:
        return f"the epilogue that computes {value!r} reads operands that differ by row"
    if any(graph.weight(v) is None for v in maker.operands[1:]):
        return Reason(
            f"an operand of the product that computes {value!r} is not constant", Code.NOT_CONSTANT
        )
    return None


def whole_vectors(alive: Mask) -> Mask:
    """Return the channels to keep: the live ones, and dead ones that fill up whole vectors.

    There is at least one vector.
    """
    kept = alive.copy()
    missing = -int(alive.sum()) % ALIGNED if alive.any() else ALIGNED
    kept[np.flatnonzero(~alive)[:missing]] = True
    return kept


def _constants(
    graph: TileGraph, makers: Sequence[Region], own: Sequence[Mask]
) -> tuple[Mask, Floats]:
    """Return which channels are constant after all ``makers``, and their values in float64."""
    constant, values = own[0], _idle(graph, makers[0])
    for maker, zero in zip(makers[1:], own[1:], strict=True):
        if maker.params.window.padded:
            constant = constant & (values == 0)
        taps = weights_by_result(maker.params, graph.weights[maker.operands[1]])
        moved = np.where(zero | ~constant, 0.0, values)
        values = _idle(graph, maker, moved * taps.reshape(len(moved), -1).sum(1, np.float64))
        constant = constant | zero
    return constant.copy(), values


def _idle(graph: TileGraph, region: Region, added: Floats | None = None) -> Floats:
    """Return each channel's value if its weights contribute only ``added`` (0 by default)."""
    params, count = region.params, out_channels(region.params)
    _, _, bias, epilogue_inputs, *_ = params.split(region.operands)

    def row(value: str) -> Floats:
        return np.asarray(graph.weights[value].array(), np.float64).reshape(-1)

    start = row(bias) if bias else np.zeros(count)
    if added is not None:
        start = start + added
    if params.epilogue is None:
        return start
    with np.errstate(all="ignore"):
        return np.asarray(
            params.epilogue.reference([start, *map(row, epilogue_inputs)])[0], np.float64
        )


def _product(region: Region) -> Node | None:
    """Return the model's operator whose weights a region uses; None if there are several."""
    found = [n for n in region.nodes if n.op in _PRODUCTS]
    return found[0] if len(found) == 1 else None
