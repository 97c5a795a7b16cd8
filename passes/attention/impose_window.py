"""Restrict attention to a window on request: keys outside it are never computed.

FusedAttention(q, k, v)    ->    FusedAttention(q, k, v, window)

This changes what the model computes.  A query whose window holds only masked keys (padding among
padding) returns zeros, since NaN would spread to every query of the next layer through 0 · NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from tracea_graph.config import AttentionWindow
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ImposeWindow"]


@dataclass(frozen=True)
class ImposeWindow:
    """Restrict a self-attention to a requested window.

    If several of ``windows`` select its layer, the last of them applies.
    """

    windows: tuple[AttentionWindow, ...] = ()
    name: str = "impose-window"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, AttentionParams) or params.window or not self.windows:
            return
        layer = _layer(graph, region)
        named = [w for w in self.windows if w.layers is None or layer in range(*w.layers)]
        if not named:
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(f"no window was requested for attention {layer}"),
            )
            return
        queries = params.extents(0, graph.spec(region.operands[0]))[1]
        keys = params.extents(1, graph.spec(region.operands[1]))[1]
        if params.causal == "none" and not equal_as_polynomials(queries, keys):
            reason = f"attention {layer} has {queries} queries and {keys} keys: not self-attention"
            yield Miss(self.name, region.id, reason)
            return
        window, causal = named[-1], params.causal != "none"
        sides = (window.keys - 1, 0) if causal else (window.keys // 2,) * 2
        near = dataclasses.replace(
            params, window=sides, global_keys=window.global_keys,
            zero_rows="masked" if params.zero_rows == "none" else params.zero_rows,
        )  # fmt: skip
        new = fused_region(self.name, near, region.operands, region.results, [region])
        yield Proposal(self.name, (region,), (new,))


def _layer(graph: TileGraph, region: Region) -> int:
    """Return the attention's index in graph order, from 0."""
    order = (r.id for r in graph.regions() if isinstance(r.params, AttentionParams))
    return next(i for i, name in enumerate(order) if name == region.id)
