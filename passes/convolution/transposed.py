"""Transposed convolutions whose windows do not overlap.

ConvTranspose(x, W, b), kernel = stride    ->    FusedConv 1x1 to kernel² groups, spread

Every result comes from one position: the products of a 1x1 convolution with kernel² times as many
filters, laid side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.filters import BLOCK, pack_filters, stored_shape
from tracea_graph.ops.moves import MoveParams
from tracea_graph.ops.windows import Window
from tracea_graph.passes.convolution.windows import read_window
from tracea_graph.passes.products.storage import is_shared
from tracea_graph.passes.regions import attribute, fused, is_f32
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["LiftTransposed"]


@dataclass(frozen=True)
class LiftTransposed:
    """A transposed convolution over square windows as far apart as they are large."""

    plain: bool = False
    name: str = "conv-transposed"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "ConvTranspose" or self.plain:
            return
        reason = self._check(graph, region)
        yield Miss(self.name, region.id, reason) if reason else self._build(graph, region)

    def _check(self, graph: TileGraph, region: Region) -> str | None:
        x, w, *rest = region.operands
        weights = [graph.weight(v) for v in (w, *rest) if v]
        shape = graph.spec(x).shape
        if any(one is None for one in weights) or not is_f32(graph, *region.reads):
            return "its filters or bias are not constant float32"
        if shape is None or len(shape) != 4 or shape[1] != graph.weights[w].shape[0]:
            return "its input is not known to have two axes and so many channels"
        kernel = graph.weights[w].shape[2:]
        window = read_window(region, kernel, shape[2:])
        extra = attribute(region, "output_padding", ())
        if isinstance(window, str) or attribute(region, "output_shape", ()):
            return "its result has a size of its own"
        if window.strides != kernel or window.padded or set(window.dilations) != {1}:
            return "its windows overlap, leave gaps or are cut"
        if isinstance(extra, tuple) and any(extra):
            return "its result has a size of its own"
        if kernel[0] != kernel[1] or attribute(region, "group", 1) != 1:
            return "its windows are not square, or it has groups"
        if graph.weights[w].shape[1] % BLOCK or is_shared(graph, w, ("ConvTranspose",)):
            return "its filters are no whole blocks, or others need them as they are"
        return None

    def _build(self, graph: TileGraph, region: Region) -> Proposal:
        x, w, *rest = region.operands
        weight, result = graph.weights[w], region.results[0]
        channels, filters, side, _ = weight.shape
        count = filters * side * side
        layout = "blocked"
        shape = (count, channels, 1, 1)

        def load() -> Array:
            plain = np.asarray(weight.load(), np.float32).transpose(2, 3, 1, 0)
            return pack_filters(plain.reshape(shape), layout)

        packed = Weight(f"{w}_spread", DType.F32, stored_shape(layout, shape), load)
        weights = {packed.name: packed}
        operands = [x, packed.name]
        if rest and rest[0]:
            bias = graph.weights[rest[0]]
            repeated = Weight(
                f"{rest[0]}_spread", DType.F32, (count,),
                lambda: np.tile(np.asarray(bias.load(), np.float32), side * side),
            )  # fmt: skip
            weights[repeated.name] = repeated
            operands.append(repeated.name)
        params = ConvParams(channels, count, Window.unit((1, 1)), 1, layout, len(operands) > 2)
        deep = f"{result}_deep"
        spec = params.infer([graph.spec(x)])[0]
        conv = fused(self.name, params, operands, (deep,), [region])
        spread = fused(self.name, MoveParams("spread", (side,)), (deep,), (result,), [])
        new = (spread, conv)
        return Proposal(self.name, (region,), new, {deep: spec}, weights, step=True)
