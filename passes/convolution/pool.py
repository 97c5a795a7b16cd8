"""Pooling over windows, or over everything, and the flattening behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from tracea_graph.ir import Extent
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.space_parts import constant_ints
from tracea_graph.ops.windows import Window
from tracea_graph.passes.convolution.windows import read_window
from tracea_graph.passes.regions import attribute, fused, is_f32, operand_producer
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["AbsorbFlatten", "AbsorbUnsqueeze", "LiftPool"]

_GLOBAL = {"GlobalAveragePool": "average", "GlobalMaxPool": "max"}
_REDUCED = {"ReduceMean": "average", "ReduceMax": "max"}
_WINDOWED = ("MaxPool", "AveragePool")
_CLIPPED = 19
"""The opset since which ONNX Runtime's averages count nothing beyond the padding; where sizes are
rounded up they never did."""


class LiftPool:
    """MaxPool, AveragePool, their global forms, and the mean over all spatial axes; the maximum
    too where a convolution made what it is of."""

    name = "pool"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or region.op not in (*_GLOBAL, *_REDUCED, *_WINDOWED):
            return
        found = self._read(graph, region)
        if isinstance(found, PoolParams):
            new = fused(self.name, found, region.operands[:1], region.results[:1], [region])
            yield Proposal(self.name, (region,), (new,), step=True)
        elif found:
            yield Miss(self.name, region.id, found)

    def _read(self, graph: TileGraph, region: Region) -> PoolParams | str:
        """The parameters, a reason why there are none, or "" where it is no pooling at all."""
        shape = graph.spec(region.operands[0]).shape
        if shape is None or len(shape) not in (3, 4) or not isinstance(shape[1], int):
            plain = region.op in _REDUCED
            return (
                ""
                if plain
                else "its input is not known to have so many channels and one or two axes"
            )
        if not is_f32(graph, region.operands[0]):
            return "its input is not float32"
        if region.op in _REDUCED:
            axes = constant_ints(region, graph, "axes", 1) or ()
            if {a % len(shape) for a in axes} != set(range(2, len(shape))):
                return ""
            if region.op == "ReduceMax" and not _made_by_conv(graph, region.operands[0]):
                return ""
            return PoolParams(_REDUCED[region.op], flat=attribute(region, "keepdims", 1) == 0)
        if region.op in _GLOBAL:
            return PoolParams(_GLOBAL[region.op])
        if any(v and (graph.uses(v) or graph.is_output(v)) for v in region.results[1:]):
            return "its indices are read too"
        return _windowed(region, shape[2:], graph.opset)


def _made_by_conv(graph: TileGraph, value: str) -> bool:
    """True for a convolution's result, also behind operators that read nothing else."""
    region = graph.producer(value)
    while region is not None and region.op not in ("Conv", "FusedConv"):
        alone = all(graph.weight(v) is not None for v in region.operands[1:] if v)
        region = graph.producer(region.operands[0]) if alone and region.operands else None
    return region is not None


def _windowed(region: Region, spatial: Sequence[Extent], opset: int) -> PoolParams | str:
    kernel = attribute(region, "kernel_shape", ())
    window = read_window(region, kernel, spatial)  # type: ignore[arg-type]
    if isinstance(window, str):
        return window
    counted = attribute(region, "count_include_pad", 0) == 1
    kind = "max" if region.op == "MaxPool" else "average" if counted else "average-inside"
    clipped = opset >= _CLIPPED or attribute(region, "ceil_mode", 0)
    if kind == "average" and clipped and window.padded and not _within(window, spatial):
        return "padding is counted, but not what lies behind it, and images may be that small"
    if kind == "average" and not window.padded and (clipped or _within(window, spatial)):
        kind = "average-inside"
    if attribute(region, "ceil_mode", 0):
        raised = _rounded_up(window, spatial)
        if isinstance(raised, str):
            return raised
        if raised != window and kind == "average":
            return "padding is counted, but not where windows are rounded up"
        window = raised
    if any(a >= s or b >= s for (a, b), s in zip(window.pairs, window.spans, strict=True)):
        return "a window may lie in the padding alone"
    if window.padded and any(
        d > 1 and not (isinstance(n, int) and n >= d)
        for d, n in zip(window.dilations, spatial, strict=True)
    ):
        return "a window may step over all there is"
    if not window.padded and window.kernel == tuple(spatial) and set(window.dilations) == {1}:
        return PoolParams("max" if kind == "max" else "average")
    return PoolParams(kind, window)


def _within(window: Window, spatial: Sequence[Extent]) -> bool:
    """True if no window reaches beyond an image and its padding, however small it is."""
    axes = zip(spatial, window.spans, window.pairs, strict=True)
    return all(sum(pads) + (n if isinstance(n, int) else 1) >= span for n, span, pads in axes)


def _rounded_up(window: Window, spatial: Sequence[Extent]) -> Window | str:
    """The window with as much padding behind as its last position needs, or why it has none.

    A window larger than all there is becomes exactly that.
    """
    kernel, after = list(window.kernel), []
    axes = zip(spatial, window.spans, window.strides, window.pairs, strict=True)
    for axis, (size, span, stride, (before, behind)) in enumerate(axes):
        if not isinstance(size, int):
            return "rounding up over sizes that are not known"
        if span >= size and not before and not behind and window.dilations[axis] == 1:
            kernel[axis] = size
            after.append(0)
            continue
        count = -(-(size + before + behind - span) // stride) + 1
        if (count - 1) * stride >= size + before:
            # ONNX counts it before opset 22, ONNX Runtime never does
            return "its last window starts in the padding"
        after.append(max(behind, (count - 1) * stride + span - size - before))
    pads = (*window.pads[: window.rank], *after)
    return dataclasses.replace(window, kernel=tuple(kernel), pads=pads)


class AbsorbFlatten:
    """``[N, C, 1, 1]`` written as ``[N, C]`` at once."""

    name = "pool-flatten"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in ("Flatten", "Reshape", "Squeeze"):
            return
        pool = operand_producer(graph, region.operands[0], "FusedPool")
        if pool is None or graph.only_use(region.operands[0]) is None:
            return
        before, after = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
        if before is None or after != before[:2] or set(before[2:]) != {1}:
            return
        if pool.params.window is not None:
            return
        params = dataclasses.replace(pool.params, flat=True)
        new = fused(self.name, params, pool.operands, region.results, (pool, region))
        yield Proposal(self.name, (pool, region), (new,))


class AbsorbUnsqueeze:
    """Lines ``[N, C, L]`` made images of one line, pooled to one number per channel, and back.

    So newer exporters write adaptive pooling of lines.
    """

    name = "pool-unsqueeze"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in ("Reshape", "Squeeze"):
            return
        pool = operand_producer(graph, region.operands[0], "FusedPool")
        if pool is None or pool.params.window or graph.only_use(pool.results[0]) is None:
            return
        lift = operand_producer(graph, pool.operands[0], "Unsqueeze")
        if lift is None or graph.only_use(lift.results[0]) is None:
            return
        before, after = (graph.spec(v).shape for v in (lift.operands[0], region.results[0]))
        if before is None or len(before) != 3 or after != (*before[:2], 1):
            return
        if graph.spec(lift.results[0]).shape not in ((*before[:2], 1, before[2]), (*before, 1)):
            return
        covered = (lift, pool, region)
        new = fused(self.name, pool.params, lift.operands[:1], region.results, covered)
        yield Proposal(self.name, covered, (new,))
