"""What is known of words and their kernels when steps of a program run in bands of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.inside import Inside
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.region import RegionParams, RowBand
from tracea_graph.ops.weights import NK
from tracea_graph.ttg import Band, MemoryLevel, Plan, Region, Walk, band_of, make_plan, make_plans

__all__ = ["bands_in", "plan_inside", "plans_inside", "row_bands", "walks"]

_COLUMNS = 48
"""Columns of a product that are made while its kernel goes through all rows once."""
_ROWS = 16
"""Rows of a product that make good use of a strip of its weights."""


def walks(step: Region) -> Walk | None:
    """How a step's kernel goes through the rows it reads; None where it cannot take turns.

    Products go through their rows once for every register tile's width of columns;
    convolutions cut what they read into bands of their own.
    """
    params = step.params
    if isinstance(params, GemmParams):
        return Walk(-(-params.n // _COLUMNS), _ROWS) if params.layout != NK else None
    if isinstance(params, ConvParams):
        return Walk(together=params.layout.side) if params.layout.reads_reordered else None
    return Walk() if isinstance(params, (ElementwiseParams, NormParams)) else None


def plan_inside(inside: Inside, sizes: Mapping[str, int], levels: Sequence[MemoryLevel]) -> Plan:
    """How a program is to run: its steps' turns, levels and memory."""
    return make_plan(inside, sizes, levels, walks)


def plans_inside(
    inside: Inside, sizes: Mapping[str, int], levels: Sequence[MemoryLevel], rooms: Iterable[float]
) -> Iterator[Plan]:
    """The same for one ``room`` of a turn after another."""
    return make_plans(inside, sizes, levels, walks, rooms)


def row_bands(inside: Inside, plan: Plan) -> tuple[RowBand, ...]:
    """The turns of a plan as a program stores them."""
    place = {step.id: i for i, step in enumerate(inside.steps)}
    return tuple(RowBand(place[b.regions[0]], place[b.regions[-1]], b.rows) for b in plan.bands)


def bands_in(
    inside: Inside, params: RegionParams, sizes: Mapping[str, int], near: MemoryLevel
) -> Sequence[Band]:
    """What the bands a program has move."""
    found = (
        band_of(inside, inside.steps[b.first : b.last + 1], sizes, b.rows, near, walks)
        for b in params.bands
    )
    return [band for band in found if band is not None]
