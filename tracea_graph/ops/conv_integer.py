"""``FusedConvInteger``: a convolution of 8-bit integers, channels last, with post-processing.

    acc = patches(x) · W          x [N, spatial…, C], W [K, O]; exact sums
    y   = epilogue(acc, extra…)   an elementwise chain; acc itself without one

A patch holds the elements of x under a window: taps in row-major order, with the channels of a tap
adjacent.  Padding has the value of x's zero point, which adds nothing to a sum.  Columns of W are
filters, K = taps · C / groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.conv_windows import ConvWindow, sliding_windows
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.int8_matmul import MAX_DEPTH, IntegerOperand
from tracea_graph.ops.iteration_space_parts import access_map, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ops.weight_layouts import NK, Floats, WeightLayout
from tracea_graph.ops.window_space import broadcast_access, window_axes
from tracea_graph.ttg.iteration_space import Axis, IterationSpace, index_along
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["ConvIntegerParams"]


@dataclass(frozen=True)
class ConvIntegerParams:
    """Parameters of a convolution of 8-bit integers.

    Operands: x, W, those zero points that ``integers`` declares as operands, epilogue inputs.  W
    is a matrix ``[K, O]`` in ``layout``; the filters of a group are adjacent columns.  Raises
    ValueError if channels or filters do not divide into groups, or if sums may exceed 32 bits.
    """

    channels: int
    filters: int
    window: ConvWindow
    integers: IntegerOperand
    groups: int = 1
    layout: WeightLayout = NK
    epilogue: Chain | None = None

    def __post_init__(self) -> None:
        if self.channels % self.groups or self.filters % self.groups:
            raise ValueError(f"{self.channels} channels, {self.filters} filters: no equal groups")
        self.layout.check(self.k, self.n)
        if self.k > MAX_DEPTH:
            raise ValueError(f"a sum of integers must have at most {MAX_DEPTH} products")
        if self.epilogue and self.epilogue.operands[:1] != ("full",):
            raise ValueError("an epilogue must start from the full accumulator")

    @property
    def k(self) -> int:
        """Number of products in a sum: taps times channels per group."""
        return prod(self.window.kernel) * (self.channels // self.groups)

    @property
    def n(self) -> int:
        return self.filters

    @property
    def epilogue_inputs(self) -> int:
        """Number of epilogue operands beyond the accumulator."""
        return len(self.epilogue.operands) - 1 if self.epilogue else 0

    @property
    def first(self) -> int:
        """Number of operands before those of the epilogue: x, W and zero points."""
        return 2 + self.integers.operands

    @property
    def operands(self) -> int:
        return self.first + self.epilogue_inputs

    @property
    def _integers(self) -> IntegerOperand:
        """How the operands are multiplied; a layout may hold the filters' zero points itself."""
        return replace(self.integers, own_zeros=self.integers.own_zeros or self.layout.own_zeros)

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the shape ``[N, positions…, O]``; raises ValueError for a wrong rank."""
        shape = specs[0].shape
        if shape is None or len(shape) != self.window.rank + 2:
            raise ValueError("the rank of x is unknown, or does not match the window")
        made = (shape[0], *self.window.sizes(shape[1:-1]), self.filters)
        types = self.epilogue.result_types if self.epilogue else (DType.F32,)
        return tuple(TensorSpec(dtype, made) for dtype in types)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        """Evaluate with NumPy in float64, where these sums of integers are exact."""
        acc = self.sums(arrays[0], arrays[1:2], arrays[2 : self.first])
        return self.epilogue.reference([acc, *arrays[self.first :]]) if self.epilogue else [acc]

    def sums(
        self, x: npt.NDArray[Any], stored: Sequence[Floats], zeros: Sequence[Floats]
    ) -> Floats:
        """Return the exact sums, from W in this op's layout."""
        matrix, with_it = self.layout.integers(stored, self.k, self.n)
        zeros = (*zeros, *([] if with_it is None else [with_it]))
        given, own = self._integers.split(zeros)
        zero = float(self.integers.zero or 0) if given is None else float(np.reshape(given, ()))
        first = np.moveaxis(np.asarray(x, np.float64), -1, 1)
        seen = sliding_windows(first, self.window, zero)
        # [N, C, positions…, kernel…] -> [N, positions…, kernel…, C]
        rows, made = np.moveaxis(seen, 1, -1), []
        each, depth = self.filters // self.groups, self.channels // self.groups
        for group in range(self.groups):
            columns = slice(group * each, (group + 1) * each)
            part = rows[..., group * depth : (group + 1) * depth]
            left = part.reshape(*part.shape[: 1 + self.window.rank], self.k)
            own_zeros = () if own is None else (own[columns],)
            shared = () if given is None else (given,)
            product = self._integers.product(left, matrix[:, columns], (*shared, *own_zeros))
            made.append(product)
        return np.concatenate(made, -1)

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        count = prod(result)
        beside = count * (1 + (self.epilogue.flops if self.epilogue else 0))
        product = 2.0 * count * self.k / fit.shares["FusedGemm int8"]
        return OpCost(product, beside, one_pass=True)

    def body(self, opset: int) -> Body:
        """Write ConvInteger between transposes; a float32 Conv if filters have zero points, and
        before opset 10."""
        b = BodyBuilder(self.operands, opset)
        rank = self.window.rank
        x = b("Transpose", b.inputs[0], perm=(0, rank + 1, *range(1, rank + 1)))
        name, column_zeros = self.layout.integers_to_onnx(b, b.inputs[1:2], self.k, self.n)
        turned = b("Transpose", name, perm=(1, 0))
        shape = (-1, *self.window.kernel, self.channels // self.groups)
        filters = b("Transpose", b("Reshape", turned, b.ints(*shape)),
                    perm=(0, rank + 1, *range(1, rank + 1)))  # fmt: skip
        zeros = (*b.inputs[2 : self.first], *filter(None, (column_zeros,)))
        given, own_name = self._integers.split(zeros)
        if given is None:
            kind = np.uint8 if self.integers.dtype is DType.U8 else np.int8
            given = b("Constant", value=np.asarray(self.integers.zero, kind))
        attrs: dict[str, Any] = {
            "kernel_shape": self.window.kernel, "strides": self.window.strides,
            "dilations": self.window.dilations, "pads": self.window.pads, "group": self.groups,
        }  # fmt: skip
        if own_name is None and opset >= 10:
            acc = b("Cast", b("ConvInteger", x, filters, given, **attrs), to=DType.F32.onnx)
        else:
            own = [b("Reshape", own_name, b.ints(-1, *(1,) * (rank + 1)))] if own_name else []
            numbers = [b("Cast", v, to=DType.F32.onnx) for v in (x, given, filters, *own)]
            left = b("Sub", *numbers[:2])
            acc = b("Conv", left, b("Sub", *numbers[2:]) if own else numbers[2], **attrs)
        acc = b("Transpose", acc, perm=(0, *range(2, rank + 2), 1))
        done = self.epilogue.to_onnx(b, (acc, *b.inputs[self.first :])) if self.epilogue else [acc]
        return b.done(*done)

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model the window each result reads; filters are described by their logical shape."""
        shape, made = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
        if shape is None or made is None or len(shape) != self.window.rank + 2:
            return None
        places, taps, seen = window_axes(self.window)
        each, depth = self.filters // self.groups, self.channels // self.groups
        outer = (Axis("g", self.groups),) if self.groups > 1 else ()
        spatial = tuple(Axis(p, e) for p, e in zip(places, made[1:-1], strict=True))
        space = IterationSpace(
            (
                Axis("n", made[0]), *spatial, *outer, Axis("o", each), Axis("c", depth, True),
                *(Axis(t, e, True) for t, e in zip(taps, self.window.kernel, strict=True)),
            )
        )  # fmt: skip
        filters = index_along("g", "o", extents=(self.groups, each)) if outer else index_along("o")
        read = index_along("g", "c", extents=(self.groups, depth)) if outer else index_along("c")
        view = (self.filters, *self.window.kernel, depth)
        reads = [
            access_map(graph, region.operands[0], (index_along("n"), *seen, read)),
            access_map(
                graph,
                region.operands[1],
                (filters, *map(index_along, taps), index_along("c")),
                view,
            ),
        ]
        result = (index_along("n"), *map(index_along, places), filters)
        reads += [broadcast_access(graph, v, result) for v in region.operands[self.first :]]
        writes = [access_map(graph, v, result) for v in region.results]
        points = ("n", *places, *(a.name for a in outer), "o")
        chain = self.epilogue.flops if self.epilogue else 0
        work = (LoopWork(space.names, 2), LoopWork(points, chain))
        rows, groups = ("n", *places), tuple(a.name for a in outer)
        return region_model(region, space, reads, writes, work, rows, ("o",), ("c", *taps), groups)
