"""Propose rewrites of attention that read keys and values as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracea_graph.ops.attention import AttentionParams
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["proposals_for_float_keys"]

Build = Callable[[TileGraph, Region, AttentionParams], Proposal]


def proposals_for_float_keys(
    rule: str, build: Build, graph: TileGraph, region: Region
) -> Iterator[Proposal | Miss]:  # fmt: skip
    """Yield what ``build`` makes of an attention whose keys are float32, or why nothing."""
    params = region.params
    if not isinstance(params, AttentionParams) or params.stored != "f32" or params.in_bf16:
        return
    try:
        yield build(graph, region, params)
    except NoMatch as why:
        yield Miss(rule, region.id, why.args[0])
