"""Row tiling of programs: row reuse of each op's kernel, and plans for a program's steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tracea_graph.ops.block_quantized import BlockQuantized
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RowTile
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.region_subgraph import Subgraph
from tracea_graph.ops.weight_layouts import NK
from tracea_graph.ttg import (
    ExecutionPlan,
    MemoryLevel,
    Region,
    RowReuse,
    RowTiling,
    make_execution_plan,
    make_execution_plans,
    row_tiling_of,
)

__all__ = [
    "plan_subgraph",
    "plan_subgraph_by_size",
    "row_reuse_of_step",
    "row_tiles_of",
    "row_tilings_in",
]

_COLUMNS = 48
"""Columns of a product computed per pass of its kernel over all rows."""
_ROWS = 16
"""Rows of a product that amortize loading a strip of its weights."""


def row_reuse_of_step(step: Region) -> RowReuse | None:
    """Return how a step's kernel reuses the rows it reads; None if it cannot be tiled by rows.

    A matrix product passes over its rows once per register tile of columns.  A convolution tiles
    its input itself, and counts as one pass.
    """
    params = step.params
    if isinstance(params, GemmParams):
        tiled = params.layout != NK and not isinstance(params.layout, BlockQuantized)
        return RowReuse(-(-params.n // _COLUMNS), _ROWS) if tiled else None
    if isinstance(params, ConvParams):
        return RowReuse(granularity=params.layout.side) if params.layout.reads_reordered else None
    return RowReuse() if isinstance(params, (ElementwiseParams, NormParams)) else None


def plan_subgraph(
    subgraph: Subgraph, sizes: Mapping[str, int], levels: Sequence[MemoryLevel]
) -> ExecutionPlan:
    """Plan row tiles, memory levels and scratch memory for the steps of a program."""
    return make_execution_plan(subgraph, sizes, levels, row_reuse_of_step)


def plan_subgraph_by_size(
    subgraph: Subgraph,
    sizes: Mapping[str, int],
    levels: Sequence[MemoryLevel],
    cache_fractions: Iterable[float],
) -> Iterator[ExecutionPlan]:
    """Yield :func:`plan_subgraph` for each cache fraction."""
    return make_execution_plans(subgraph, sizes, levels, row_reuse_of_step, cache_fractions)


def row_tiles_of(subgraph: Subgraph, plan: ExecutionPlan) -> tuple[RowTile, ...]:
    """Return the row tilings of a plan as the step ranges that a program stores."""
    place = {step.id: i for i, step in enumerate(subgraph.steps)}
    return tuple(
        RowTile(place[b.regions[0]], place[b.regions[-1]], b.rows) for b in plan.row_tilings
    )


def row_tilings_in(
    subgraph: Subgraph, params: RegionParams, sizes: Mapping[str, int], near: MemoryLevel
) -> Sequence[RowTiling]:
    """Return the row tilings of a program, with the bytes that each saves and streams."""
    found = (
        row_tiling_of(
            subgraph, subgraph.steps[b.first : b.last + 1], sizes, b.rows, near, row_reuse_of_step
        )
        for b in params.row_tiles
    )
    return [tiling for tiling in found if tiling is not None]
