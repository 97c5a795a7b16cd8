"""Channel shuffles: Reshape, Transpose, Reshape that deal channels of groups out in turn.

[N, C, H, W] -> [N, g, C/g, H, W] -> [N, C/g, g, H, W] -> [N, C, H, W]
"""

from __future__ import annotations

from collections.abc import Iterator

from tracea_graph.ops.moves import MoveParams
from tracea_graph.passes.regions import (
    attribute,
    fused,
    is_f32,
    only_read_by,
    operand_producer,
    same_shape,
    with_feeders,
)
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["LiftShuffle"]

_TURNS = ((0, 2, 1, 3, 4), (0, 2, 1, 3))
"""How the axes of groups and channels change places; the spatial ones may be one."""


class LiftShuffle:
    """One move of a value whose channels are known."""

    name = "shuffle"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Reshape":
            return
        turn = operand_producer(graph, region.operands[0], "Transpose")
        if turn is None or attribute(turn, "perm", ()) not in _TURNS:
            return
        split = operand_producer(graph, turn.operands[0], "Reshape")
        if split is None:
            return
        value = split.operands[0]
        before, parts = (graph.spec(v).shape for v in (value, turn.operands[0]))
        if before is None or parts is None or len(before) != 4 or not is_f32(graph, value):
            return
        channels, groups, each = before[1], parts[1], parts[2]
        if not isinstance(channels, int) or not isinstance(groups, int) or groups < 2:
            return
        if parts[0] != before[0] or each != channels // groups or channels % groups:
            return
        if not same_shape(graph.spec(value), graph.spec(region.results[0])):
            yield Miss(self.name, region.id, f"it does not give the shape of {value!r} back")
            return
        if not only_read_by(graph, turn.operands[0], turn) or not only_read_by(
            graph, region.operands[0], region
        ):
            yield Miss(self.name, region.id, "what lies between its steps is read by others")
            return
        params = MoveParams("shuffle", (groups, channels))
        covered = with_feeders(graph, (split, turn, region), (value,))
        new = fused(self.name, params, (value,), region.results, covered)
        yield Proposal(self.name, tuple(covered), (new,), step=True)
