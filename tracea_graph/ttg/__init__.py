"""The topological tile graph: regions, and the tiles they expand to."""

from __future__ import annotations

from tracea_graph.ttg.execution_plan import (
    ExecutionPlan,
    ValueLink,
    make_execution_plan,
    make_execution_plans,
)
from tracea_graph.ttg.hand_built_tiles import TTGBuilder
from tracea_graph.ttg.hand_set_tiles import PatternKind, TilePattern
from tracea_graph.ttg.iteration_space import (
    AccessMap,
    Axis,
    DimIndex,
    IterationSpace,
    index_along,
    index_whole,
)
from tracea_graph.ttg.loop_nest_model import BoundModel, LoopWork, RegionModel
from tracea_graph.ttg.memory_traffic import MemoryLevel, StagedRegions, innermost_level
from tracea_graph.ttg.multi_region_tiles import RegionTiles, tile_regions
from tracea_graph.ttg.program_partition import PartitionRules, partition_from
from tracea_graph.ttg.region_graph import GraphRenderer, Region, TileGraph, ValueUse
from tracea_graph.ttg.row_tiling import (
    CACHE_FRACTIONS,
    RowReuse,
    RowReuseOf,
    RowTiling,
    row_tiling_of,
    row_tilings,
)
from tracea_graph.ttg.tile_dependences import data_edges, dependence_kind, dependences
from tracea_graph.ttg.tile_orders import ORDERS
from tracea_graph.ttg.tile_set import (
    EdgeKind,
    TileMetadata,
    TileReuse,
    TileRole,
    TileSet,
    expand_tiles,
)

__all__ = [
    "CACHE_FRACTIONS",
    "ORDERS",
    "AccessMap",
    "Axis",
    "BoundModel",
    "DimIndex",
    "EdgeKind",
    "ExecutionPlan",
    "GraphRenderer",
    "IterationSpace",
    "LoopWork",
    "MemoryLevel",
    "PartitionRules",
    "PatternKind",
    "Region",
    "RegionModel",
    "RegionTiles",
    "RowReuse",
    "RowReuseOf",
    "RowTiling",
    "StagedRegions",
    "TTGBuilder",
    "TileGraph",
    "TileMetadata",
    "TilePattern",
    "TileReuse",
    "TileRole",
    "TileSet",
    "ValueLink",
    "ValueUse",
    "data_edges",
    "dependence_kind",
    "dependences",
    "expand_tiles",
    "index_along",
    "index_whole",
    "innermost_level",
    "make_execution_plan",
    "make_execution_plans",
    "partition_from",
    "row_tiling_of",
    "row_tilings",
    "tile_regions",
]
