"""Convert transposed convolutions to one convolution per phase of the stride.

ConvTranspose(x, W, b)    ->    one FusedConv per phase, then interleave the results
ConvTranspose(x, W, b)    ->    FusedConv 1x1 of all taps, one sum per phase, then interleave

Results whose positions differ by a multiple of the stride are an ordinary convolution of x with
every stride-th tap, reversed; no zeros are inserted or multiplied.  If windows do not overlap, all
phases are one 1x1 convolution with more filters.  With few output channels, most lanes of a phase
would be unused; then every tap is a filter of one 1x1 convolution, and each result is the sum of
the tap results it covers.
Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (2016).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, DType, Extent, Weight
from tracea_graph.ops.chain import FULL, MAX_OPERANDS, Chain, Step
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.weight_layouts import ALIGNED
from tracea_graph.passes.convolution.window_attributes import read_window
from tracea_graph.passes.matmul.constant_matrices import is_shared
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ConvTranspose", "phases_of"]

_MANY = 8
"""Input channels from which a product per tap pays off if output channels are few."""
_PHASES = 16
"""Maximum number of convolutions."""
_FEW = 4
"""Output channels up to which every tap is a filter."""


@dataclass(frozen=True)
class _Phase:
    """One phase along an axis: its kernel taps, ordered by the input element they read.

    It also holds the numbers of input elements read before and after the current one.
    """

    taps: tuple[int, ...]
    before: int
    after: int


def phases_of(kernel: int, stride: int, pads: tuple[int, int], extra: int) -> list[_Phase] | str:
    """Return the phases of one axis, or why they are not convolutions of equal size.

    Result ``stride · i + a`` reads input ``i + q - t`` with tap ``r + stride · t``, where q and r
    are quotient and remainder of ``a + pads[0]``.
    """
    more, rest = divmod(kernel - stride - sum(pads) + extra, stride)
    if rest:
        return "its kernel, stride and padding give phases of unequal size"
    phases = []
    for a in range(stride):
        q, r = divmod(a + pads[0], stride)
        taps = tuple(range(r, kernel, stride))[::-1]
        before, after = len(taps) - 1 - q, more + q
        if not taps or before < 0 or after < 0:
            return "its windows do not cover the result, or padding cuts them"
        phases.append(_Phase(taps, before, after))
    return phases


@dataclass(frozen=True)
class _Plan:
    """Decomposition of one transposed convolution."""

    channels: int
    filters: int
    groups: int
    axes: tuple[tuple[_Phase, ...], ...]
    space: tuple[Extent, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(map(len, self.axes))

    @property
    def count(self) -> int:
        return math.prod(self.strides)

    @property
    def non_overlapping(self) -> bool:
        """Whether windows do not overlap, so that one 1x1 convolution computes all phases."""
        places = [p for axis in self.axes for p in axis]
        single = all(len(p.taps) == 1 and not (p.before or p.after) for p in places)
        return single and self.groups == 1 and self.filters % ALIGNED == 0

    @property
    def few(self) -> bool:
        """Whether output channels are so few that adding up tap results is faster than phases.

        Adding up needs known extents.
        """
        longest = math.prod(max(len(p.taps) for p in axis) for axis in self.axes)
        known = all(isinstance(extent, int) for extent in self.space)
        fits = longest < MAX_OPERANDS and self.filters <= _FEW and self.channels > _MANY
        return fits and known and self.groups == 1 and self.count > 1

    @property
    def convolutions(self) -> list[tuple[_Phase, ...]]:
        """Phases that each convolution computes, one phase along every axis."""
        every = list(itertools.product(*self.axes))
        return every[:1] if self.non_overlapping else every


@dataclass(frozen=True)
class ConvTranspose:
    """Convert a transposed convolution with constant filters and without dilation."""

    plain: bool = False
    name: str = "conv-transpose"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "ConvTranspose" or self.plain:
            return
        plan = _read(graph, region)
        if isinstance(plan, str):
            yield Miss(self.name, region.id, plan)
        elif plan.few:
            yield self._sums(graph, region, plan)
        else:
            yield self._build(graph, region, plan)

    def _sums(self, graph: TileGraph, region: Region, plan: _Plan) -> Proposal:
        """Multiply x by every tap, then sum the tap results of each phase."""
        x, w, *rest = region.operands
        weight, result = graph.weights[w], region.results[0]
        kernel, places = weight.shape[2:], f"{result}_taps"
        before = [max(p.before for p in axis) for axis in plan.axes]
        after = [max(p.after for p in axis) for axis in plan.axes]
        ones = (1,) * len(kernel)
        window = ConvWindow(ones, ones, ones, (*before, *after))
        params = ConvParams(plan.channels, plan.filters * math.prod(kernel), window)
        packed = _filters(weight, params, (), f"{w}_taps", plan)
        specs = {places: params.infer([graph.spec(x)])[0]}
        steps = [fused_region(self.name, params, (x, packed.name), (places,), [region])]
        bias = [v for v in rest if v]
        for i, phases in enumerate(itertools.product(*plan.axes)):
            maps = [_shifted_by_tap(plan, phases, taps, kernel, before) for taps in _taps(phases)]
            if bias:
                maps.append(IndexMap((ViewMove("unsqueeze", tuple(range(1, len(kernel) + 1))),)))
            reads = (*(places for _ in _taps(phases)), *bias)
            total = ElementwiseParams(_sum_of(len(maps)), tuple(maps))
            part = f"{result}_phase{i}"
            specs[part] = total.infer(
                [*(specs[places] for _ in _taps(phases)), *map(graph.spec, bias)]
            )[0]
            steps.append(fused_region(self.name, total, reads, (part,), []))
        parts = tuple(f"{result}_phase{i}" for i in range(plan.count))
        spread = LayoutParams("spread", plan.strides, plan.count)
        steps.append(fused_region(self.name, spread, parts, (result,), []))
        weights = {packed.name: packed}
        return Proposal(self.name, (region,), tuple(steps), specs, weights, step=True)

    def _build(self, graph: TileGraph, region: Region, plan: _Plan) -> Proposal:
        x, w, *rest = region.operands
        weight, result = graph.weights[w], region.results[0]
        weights: dict[str, Weight] = {}
        bias: list[str] = []
        if rest and rest[0]:
            stored = _bias(graph.weights[rest[0]], plan.count if plan.non_overlapping else 1)
            weights[stored.name], bias = stored, [stored.name]
        specs, steps, parts = {}, [], []
        filters = plan.filters * (plan.count if plan.non_overlapping else 1)
        for i, phases in enumerate(plan.convolutions):
            window, part = _window(phases), f"{result}_phase{i}" if plan.count > 1 else result
            params = ConvParams(plan.channels, filters, window, plan.groups, bias=bool(bias))
            packed = _filters(weight, params, phases, f"{w}_phase{i}", plan)
            weights[packed.name] = packed
            specs[part] = params.infer([graph.spec(x)])[0]
            steps.append(
                fused_region(self.name, params, (x, packed.name, *bias), (part,), [region])
            )
            parts.append(part)
        if plan.count > 1:
            spread = LayoutParams("spread", plan.strides, len(parts))
            steps.append(fused_region(self.name, spread, tuple(parts), (result,), []))
        specs.pop(result, None)
        return Proposal(self.name, (region,), tuple(steps), specs, weights, step=True)


def _taps(phases: Sequence[_Phase]) -> list[tuple[int, ...]]:
    """Return the index tuples of a phase's taps, ordered by the input element they read."""
    return list(itertools.product(*(range(len(p.taps)) for p in phases)))


def _shifted_by_tap(
    plan: _Plan, phases: Sequence[_Phase], at: Sequence[int], kernel: Sequence[int],
    before: Sequence[int],
) -> IndexMap:  # fmt: skip
    """Return the view of one tap's results that a phase adds."""
    tap = np.ravel_multi_index([p.taps[j] for p, j in zip(phases, at, strict=True)], kernel)
    moves = [ViewMove("slice", (1, int(tap) * plan.filters, (int(tap) + 1) * plan.filters, 1))]
    rows = zip(phases, at, before, plan.space, strict=True)
    for axis, (phase, j, pad, extent) in enumerate(rows, 2):
        assert isinstance(extent, int)
        start = pad - phase.before + j
        size = extent + phase.before + phase.after - len(phase.taps) + 1
        moves.append(ViewMove("slice", (axis, start, start + size, 1)))
    return IndexMap(tuple(moves))


def _sum_of(count: int) -> Chain:
    """Return the chain that adds all operands in order."""
    steps = tuple(Step("add", (i + count - 1 if i else 0, i + 1)) for i in range(count - 1))
    return Chain((FULL,) * count, steps, (2 * count - 2 if steps else 0,))


def _read(graph: TileGraph, region: Region) -> _Plan | str:
    x, w, *rest = region.operands
    weights = [graph.weight(v) for v in (w, *rest) if v]
    shape = graph.spec(x).shape
    if any(one is None for one in weights) or not is_f32(graph, *region.reads):
        return Reason("its filters or bias are not constant float32", Code.NOT_CONSTANT)
    weight = graph.weights[w]
    if shape is None or len(shape) not in (3, 4) or shape[1] != weight.shape[0]:
        return "its input is not known to have one or two spatial axes and its filters' channels"
    if is_shared(graph, w, ("ConvTranspose",)):
        return "another operator reads its filters, and they are too large to store twice"
    groups = int(str(attribute(region, "group", 1)))
    filters = weight.shape[1] * groups
    channels = weight.shape[0]
    apart = groups == 1 or channels == groups == filters
    if not apart and (channels // groups % ALIGNED or filters // groups % ALIGNED):
        return "its channels per group are not a multiple of the vector width"
    axes = _axes(region, weight.shape[2:], shape[2:])
    if isinstance(axes, str):
        return axes
    return _Plan(channels, filters, groups, axes, shape[2:])


def _axes(
    region: Region, kernel: tuple[int, ...], spatial: tuple[Extent, ...]
) -> tuple[tuple[_Phase, ...], ...] | str:
    window = read_window(region, kernel, spatial)
    if isinstance(window, str):
        return window
    auto = str(attribute(region, "auto_pad", "NOTSET"))
    if "SAME" in auto or attribute(region, "output_shape", ()):
        return "its output_shape or auto_pad sets the size of the result"
    if set(window.dilations) != {1}:
        return "its windows do not cover the result, or padding cuts them"
    if math.prod(window.strides) > _PHASES:
        return "its strides are too large"
    given = attribute(region, "output_padding", ())
    extra = given if isinstance(given, tuple) and given else (0,) * window.rank
    axes = []
    rows = zip(kernel, window.strides, window.pairs, extra, spatial, strict=True)
    for size, stride, pads, end, extent in rows:
        phases = phases_of(size, stride, pads, int(str(end)))
        if isinstance(phases, str):
            return phases
        if isinstance(extent, int) and extent < max(len(p.taps) for p in phases):
            return "its input is smaller than a window"
        axes.append(tuple(phases))
    return tuple(axes)


def _window(phases: Sequence[_Phase]) -> ConvWindow:
    ones = (1,) * len(phases)
    pads = (*(p.before for p in phases), *(p.after for p in phases))
    return ConvWindow(tuple(len(p.taps) for p in phases), ones, ones, pads)


def _filters(
    weight: Weight, params: ConvParams, phases: Sequence[_Phase], name: str, plan: _Plan
) -> Weight:
    """Return filters ``[C, O/groups, kernel…]`` of one phase, or of all phases concatenated."""

    def load() -> Array:
        taken = np.asarray(weight.load(), np.float32)
        if not phases or plan.non_overlapping:
            taken = np.moveaxis(taken, (0, 1), (-1, -2))
            return taken.reshape(params.shape)
        for axis, phase in enumerate(phases, 2):
            taken = taken.take(phase.taps, axis)
        channels, per_group, *kernel = taken.shape
        split = taken.reshape(plan.groups, channels // plan.groups, per_group, *kernel)
        return split.swapaxes(1, 2).reshape(params.shape)

    return Weight(name, DType.F32, params.shape, load)


def _bias(bias: Weight, count: int) -> Weight:
    """Return the bias repeated ``count`` times."""
    return Weight(
        f"{bias.name}_spread", DType.F32, (bias.count * count,),
        lambda: np.tile(np.asarray(bias.load(), np.float32), count),
    )  # fmt: skip
