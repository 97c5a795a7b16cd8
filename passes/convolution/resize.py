"""Convert linear, cubic and nearest Resize and Upsample to a step of the surrounding program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracea_graph.ir import Extent
from tracea_graph.ops.resize import COORDINATES, NEAREST, WAYS, ResizeParams
from tracea_graph.passes.layout.layout_ops import read_layout_ops
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule
from tracea_graph.ttg import Region, TileGraph

__all__ = ["RESIZE", "left_to_kernels"]

_COORDINATES_SINCE, _SCALES_SINCE = 11, 9
"""Opsets from which coordinate modes are attributes and scales an operand."""


def _resized(op: Any, x: Any) -> Any:
    return op.one_of(("Resize", "Upsample"), x, ...)


def _resize(m: Match) -> Rewrite | str:
    """Convert a resize; nearest by integer factors is left to ``strided-copy``."""
    mode = attribute(m.root, "mode", "nearest")
    if mode not in ("linear", "bilinear", "cubic", "nearest"):
        return unsuited_reason(f"its mode is {mode}")
    if mode == "nearest" and read_layout_ops(m.graph, m.root) is not None:
        return unsuited_reason(
            "it repeats elements an integer number of times: strided-copy converts it"
        )
    found = _read(m.graph, m.root, str(mode))
    if isinstance(found, str):
        return found
    params, operands = found
    new = fused_region("resize", params, operands, m.root.results, [m.root])
    return Rewrite((new,), step=True)


RESIZE = Rule("resize", (_resized,), _resize)


def left_to_kernels(graph: TileGraph, region: Region) -> bool:
    """Return whether a kernel resizes, or repeats elements, as the operator says."""
    mode = str(attribute(region, "mode", "nearest"))
    if mode == "nearest" and read_layout_ops(graph, region) is not None:
        return True
    return mode in ("linear", "cubic", "nearest") and not isinstance(
        _read(graph, region, mode), str
    )


Found = tuple[ResizeParams, tuple[str, ...]]
"""Parameters and operands of the kernel."""


def _read(graph: TileGraph, region: Region, mode: str) -> Found | str:
    """Return the parameters and operands, or why the kernel does not support the resize."""
    value = region.operands[0]
    before = graph.spec(value).shape
    if before is None or len(before) not in (3, 4) or not isinstance(before[1], int):
        return (
            f"{value!r} is not known to have a constant channel count and one or two spatial axes"
        )
    if not is_f32(graph, value):
        return Reason(f"{value!r} is not float32", Code.UNSUPPORTED_DTYPE)
    if attribute(region, "axes", None) is not None or attribute(region, "antialias", 0):
        return "it sets axes or antialias"
    if attribute(region, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return "its keep_aspect_ratio_policy is not stretch"
    how = _way(graph, region, mode)
    if how not in WAYS:
        return how
    if mode == "cubic" and attribute(region, "exclude_outside", 0):
        return "its exclude_outside is set"
    found = _sized(graph, region, how)
    if isinstance(found, str):
        return found
    if mode == "cubic":
        slope = float(str(attribute(region, "cubic_coeff_a", -0.75)))
        found = replace(found[0], cubic=slope), found[1]
    try:
        found[0].infer([graph.spec(v) for v in found[1]])
    except ValueError as error:
        return str(error)
    return found


def _way(graph: TileGraph, region: Region, mode: str) -> str:
    """Return one of ``WAYS``, or why the mode is none of them."""
    old = _is_old(graph, region)
    how = attribute(region, "coordinate_transformation_mode", "half_pixel")
    how = "asymmetric" if old else str(how)
    if mode == "nearest":
        rounding = "floor" if old else attribute(region, "nearest_mode", "round_prefer_floor")
        if (how, rounding) == ("asymmetric", "floor"):
            return NEAREST
        return f"no kernel has mode nearest with {how} coordinates and {rounding} rounding"
    return how if how in COORDINATES else f"no kernel maps coordinates by {how}"


def _is_old(graph: TileGraph, region: Region) -> bool:
    return region.op == "Upsample" or graph.opset < _COORDINATES_SINCE


def _sized(graph: TileGraph, region: Region, how: str) -> Found | str:
    """Resize by constant scales, to constant sizes, or to the sizes of another value."""
    value = region.operands[0]
    before, after = (graph.spec(v).shape for v in (value, region.results[0]))
    scales = _scales(graph, region, _is_old(graph, region))
    if scales is not None:
        if scales[:2] != (1.0, 1.0) or min(scales) <= 0:
            return "it resizes the batch or channel axis"
        return ResizeParams(how, scales=scales[2:]), (value,)
    if before is None or after is None or len(after) != len(before):
        return "its sizes are computed"
    if after[:2] != before[:2]:
        return "it resizes the batch or channel axis"
    if all(isinstance(d, int) for d in after[2:]):
        return ResizeParams(how, sizes=_numbers(after[2:])), (value,)
    if (model := _of_that_size(graph, region, after)) is None:
        return "its sizes are computed, and no other value is known to have them"
    return ResizeParams(how, like=True), (value, model)


def _of_that_size(graph: TileGraph, region: Region, shape: Sequence[Extent]) -> str | None:
    """Return a value with the result's height and width for all symbols, or None.

    Prefers a value that the result is combined with: a program then infers that both agree.  Else
    it is a graph input.
    """
    beside = (v for reader in graph.readers(region) for v in reader.reads)
    for value in dict.fromkeys((*beside, *graph.inputs)):
        spec = graph.spec(value)
        same = spec.rank == len(shape) and (spec.shape or ())[2:] == shape[2:]
        if same and is_f32(graph, value) and not _follows(graph, value, region):
            return value
    return None


def _follows(graph: TileGraph, value: str, region: Region) -> bool:
    """Return whether a value depends on a region's result."""
    seen, waiting = set[str](), [graph.producer(value)]
    while waiting:
        made = waiting.pop()
        if made is None or made.id in seen:
            continue
        if made.id == region.id:
            return True
        seen.add(made.id)
        waiting += graph.sources(made)
    return False


def _numbers(dims: tuple[Extent, ...]) -> tuple[int, ...]:
    return tuple(d for d in dims if isinstance(d, int) and d > 0)


def _scales(graph: TileGraph, region: Region, old: bool) -> tuple[float, ...] | None:
    """Return the scale factors of all axes if they are constant."""
    given = attribute(region, "scales", None)
    if isinstance(given, tuple):
        return tuple(float(np.float32(s)) for s in given)
    at = 1 if old else 2
    weight = graph.weight(region.operands[at]) if len(region.operands) > at else None
    if weight is None or weight.count != graph.spec(region.operands[0]).rank:
        return None
    return tuple(float(s) for s in weight.array().reshape(-1))
