"""Convert nets over volumes (videos, scans) to nets over images, with depth as the batch axis.

Conv(x [1,C,D,H,W], W [O,C,kd,kh,kw])
    ->  FusedLayout(frames, x' [D,C,H,W]); Conv(W' [O,kd·C,kh,kw])
MaxPool, ConvTranspose, Concat, GlobalAveragePool, elementwise  ->  their counterparts over images

A connected group of operators is converted at once, with transposes only at its borders.  All
optimizations of images then apply: blocked layouts, Winograd, epilogues, bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracea_graph.ir import DType
from tracea_graph.passes.convolution.unfold_depth import DepthUnfolder, unfold_region
from tracea_graph.passes.region_helpers import first_value_read_outside
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Conv3dToConv2d"]

_OPSET = 13
"""First opset whose operators take the operands that this rule writes."""


class Conv3dToConv2d:
    """Convert connected 3-D operators to 2-D ones; the batch size must be 1, all extents known.

    Nothing is converted if the target ``convolves_volumes``.
    """

    name = "conv3d-to-conv2d"

    def __init__(self, convolves_volumes: bool = False) -> None:
        self._convolves_volumes = convolves_volumes

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Conv" or graph.opset < _OPSET:
            return
        if self._convolves_volumes and unfold_region(graph, region) is not None:
            why = unsuited_reason("the target's kernels convolve volumes")
            yield Miss(self.name, region.id, why)
            return
        members = _group(graph, region)
        convolutions = [r for r in members if r.op == "Conv"]
        if not convolutions or convolutions[-1].id != region.id:
            why = unsuited_reason("the rule rewrites its group together, from another convolution")
            yield Miss(self.name, region.id, why)
            return
        turned = DepthUnfolder(graph)
        inside = {v for r in members for v in r.writes}
        for value in dict.fromkeys(v for r in members for v in r.operands):
            if _is_volume(graph, value) and value not in inside:
                turned.enter(value)
        for member in members:
            new = unfold_region(graph, member)
            assert new is not None
            turned.take(new)
        for value in (v for r in members for v in r.writes):
            if first_value_read_outside(graph, (value,), members):
                turned.leave(value)
        yield Proposal(
            self.name, tuple(members), tuple(turned.regions), turned.specs, turned.weights,
            step=True,
        )  # fmt: skip


def _is_volume(graph: TileGraph, value: str) -> bool:
    """Return whether a value is one float32 item [1, C, D, H, W] of known extents."""
    if not value or graph.weight(value) is not None:
        return False
    spec = graph.spec(value)
    shape = spec.shape or ()
    known = all(isinstance(d, int) and d > 0 for d in shape)
    return spec.dtype is DType.F32 and len(shape) == 5 and known and shape[0] == 1


def _group(graph: TileGraph, first: Region) -> Sequence[Region]:
    """Return the convertible operators connected to ``first`` by volumes, in graph order."""
    found: dict[str, Region] = {}
    waiting = [first]
    while waiting:
        region = waiting.pop()
        if region.id in found or region.fused or unfold_region(graph, region) is None:
            continue
        found[region.id] = region
        for value in filter(lambda v: _is_volume(graph, v), region.reads):
            source = graph.producer(value)
            if source is not None:
                waiting.append(source)
        for value in filter(lambda v: _is_volume(graph, v), region.writes):
            waiting += [use.region for use in graph.uses(value)]
    return graph.in_order(found.values())
