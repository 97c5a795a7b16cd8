"""Lower norms over groups of channels of blocked values: lane statistics, then a chain.

The statistics are a few numbers per image and channel.  Applying them is deferred to the chain
that reads the norm, so that the normalized value itself is never written.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.kernels.cpu.filters import BLOCK
from tracea_graph.kernels.cpu.lowering.channel_blocked_values import BlockedValue, per_channel
from tracea_graph.kernels.cpu.lowering.region_values import DeferredChain, RegionValues
from tracea_graph.kernels.cpu.lowering.region_writer import Slot
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import FULL, ROW, Chain, Step
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.index_map import dense_strides

__all__ = ["lower_norm_in_blocks"]

_POSITIONS = (2, 3)
"""Axes of a blocked value's rows and columns."""
_DIFFERENCE = Chain((FULL, ROW), (Step("sub", (0, 1)),), (2,))


def lower_norm_in_blocks(
    v: RegionValues, p: ChannelNormParams, operands: Sequence[int], result: int
) -> None:
    """Emit the statistics of a norm; its consumer computes ``(x − mean) · factor + β``.

    factor is ``γ / √(variance + ε)``.  If the norm subtracts no mean, the mean square of x
    replaces the variance.
    """
    source = v.block(operands[0])
    each = v.layout.channels(result) // p.groups
    means, rows = None, list[tuple[Slot, bool]]()
    if p.norm.kind == "layer":
        means = _over_groups(v, _mean(v, source, "sum", None), each)
        rows.append((means, True))
    squares = _over_groups(v, _mean(v, source, "squares", means), each)
    gamma = v.by_channel(operands[1], result)[0] if p.norm.gamma else None
    rows.append((_factor(v, squares, gamma, p.norm.epsilon), True))
    if p.norm.beta:
        rows.append(v.by_channel(operands[-1], result))
    chain = _chain(means is not None, p.norm.beta)
    v.shifted[result] = DeferredChain(operands[0], chain, tuple(rows))


def _chain(centred: bool, added: bool) -> Chain:
    """The chain ``(x − m) · f + b``; m and b are optional."""
    count = 2 + centred + added
    steps = [Step("sub", (0, 1))] if centred else []
    steps.append(Step("mul", (count if centred else 0, 1 + centred)))
    if added:
        steps.append(Step("add", (count + len(steps) - 1, count - 1)))
    return Chain((FULL, *(ROW,) * (count - 1)), tuple(steps), (count + len(steps) - 1,))


def _mean(v: RegionValues, source: BlockedValue, kind: str, centre: Slot | None) -> Slot:
    """For each image and channel the mean over its positions: ``[N, Cb·16]``."""
    view = source.view()
    n, count = view.dims[:2]
    made = v.w.temp(TensorSpec(DType.F32, (n, combine("mul", count, BLOCK))))
    dims = (n, count, 1, 1, BLOCK)
    target = View(made.buffer, dims, dense_strides(dims))
    centres = [per_channel(centre, True, source.channels, view)] if centre else []
    v.w.call(
        "reduce", x=[view, *centres], y=target, kind=kind, mean=True, axes=_POSITIONS,
        chain=_DIFFERENCE if centre else None,
    )  # fmt: skip
    return made


def _over_groups(v: RegionValues, lanes: Slot, each: int) -> Slot:
    """Average every ``each`` consecutive lanes, and repeat the mean for each of them.

    Groups are parts of a block or whole blocks.
    """
    if each == 1:
        return lanes
    n, count = lanes.shape
    dims: tuple[Extent, ...] = (n, combine("floordiv", count, each), each)
    mean = v.w.temp(TensorSpec(DType.F32, dims[:2]))
    spread = v.w.temp(lanes.spec)
    strides = (dims[1], 1, 0)
    v.w.call(
        "reduce", x=View(lanes.buffer, dims, dense_strides(dims)),
        y=View(mean.buffer, (*dims[:2], 1), strides), kind="sum", mean=True, axes=(2,),
    )  # fmt: skip
    v.w.call(
        "copy",
        x=View(mean.buffer, dims, strides),
        y=View(spread.buffer, dims, dense_strides(dims)),
    )
    return spread


def _factor(v: RegionValues, squares: Slot, gamma: Slot | None, epsilon: float) -> Slot:
    made = v.w.temp(squares.spec)
    shape = squares.shape
    operands = [View(gamma.buffer, shape, (0, 1))] if gamma else []
    count = 1 + len(operands)
    scale = Step("div", (1, count + 1)) if gamma else Step("reciprocal", (count + 1,))
    steps = (Step("add", (0, epsilon)), Step("sqrt", (count,)), scale)
    chain = Chain((FULL,) * count, steps, (count + 2,))
    v.w.call("elementwise", x=[squares.view, *operands], y=made.view, chain=chain)
    return made
