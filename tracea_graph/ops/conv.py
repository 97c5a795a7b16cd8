"""``FusedConv``: a convolution with an elementwise epilogue.

    acc = conv(x, W) + bias       x [N, C, spatial…], W [O, C/groups, kernel…]
    y   = epilogue(acc, extra…)   an elementwise chain; acc itself without one

An operand of the epilogue is full (the shape of the result), one number per channel (kind ``row``:
``[C, 1, 1]``, ``[N, C, 1, 1]``) or a scalar.

W is stored in a :class:`~tracea_graph.ops.filter_layouts.FilterLayout`; if that has further
arrays, they are the last operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.bf16 import round_bf16
from tracea_graph.ops.chain import COL, Chain
from tracea_graph.ops.conv_windows import ConvWindow, sliding_windows
from tracea_graph.ops.filter_layouts import PLAIN, FilterLayout
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import access_map, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ops.post_ops import post_ops_of
from tracea_graph.ops.window_space import (
    broadcast_access,
    group_channel_index,
    window_axes,
    window_result_shape,
)
from tracea_graph.ttg.iteration_space import Axis, IterationSpace, index_along
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["ConvParams"]

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ConvParams:
    """Parameters of a convolution whose filters are stored in ``layout``.

    Operands: x, W, bias, epilogue inputs, further arrays of W; all but x and W are optional.  The
    layout determines the length of the stored bias.
    """

    channels: int
    filters: int
    window: ConvWindow
    groups: int = 1
    layout: FilterLayout = PLAIN
    bias: bool = False
    epilogue: Chain | None = None

    def __post_init__(self) -> None:
        if min(self.channels, self.filters, self.groups) < 1:
            raise ValueError(f"invalid convolution: {self}")
        if self.channels % self.groups or self.filters % self.groups:
            raise ValueError(f"{self.channels} channels do not split into {self.groups} groups")
        self.layout.check(self.shape, self.groups, self.window)
        if self.epilogue and (
            self.epilogue.operands[:1] != ("full",)
            or len(self.epilogue.results) > 1
            or COL in self.epilogue.operands
        ):
            raise ValueError("an epilogue must start from the full accumulator, with one result")

    @property
    def epilogue_inputs(self) -> int:
        """Number of epilogue operands beyond the accumulator."""
        return len(self.epilogue.operands) - 1 if self.epilogue else 0

    @property
    def operands(self) -> int:
        return 1 + self.layout.operands + self.bias + self.epilogue_inputs

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the plain weights."""
        return (self.filters, self.channels // self.groups, *self.window.kernel)

    @property
    def taps(self) -> int:
        """Multiplications per element of the result."""
        return math.prod(self.shape[1:])

    @property
    def added(self) -> int | None:
        """Index of the operand that the kernel adds to the sum first; None if there is none."""
        add = post_ops_of(self.epilogue).add if self.layout.writes_reordered else None
        return None if add is None else 2 + self.bias + add

    def split(self, items: Sequence[Any]) -> tuple[Any, Any, Any | None, Sequence[Any]]:
        """Return operands by role: x, W, bias or None, epilogue inputs."""
        first = 2 + self.bias
        epilogue_inputs = items[first : first + self.epilogue_inputs]
        return items[0], items[1], items[2] if self.bias else None, epilogue_inputs

    def stored(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the operands that hold W."""
        return (items[1], *items[len(items) - self.layout.operands + 1 :])

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        shape = specs[0].shape
        if shape is None or len(shape) != self.window.rank + 2:
            raise ValueError("the rank of x is unknown or wrong")
        return (TensorSpec(DType.F32, (shape[0], self.filters, *self.window.sizes(shape[2:]))),)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        """Evaluate with NumPy in the operands' precision, with W in this op's layout."""
        if self.layout.rounds and self.added is not None:
            arrays = [round_bf16(a) if i == self.added else a for i, a in enumerate(arrays)]
        x, _, bias, epilogue_inputs = self.split(arrays)
        acc = self.layout.convolve(x, self.stored(arrays), self.shape, self._sums)
        if bias is not None:
            acc = acc + bias[: self.filters].reshape(-1, *(1,) * self.window.rank)
        return self.epilogue.reference([acc, *epilogue_inputs]) if self.epilogue else [acc]

    def _sums(self, x: Floats, plain: Floats) -> Floats:
        inputs = np.split(x, self.groups, 1)
        filters = np.split(plain, self.groups, 0)
        axes = tuple(range(2, x.ndim))
        parts = [
            np.tensordot(
                sliding_windows(part, self.window, 0.0), kernels,
                ((1, *(a + self.window.rank for a in axes)), (1, *axes)),
            )
            for part, kernels in zip(inputs, filters, strict=True)
        ]  # fmt: skip
        return np.moveaxis(np.concatenate(parts, -1), -1, 1)

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        """Cost of the direct convolution; with Winograd, partial tiles count as whole ones."""
        count, m = prod(result), self.layout.side
        if m > 1:
            count *= prod(-(-side // m) * m / max(side, 1.0) for side in result[2:])
        beside = prod(result) * (1 + (self.epilogue.flops if self.epilogue else 0))
        product = 2.0 * count * self.taps / fit.shares[f"FusedConv {self.layout.name}"]
        return OpCost(product, beside, one_pass=True)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        x, _, bias, epilogue_inputs = self.split(b.inputs)
        plain = self.layout.to_onnx(b, self.stored(b.inputs), self.shape)
        if bias is not None and self.layout.biases(self.filters) != self.filters:
            bias = b.slice_last(bias, 0, self.filters, 0)
        acc = b(
            "Conv", x, plain, *([bias] if bias is not None else []),
            kernel_shape=self.window.kernel, strides=self.window.strides,
            dilations=self.window.dilations, pads=self.window.pads, group=self.groups,
        )  # fmt: skip
        return b.done(
            *(self.epilogue.to_onnx(b, (acc, *epilogue_inputs)) if self.epilogue else (acc,))
        )

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model the window that each result reads, and the epilogue inputs at its position."""
        sizes = window_result_shape(graph, region, self.window)
        if sizes is None:
            return None
        batch, (places, taps, seen) = sizes[0], window_axes(self.window)
        extents = (self.groups, self.filters // self.groups, self.channels // self.groups)
        several = self.groups > 1
        outer = (Axis("n", batch), *((Axis("g", extents[0]),) if several else ()))
        space = IterationSpace(
            (
                *outer, Axis("o", extents[1]),
                *(Axis(p, e) for p, e in zip(places, sizes[2:], strict=True)),
                Axis("c", extents[2], True),
                *(Axis(t, e, True) for t, e in zip(taps, self.window.kernel, strict=True)),
            )
        )  # fmt: skip
        made = group_channel_index("o", extents[:2]) if several else index_along("o")
        read = group_channel_index("c", (extents[0], extents[2])) if several else index_along("c")
        x, weight, bias, epilogue_inputs = self.split(region.operands)
        result = (index_along("n"), made, *map(index_along, places))
        reads = [
            access_map(graph, x, (index_along("n"), read, *seen)),
            access_map(
                graph, weight, (made, index_along("c"), *map(index_along, taps)), self.shape
            ),
            *([access_map(graph, bias, (made,), (self.filters,))] if bias else []),
            *(broadcast_access(graph, v, result) for v in epilogue_inputs),
        ]
        writes = [access_map(graph, region.results[0], result)]
        points = (*(a.name for a in outer), "o", *places)
        chain = self.epilogue.flops if self.epilogue else 0
        work = (LoopWork(space.names, 2), LoopWork(points, chain + self.bias))
        depth, groups = ("c", *taps), tuple(a.name for a in outer)
        return region_model(region, space, reads, writes, work, places, ("o",), depth, groups)
