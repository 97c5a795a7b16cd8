"""Convert layer normalisation over the channels of ``[N, C, H, W]``, as in ConvNeXt.

    mean, variance over axis 1        ->    Transpose, FusedNorm over the last axis, Transpose

Inside a program of convolutions the transposes turn into reads and writes of the blocked layout.
``image_norms`` defines the match, and converts norms of other ranks and weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracea_graph.ir import Array, DType, Node, TensorSpec, Weight
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.passes.pointwise.decomposed_activations import LAYER_NORMS
from tracea_graph.passes.pointwise.image_norms import is_over_channels, why_not_over_channels
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.rewrite import Match, Miss, Proposal, constant_number, match
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ChannelNorm"]

_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class ChannelNorm:
    """Match a decomposed layer normalisation whose means are over axis 1 of four."""

    name = "channel-norm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in ("Add", "Mul", "Div"):
            return
        for pattern in LAYER_NORMS:
            found = match(pattern, graph, region)
            if isinstance(found, Match) and found.spec("x").rank == 4 and is_over_channels(found):
                reason = self._check(found)
                yield Miss(self.name, region.id, reason) if reason else self._build(found)
                return

    def _check(self, m: Match) -> str | None:
        if (reason := why_not_over_channels(m)) is not None:
            return reason
        varying = [
            n for n in ("gamma", "beta") if n in m.values and not m.graph.weight(m.values[n])
        ]
        return f"{varying[0]} is not a constant with one number per channel" if varying else None

    def _build(self, m: Match) -> Proposal:
        graph, result = m.graph, m.root.results[0]
        spec = m.spec("x")
        shape = spec.shape or ()
        turned = TensorSpec(DType.F32, tuple(shape[a] for a in _LAST))
        affine = [_vector(graph.weights[m.values[n]]) for n in ("gamma", "beta") if n in m.values]
        epsilon = constant_number(graph, m.values["epsilon"]) or 0.0
        params = NormParams(Norm("layer", epsilon, "gamma" in m.values, "beta" in m.values))
        before, after = f"{result}_last", f"{result}_normed"
        operands = (before, *(w.name for w in affine))
        new = (
            _transpose(m.values["x"], before, _LAST),
            fused_region(self.name, params, operands, (after,), m.covered),
            _transpose(after, result, _FIRST),
        )
        specs = {before: turned, after: turned}
        return Proposal(self.name, m.covered, new, specs, {w.name: w for w in affine})


def _vector(weight: Weight) -> Weight:
    def load() -> Array:
        return np.asarray(weight.load(), np.float32).reshape(-1)

    return Weight(f"{weight.name}_vector", DType.F32, (weight.count,), load)


def _transpose(source: str, result: str, perm: tuple[int, ...]) -> Region:
    node = Node("Transpose", (source,), (result,), {"perm": perm})
    return Region(f"transpose:{result}", "Transpose", node.inputs, node.outputs, (node,))
