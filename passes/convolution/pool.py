"""Convert pooling over windows or all positions, and fuse the flattening after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tracea_graph.ir import Extent
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.iteration_space_parts import constant_ints
from tracea_graph.ops.pool import PoolParams
from tracea_graph.passes.convolution.window_attributes import read_window
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule
from tracea_graph.ttg import Region, TileGraph

__all__ = ["POOL", "POOL_FLATTEN", "POOL_UNSQUEEZE", "POOL_VOLUMES", "windowed_pool"]

_GLOBAL = {"GlobalAveragePool": "average", "GlobalMaxPool": "max"}
_REDUCED = {"ReduceMean": "average", "ReduceMax": "max"}
_WINDOWED = ("MaxPool", "AveragePool")
_CLIPPED = 19
"""Opset from which ONNX Runtime's AveragePool does not count positions after the padding; with
ceil_mode it never does."""


def _pooled(op: Any, x: Any) -> Any:
    return op.one_of((*_GLOBAL, *_REDUCED, *_WINDOWED), x, ...)


def _pool(m: Match) -> Rewrite | str:
    """Convert a pool; a global maximum only if a convolution produces its input."""
    return _converted(m, 2)


def _pool_volume(m: Match) -> Rewrite | str:
    """Convert a pool, perhaps of volumes."""
    return _converted(m, 3)


def _converted(m: Match, most: int) -> Rewrite | str:
    """Convert a pool over at most that many spatial axes."""
    found = _read(m.graph, m.root, most)
    if isinstance(found, str):
        return found
    new = fused_region("pool", found, m.root.operands[:1], m.root.results[:1], [m.root])
    return Rewrite((new,), step=True)


def _read(graph: TileGraph, region: Region, most: int) -> PoolParams | str:
    """Return the parameters of a pool over up to ``most`` axes, or why it is not supported."""
    shape = graph.spec(region.operands[0]).shape
    if shape is None or not 2 < len(shape) <= most + 2 or not isinstance(shape[1], int):
        many = "one or two" if most == 2 else "one to three"
        said = f"its input is not known to have a constant channel count and {many} spatial axes"
        return unsuited_reason(said) if region.op in _REDUCED else said
    if not is_f32(graph, region.operands[0]):
        return Reason("its input is not float32", Code.UNSUPPORTED_DTYPE)
    if region.op in _REDUCED:
        axes = constant_ints(region, graph, "axes", 1) or ()
        if {a % len(shape) for a in axes} != set(range(2, len(shape))):
            return unsuited_reason("it does not reduce whole images")
        if region.op == "ReduceMax" and not _made_by_conv(graph, region.operands[0]):
            return unsuited_reason(f"no convolution makes {region.operands[0]!r}")
        return PoolParams(_REDUCED[region.op], flat=attribute(region, "keepdims", 1) == 0)
    if region.op in _GLOBAL:
        return PoolParams(_GLOBAL[region.op])
    if any(v and (graph.uses(v) or graph.is_output(v)) for v in region.results[1:]):
        return "its output of indices is used"
    return windowed_pool(region, shape[2:], graph.opset)


def _made_by_conv(graph: TileGraph, value: str) -> bool:
    """Return whether a convolution produces a value, possibly through unary operators."""
    region = graph.producer(value)
    while region is not None and region.op not in ("Conv", "FusedConv"):
        alone = all(graph.weight(v) is not None for v in region.operands[1:] if v)
        region = graph.producer(region.operands[0]) if alone and region.operands else None
    return region is not None


def windowed_pool(region: Region, spatial: Sequence[Extent], opset: int) -> PoolParams | str:
    """Return the parameters of a pool over windows, or why it is not supported."""
    kernel = attribute(region, "kernel_shape", ())
    window = read_window(region, kernel, spatial)  # type: ignore[arg-type]
    if isinstance(window, str):
        return window
    if _padded_by_taps(region, window):
        return "ONNX Runtime's auto_pad of pools leaves dilations out"
    counted = attribute(region, "count_include_pad", 0) == 1
    kind = "max" if region.op == "MaxPool" else "average" if counted else "average-inside"
    clipped = opset >= _CLIPPED or attribute(region, "ceil_mode", 0)
    if kind == "average" and clipped and window.padded and not _within(window, spatial):
        return "its averages count padding, and a window may exceed a small padded image"
    if kind == "average" and not window.padded and (clipped or _within(window, spatial)):
        kind = "average-inside"
    if attribute(region, "ceil_mode", 0):
        raised = _rounded_up(window, spatial)
        if isinstance(raised, str):
            return raised
        if raised != window and kind == "average":
            return "its averages count padding, but not the positions that ceil_mode adds"
        window = raised
    if any(a >= s or b >= s for (a, b), s in zip(window.pairs, window.spans, strict=True)):
        return "one of its windows may cover only padding"
    if window.padded and any(
        d > 1 and not (isinstance(n, int) and n >= d)
        for d, n in zip(window.dilations, spatial, strict=True)
    ):
        return "a dilated window may miss the whole image"
    if not window.padded and window.kernel == tuple(spatial) and set(window.dilations) == {1}:
        return PoolParams("max" if kind == "max" else "average")
    return PoolParams(kind, window)


def _padded_by_taps(region: Region, window: ConvWindow) -> bool:
    """Return whether ONNX Runtime pads a dilated window as if its taps were adjacent."""
    auto = attribute(region, "auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else str(auto)
    return auto.startswith("SAME") and set(window.dilations) != {1}


def _within(window: ConvWindow, spatial: Sequence[Extent]) -> bool:
    """Return whether no window reaches beyond the padded image, however small that is."""
    axes = zip(spatial, window.spans, window.pairs, strict=True)
    return all(sum(pads) + (n if isinstance(n, int) else 1) >= span for n, span, pads in axes)


def _rounded_up(window: ConvWindow, spatial: Sequence[Extent]) -> ConvWindow | str:
    """Return the window with the end padding that ceil_mode needs, or why there is none.

    A window without padding that covers the image is cut to the image.
    """
    kernel, after = list(window.kernel), []
    axes = zip(spatial, window.spans, window.strides, window.pairs, strict=True)
    for axis, (size, span, stride, (before, behind)) in enumerate(axes):
        if not isinstance(size, int):
            return "its ceil_mode applies to sizes that are not known"
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


def _flat(op: Any, x: Any) -> Any:
    return op.one_of(("Flatten", "Reshape", "Squeeze"), op.FusedPool(x, label="pool"), ...)


def _flat_check(m: Match) -> str | None:
    pool = m.labels["pool"]
    before, after = (m.graph.spec(v).shape for v in (pool.results[0], m.root.results[0]))
    flat = before is not None and after == before[:2] and set(before[2:]) == {1}
    fits = flat and pool.params.window is None
    return None if fits else unsuited_reason("it does not flatten [N, C, 1, 1] to [N, C]")


def _flatten(m: Match) -> Region:
    """Write ``[N, C, 1, 1]`` as ``[N, C]`` directly."""
    pool = m.labels["pool"]
    params = dataclasses.replace(pool.params, flat=True)
    return fused_region("pool-flatten", params, pool.operands, m.root.results, (pool, m.root))


def _line(op: Any, x: Any) -> Any:
    pool = op.FusedPool(op.Unsqueeze(x, ..., label="lift"), label="pool")
    return op.one_of(("Reshape", "Squeeze"), pool, ...)


def _line_check(m: Match) -> str | None:
    before, after = m.spec("x").shape, m.graph.spec(m.root.results[0]).shape
    if m.labels["pool"].params.window or before is None or len(before) != 3:
        return unsuited_reason("it is not a pool over the whole of one axis")
    lifted = m.graph.spec(m.labels["lift"].results[0]).shape
    lines = lifted in ((*before[:2], 1, before[2]), (*before, 1))
    fits = lines and after == (*before[:2], 1)
    return (
        None
        if fits
        else unsuited_reason("the views around it do not add an axis and remove it again")
    )


def _pool_line(m: Match) -> Region:
    """Match global pooling of ``[N, C, L]`` that is written as a pool of ``[N, C, 1, L]``, the
    form in which newer exporters write adaptive 1-D pooling."""
    lift, pool = m.labels["lift"], m.labels["pool"]
    covered = (lift, pool, m.root)
    return fused_region("pool-unsqueeze", pool.params, lift.operands[:1], m.root.results, covered)


POOL = Rule("pool", (_pooled,), _pool)
POOL_VOLUMES = Rule("pool-volumes", (_pooled,), _pool_volume)
"""The same for targets that pool volumes."""
POOL_FLATTEN = Rule("pool-flatten", (_flat,), _flatten, _flat_check)
POOL_UNSQUEEZE = Rule("pool-unsqueeze", (_line,), _pool_line, _line_check)
