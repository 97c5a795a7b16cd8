"""Layer normalisation over the channels of ``[N, C, H, W]``, as ConvNeXt spells it.

    mean, variance over axis 1        ->    Transpose, FusedNorm over the last axis, Transpose

Inside a program of convolutions the transposes are how blocked values are read and written.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracea_graph.ir import Array, DType, Node, TensorSpec, Weight
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.passes.recognise import LAYER_NORMS
from tracea_graph.passes.regions import attribute, fused, is_f32
from tracea_graph.rewrite import Match, Miss, Proposal, constant_number, match
from tracea_graph.ttg import Region, TileGraph

__all__ = ["RecogniseChannelNorm"]

_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class RecogniseChannelNorm:
    """A spelled-out layer normalisation whose means are over axis 1 of four."""

    name = "channel-norm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in ("Add", "Mul", "Div"):
            return
        for pattern in LAYER_NORMS:
            found = match(pattern, graph, region)
            if isinstance(found, Match) and self._over_channels(found):
                reason = self._check(found)
                yield Miss(self.name, region.id, reason) if reason else self._build(found)
                return

    def _over_channels(self, m: Match) -> bool:
        means = [r for r in m.covered if r.op == "ReduceMean"]
        return m.spec("x").rank == 4 and all(
            _axes(m.graph, mean) in ((1,), (-3,)) for mean in means
        )

    def _check(self, m: Match) -> str | None:
        channels = (m.spec("x").shape or (0, 0))[1]
        if not is_f32(m.graph, *m.values.values()):
            return "not all operands are float32"
        if constant_number(m.graph, m.values["epsilon"]) is None:
            return "epsilon is not a constant"
        for name in ("gamma", "beta"):
            weight = m.graph.weight(m.values[name]) if name in m.values else None
            if name in m.values and (weight is None or weight.shape[-3:] != (channels, 1, 1)):
                return f"{name} is not one constant per channel"
        return None

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
            fused(self.name, params, operands, (after,), m.covered),
            _transpose(after, result, _FIRST),
        )
        specs = {before: turned, after: turned}
        return Proposal(self.name, m.covered, new, specs, {w.name: w for w in affine})


def _axes(graph: TileGraph, mean: Region) -> object:
    axes = attribute(mean, "axes", None)
    if axes is None and len(mean.operands) > 1 and (w := graph.weight(mean.operands[1])):
        axes = tuple(int(a) for a in w.array().reshape(-1))
    return axes if attribute(mean, "keepdims", 1) == 1 else None


def _vector(weight: Weight) -> Weight:
    def load() -> Array:
        return np.asarray(weight.load(), np.float32).reshape(-1)

    return Weight(f"{weight.name}_vector", DType.F32, (weight.count,), load)


def _transpose(source: str, result: str, perm: tuple[int, ...]) -> Region:
    node = Node("Transpose", (source,), (result,), {"perm": perm})
    return Region(f"transpose:{result}", "Transpose", node.inputs, node.outputs, (node,))
