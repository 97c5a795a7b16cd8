"""Fold or convert batch normalisations with constant statistics.

BatchNormalization(FusedConv(x))           -> FusedConv(x) with other filters and bias
FusedConv(BatchNormalization(x))           -> FusedConv(x) with other filters, if nothing is padded
BatchNormalization(x)                      -> FusedElementwise(x · scale + shift)
Reshape(BatchNormalization(Reshape(x)))    -> FusedElementwise(x · scale + shift) per group of rows
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tracea_graph.ir import Extent, Weight
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.passes.convolution.conv import conv_producer
from tracea_graph.passes.convolution.derived_filters import (
    ChannelAffine,
    fold_affine_after,
    fold_affine_before,
    must_stay_plain,
)
from tracea_graph.passes.pointwise.bound_expressions import matrix_broadcast_kind
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    is_f32,
    only_read_by,
    operand_producer,
)
from tracea_graph.reason_codes import Code, Reason, other_readers_reason
from tracea_graph.rewrite import Match, Miss, Proposal, Rewrite, Rule
from tracea_graph.ttg import Region, TileGraph

__all__ = ["BATCH_NORM", "ConvBatchNorm", "batch_norm_affine"]


def batch_norm_affine(graph: TileGraph, region: Region) -> ChannelAffine | str:
    """Return the affine map of a BatchNormalization with constant statistics, or the reason why
    there is none."""
    if len(region.operands) < 5 or not is_f32(graph, *region.operands[:5]):
        return Reason("its operands are not float32", Code.UNSUPPORTED_DTYPE)
    figures = [w for v in region.operands[1:5] if (w := graph.weight(v)) is not None]
    if len(figures) < 4:
        computed = next(v for v in region.operands[1:5] if graph.weight(v) is None)
        return Reason(f"its statistics {computed!r} are not constant", Code.NOT_CONSTANT)
    if attribute(region, "training_mode", 0) or attribute(region, "spatial", 1) != 1:
        return "it computes mean and variance itself, or has them per element (spatial=0)"
    if any(v and (graph.uses(v) or graph.is_output(v)) for v in region.results[1:]):
        return "its mean or variance output is used"
    epsilon = float(str(attribute(region, "epsilon", 1e-5)))
    gamma, beta, mean, variance = figures
    return ChannelAffine(gamma, beta, mean, variance, epsilon)


class ConvBatchNorm:
    """Fold a batch normalisation into the convolution before or after it.

    The convolution after it qualifies only if it has no padding.
    """

    name = "conv-batch-norm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op == "BatchNormalization":
            conv = conv_producer(graph, region.operands[0])
            if conv is not None:
                yield self._absorb(graph, conv, region, region.operands[0], after=True)
        elif isinstance(region.params, ConvParams):
            norm = operand_producer(graph, region.operands[0], "BatchNormalization")
            if norm is not None:
                yield self._absorb(graph, region, norm, region.operands[0], after=False)

    def _absorb(
        self, graph: TileGraph, conv: Region, norm: Region, between: str, after: bool
    ) -> Proposal | Miss:
        last = norm if after else conv
        affine = batch_norm_affine(graph, norm)
        if isinstance(affine, str):
            return Miss(self.name, norm.id, affine)
        if not only_read_by(graph, between, last):
            return Miss(self.name, last.id, other_readers_reason(between))
        params: ConvParams = conv.params
        if after and params.epilogue is not None:
            return Miss(self.name, last.id, "the convolution before it already has an epilogue")
        if not after and params.window.padded:
            return Miss(
                self.name,
                last.id,
                "the convolution pads, and the norm's shift does not apply to padding",
            )
        x, w, bias, epilogue_inputs = params.split(conv.operands)
        weight, offsets = graph.weight(w), graph.weight(bias) if bias else None
        if weight is None or (bias and offsets is None):
            return Miss(self.name, last.id, Reason("the bias is not constant", Code.NOT_CONSTANT))
        if weight.computed_by or must_stay_plain(graph, w):
            return Miss(self.name, last.id, f"{w!r} must stay: it is computed, or others read it")
        make = fold_affine_after if after else fold_affine_before
        new_w, new_bias = make(params, weight, offsets, affine, last.results[0])
        operands = (x if after else norm.operands[0], new_w.name, new_bias.name, *epilogue_inputs)
        params = dataclasses.replace(params, bias=True)
        new = fused_region(self.name, params, operands, last.results[:1], (conv, norm))
        weights = {w.name: w for w in (new_w, new_bias)}
        return Proposal(self.name, (conv, norm), (new,), weights=weights)


def _norm(op: Any, x: Any) -> Any:
    return op.BatchNormalization(x, ...)


def _convert(m: Match) -> Rewrite | str:
    """Convert a batch normalisation that was not folded to a multiplication and an addition."""
    graph, region = m.graph, m.root
    affine, spec = batch_norm_affine(graph, region), m.spec("x")
    if isinstance(affine, str):
        return affine
    if spec.rank is None or not 2 <= spec.rank <= 6:
        return "the rank of its input is not known"
    covered = _bands(graph, region) or (region,)
    value, result = covered[0].operands[0], covered[-1].results[0]
    scale, shift = affine.weights(result, spec.rank - 2)
    if len(covered) > 1:
        spec = graph.spec(value)
        scale, shift = (_over_rows(w, spec.shape or ()) for w in (scale, shift))
    names = (value, scale.name, shift.name)
    kinds = tuple(matrix_broadcast_kind(s, spec) for s in (spec, scale.spec, shift.spec))
    chain = Chain(kinds, (Step("mul", (0, 1)), Step("add", (3, 2))), (4,))
    new = fused_region("batch-norm", ElementwiseParams(chain), names, (result,), covered)
    weights = {scale.name: scale, shift.name: shift}
    return Rewrite((new,), covered, weights=weights, step=True)


BATCH_NORM = Rule("batch-norm", (_norm,), _convert)


def _bands(graph: TileGraph, norm: Region) -> tuple[Region, ...] | None:
    """Match a norm between two Reshapes: ``[N, C, H, W]`` to ``[N, C·k, H/k, W]`` and back.

    Each of k groups of rows then has its own statistics (sub-spectral normalisation).
    """
    first = operand_producer(graph, norm.operands[0], "Reshape")
    readers = graph.readers(norm)
    if first is None or len(readers) != 1 or readers[0].op != "Reshape":
        return None
    before, seen, after = (
        graph.spec(v).shape or ()
        for v in (first.operands[0], norm.operands[0], readers[0].results[0])
    )
    alone = only_read_by(graph, norm.operands[0], norm)
    alone = alone and only_read_by(graph, norm.results[0], readers[0])
    if not alone or before != after or not len(before) == len(seen) == 4:
        return None
    if (before[0], before[3]) != (seen[0], seen[3]):
        return None
    known = all(isinstance(d, int) for d in (*before[1:3], *seen[1:3]))
    return (first, norm, readers[0]) if known else None


def _over_rows(weight: Weight, shape: Sequence[Extent]) -> Weight:
    """Return numbers per channel and group of rows, ``[C·k, 1, 1]``, as ``[1, C, H, 1]``."""
    channels, rows = int(str(shape[1])), int(str(shape[2]))
    times = channels * rows // weight.count
    return Weight(
        f"{weight.name}_rows", weight.dtype, (1, channels, rows, 1),
        lambda: weight.load().reshape(-1).repeat(times).reshape(1, channels, rows, 1),
    )  # fmt: skip
