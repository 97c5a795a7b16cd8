"""Match channel shuffles: Reshape, Transpose, Reshape that interleave the channels of groups.

[N, C, H, W] -> [N, g, C/g, H, W] -> [N, C/g, g, H, W] -> [N, C, H, W]
[N, C, H, W] -> [N·C/p, p, H·W] -> [p, N·C/p, H·W] -> [p, N, C/p, H, W] -> Gather of each part
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    is_f32,
    only_read_by,
    operand_producer,
    same_shape,
    with_private_producers,
)
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Match, Miss, Proposal, Rewrite, Rule
from tracea_graph.ttg import Region, TileGraph

__all__ = ["CHANNEL_SHUFFLE", "DeinterleaveChannels"]

_GROUP_PERMS = ((0, 2, 1, 3, 4), (0, 2, 1, 3))
"""Permutations that swap groups and channels, with one or two spatial axes behind them."""


def _transposed_groups(op: Any, x: Any) -> Any:
    split = op.Reshape(x, ..., label="split")
    return op.Reshape(op.Transpose(split, label="transpose"), ...)


def _shuffle_check(m: Match) -> str | None:
    transpose, before = m.labels["transpose"], m.spec("x").shape
    parts = m.graph.spec(transpose.operands[0]).shape
    if attribute(transpose, "perm", ()) not in _GROUP_PERMS or not is_f32(m.graph, m.values["x"]):
        return unsuited_reason(
            "its Transpose does not swap groups and channels of a float32 value"
        )
    if before is None or parts is None or len(before) != 4:
        return unsuited_reason("its input is not known to be an image")
    channels, groups, each = before[1], parts[1], parts[2]
    if not isinstance(channels, int) or not isinstance(groups, int) or groups < 2:
        return unsuited_reason("the number of its channels or groups is not known")
    if parts[0] != before[0] or each != channels // groups or channels % groups:
        return unsuited_reason("it does not split the channels into equal groups")
    if not same_shape(m.spec("x"), m.graph.spec(m.root.results[0])):
        return f"its result does not have the shape of {m.values['x']!r}"
    return None


def _shuffle(m: Match) -> Rewrite:
    """Replace the operators by one shuffle, if the channels are known."""
    split, transpose, value = m.labels["split"], m.labels["transpose"], m.values["x"]
    before, parts = m.spec("x").shape or (), m.graph.spec(transpose.operands[0]).shape or ()
    groups, channels = parts[1], before[1]
    assert isinstance(groups, int) and isinstance(channels, int)
    params = LayoutParams("shuffle", (groups, channels))
    covered = with_private_producers(m.graph, (split, transpose, m.root), (value,))
    new = fused_region("channel-shuffle", params, (value,), m.root.results, covered)
    return Rewrite((new,), tuple(covered), step=True)


CHANNEL_SHUFFLE = Rule("channel-shuffle", (_transposed_groups,), _shuffle, _shuffle_check)


class DeinterleaveChannels:
    """Replace p strided slices of the channels by one shuffle and p contiguous slices."""

    name = "deinterleave-channels"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Gather" or attribute(region, "axis", 0) != 0:
            return
        stack = operand_producer(graph, region.operands[0], "Reshape")
        transpose = stack and operand_producer(graph, stack.operands[0], "Transpose")
        split = transpose and operand_producer(graph, transpose.operands[0], "Reshape")
        if stack is None or transpose is None or split is None:
            why = unsuited_reason("its input does not come from Reshape, Transpose, Reshape")
            yield Miss(self.name, region.id, why)
            return
        if attribute(transpose, "perm", ()) != (1, 0, 2):
            why = unsuited_reason("the transpose before it does not interleave channels")
            yield Miss(self.name, region.id, why)
            return
        value, piles = split.operands[0], region.operands[0]
        before, parts, after = (
            graph.spec(v).shape for v in (value, transpose.operands[0], stack.results[0])
        )
        if before is None or len(before) != 4 or parts is None or not is_f32(graph, value):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason("its input is not known to be a float32 image"),
            )
            return
        count, channels = parts[1], before[1]
        if not isinstance(count, int) or not isinstance(channels, int) or channels % count:
            why = unsuited_reason("the number of groups is not known to divide the channels")
            yield Miss(self.name, region.id, why)
            return
        each = channels // count
        if after != (count, before[0], each, *before[2:]) or graph.is_output(piles):
            why = unsuited_reason("its groups are not the channels of an image")
            yield Miss(self.name, region.id, why)
            return
        readers = graph.in_order(u.region for u in graph.uses(piles))
        chosen = [_pile(graph, r, count) for r in readers]
        if readers[-1].id != region.id or None in chosen:
            why = unsuited_reason(
                "not every reader selects one group, or another reader was rewritten first"
            )
            yield Miss(self.name, region.id, why)
            return
        between = (transpose.operands[0], stack.operands[0])
        if not all(map(only_read_by, (graph, graph), between, (transpose, stack))):
            yield Miss(
                self.name,
                region.id,
                Reason(
                    "an intermediate value of the shuffle has other readers", Code.OTHER_READERS
                ),
            )
            return
        covered = with_private_producers(graph, (split, transpose, stack, *readers), (value,))
        yield self._proposal(value, piles, before, each, covered, readers, chosen)

    def _proposal(
        self, value: str, piles: str, before: Sequence[Extent], each: int,
        covered: Sequence[Region], readers: Sequence[Region], chosen: Sequence[int | None],
    ) -> Proposal:  # fmt: skip
        whole = f"{piles}.shuffled"
        channels = before[1]
        assert isinstance(channels, int)
        params = LayoutParams("shuffle", (each, channels))
        new = [fused_region(self.name, params, (value,), (whole,), covered)]
        for reader, at in zip(readers, chosen, strict=True):
            assert at is not None
            part = LayoutParams("channels", (at * each, (at + 1) * each))
            new.append(fused_region(self.name, part, (whole,), reader.results, (reader,)))
        specs = {whole: TensorSpec(DType.F32, tuple(before))}
        return Proposal(self.name, tuple(covered), tuple(new), specs, step=True)


def _pile(graph: TileGraph, reader: Region, count: int) -> int | None:
    """Return the index of the part that a Gather selects; None for other operators and for
    computed indices."""
    if reader.op != "Gather" or attribute(reader, "axis", 0) != 0:
        return None
    weight = graph.weight(reader.operands[1])
    if weight is None or weight.spec.shape != ():
        return None
    at = int(weight.array())
    return at % count if -count <= at < count else None
