"""The topological tile graph: regions, and the tiles they expand to."""

from __future__ import annotations

from tracea_graph.ttg.execution_plan import ExecutionPlan, Link, make_plan, make_plans
from tracea_graph.ttg.hand_built_tiles import TTGBuilder
from tracea_graph.ttg.hand_set_tiles import PatternKind, TilePattern
from tracea_graph.ttg.iteration_space import AccessMap, Axis, Dim, IterationSpace, along, whole
from tracea_graph.ttg.loop_nest_model import BoundModel, RegionModel, Work
from tracea_graph.ttg.memory_traffic import MemoryLevel, Staging, level_of
from tracea_graph.ttg.multi_region_tiles import Tiling, tile_regions
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
from tracea_graph.ttg.tile_set import EdgeKind, Reuse, Role, TileMetadata, TileSet, expand

__all__ = [
    "CACHE_FRACTIONS",
    "ORDERS",
    "AccessMap",
    "Axis",
    "BoundModel",
    "Dim",
    "EdgeKind",
    "ExecutionPlan",
    "GraphRenderer",
    "IterationSpace",
    "Link",
    "MemoryLevel",
    "PartitionRules",
    "PatternKind",
    "Region",
    "RegionModel",
    "Reuse",
    "Role",
    "RowReuse",
    "RowReuseOf",
    "RowTiling",
    "Staging",
    "TTGBuilder",
    "TileGraph",
    "TileMetadata",
    "TilePattern",
    "TileSet",
    "Tiling",
    "ValueUse",
    "Work",
    "along",
    "data_edges",
    "dependence_kind",
    "dependences",
    "expand",
    "level_of",
    "make_plan",
    "make_plans",
    "partition_from",
    "row_tiling_of",
    "row_tilings",
    "tile_regions",
    "whole",
]
