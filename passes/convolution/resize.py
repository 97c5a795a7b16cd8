"""Resize and Upsample that blend neighbours: a step of the program around them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracea_graph.ir import Extent
from tracea_graph.ops.resize import COORDINATES, ResizeParams
from tracea_graph.passes.regions import attribute, fused, is_f32
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["LiftResize"]

_COORDINATES_SINCE, _SCALES_SINCE = 11, 9
"""Opsets that first let coordinates be chosen, and scales be an operand."""


class LiftResize:
    """Linear Resize and Upsample of the two spatial axes."""

    name = "resize"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or region.op not in ("Resize", "Upsample"):
            return
        if attribute(region, "mode", "nearest") not in ("linear", "bilinear"):
            return
        found = _read(graph, region)
        if isinstance(found, ResizeParams):
            new = fused(self.name, found, region.operands[:1], region.results, [region])
            yield Proposal(self.name, (region,), (new,), step=True)
        else:
            yield Miss(self.name, region.id, found)


def _read(graph: TileGraph, region: Region) -> ResizeParams | str:
    """The parameters, or a reason why there are none."""
    value = region.operands[0]
    before, after = (graph.spec(v).shape for v in (value, region.results[0]))
    if before is None or len(before) != 4 or not isinstance(before[1], int):
        return f"{value!r} is not known to have so many channels and two spatial axes"
    if not is_f32(graph, value):
        return f"{value!r} is not float32"
    if attribute(region, "axes", None) is not None or attribute(region, "antialias", 0):
        return "it names axes, or smooths"
    if attribute(region, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return "it keeps the aspect ratio"
    old = region.op == "Upsample" or graph.opset < _COORDINATES_SINCE
    how = attribute(region, "coordinate_transformation_mode", "half_pixel")
    how = "asymmetric" if old else str(how)
    if how not in COORDINATES:
        return f"coordinates are mapped by {how}"
    scales = _scales(graph, region, old)
    if scales is not None:
        if scales[:2] != (1.0, 1.0) or min(scales) <= 0:
            return "it resizes images or channels"
        params = ResizeParams(how, scales=scales[2:])
    elif after is None or len(after) != 4 or not all(isinstance(d, int) for d in after[2:]):
        return "its sizes are computed"
    elif after[:2] != before[:2]:
        return "it resizes images or channels"
    else:
        params = ResizeParams(how, sizes=_numbers(after[2:]))
    try:
        params.infer([graph.spec(value)])
    except ValueError as error:
        return str(error)
    return params


def _numbers(dims: tuple[Extent, ...]) -> tuple[int, ...]:
    return tuple(d for d in dims if isinstance(d, int) and d > 0)


def _scales(graph: TileGraph, region: Region, old: bool) -> tuple[float, ...] | None:
    """The factors of all axes, if they are constants."""
    given = attribute(region, "scales", None)
    if isinstance(given, tuple):
        return tuple(float(np.float32(s)) for s in given)
    at = 1 if old else 2
    weight = graph.weight(region.operands[at]) if len(region.operands) > at else None
    if weight is None or weight.count != 4:
        return None
    return tuple(float(s) for s in weight.array().reshape(-1))
