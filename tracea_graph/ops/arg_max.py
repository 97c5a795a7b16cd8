"""``FusedArg``: ArgMax or ArgMin along an axis, with an elementwise prologue.

    s = prologue(a, b, …)          (the operand itself without a prologue)
    y = the first index of max(s) or min(s) along the axis, or with ``select_last`` the last one

NaN behaves as in ONNX Runtime, which scans the elements in order and takes those that compare
greater (smaller): a NaN in the first position is kept, any other NaN is never taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.along_axis import AlongAxis
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import aligned_access, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import Axis, IterationSpace
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["ARGS", "MAX_LENGTH", "ArgParams"]

ARGS = {"max": "ArgMax", "min": "ArgMin"}
"""ONNX operator of each kind."""
MAX_LENGTH = 2**31 - 1
"""Maximum number of elements along the axis: kernels count in 32 bits."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ArgParams(AlongAxis):
    """Parameters of an arg-max or arg-min along one axis, with an int64 result.

    The operands are those of the prologue, or x without a prologue.  ``axis`` counts from the end.
    """

    kind: str
    axis: int
    keepdims: bool = True
    select_last: bool = False
    prologue: Chain | None = None

    def __post_init__(self) -> None:
        if self.kind not in ARGS:
            raise ValueError(f"unknown kind of index: {self.kind!r}")
        super().__post_init__()

    @property
    def flops(self) -> int:
        """Vector instructions per element: 3 for the search, and those of the prologue."""
        return 3 + (self.prologue.flops if self.prologue else 0)

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return one int64 result; raises ValueError if symbols leave its shape undetermined."""
        full = self.full([s.shape for s in specs])
        place = len(full) + self.axis
        kept = (1,) if self.keepdims else ()
        return (TensorSpec(DType.I64, (*full[:place], *kept, *full[place + 1 :])),)

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        """Evaluate with NumPy; raises ValueError if the axis is empty."""
        x = self.prologue.reference(arrays)[0] if self.prologue else arrays[0]
        x = np.moveaxis(x, self.axis, 0)
        best = (np.fmax if self.kind == "max" else np.fmin).reduce(x, axis=0)
        hits = x == best
        found = len(x) - 1 - hits[::-1].argmax(0) if self.select_last else hits.argmax(0)
        found = np.where(np.isnan(x[0]), 0, found).astype(np.int64)
        return [np.expand_dims(found, self.axis) if self.keepdims else found]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=max(map(prod, operands)) * self.flops, one_pass=True)

    def body(self, opset: int) -> Body:
        """Write the ONNX operator; raises ValueError before opset 12 with ``select_last``."""
        b = BodyBuilder(self.operands, opset)
        x = self.prologue.to_onnx(b, b.inputs)[0] if self.prologue else b.inputs[0]
        attrs = {"axis": self.axis, "keepdims": int(self.keepdims)}
        if self.select_last:
            if opset < 12:
                raise ValueError("select_last_index needs opset 12")
            attrs["select_last_index"] = 1
        return b.done(b(ARGS[self.kind], x, **attrs))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model the searched axis as a reduction and all other axes as parallel."""
        full = self.full([graph.spec(v).shape for v in region.operands])
        place = len(full) + self.axis
        names = tuple(f"d{i}" for i in range(len(full)))
        axes = tuple(
            Axis(n, e, i == place) for i, (n, e) in enumerate(zip(names, full, strict=True))
        )
        kept = tuple(n for i, n in enumerate(names) if self.keepdims or i != place)
        parallel = tuple(n for i, n in enumerate(names) if i != place)
        reads = [aligned_access(graph, v, names) for v in region.operands]
        writes = [aligned_access(graph, region.results[0], kept)]
        work = (LoopWork(names, self.flops),)
        return region_model(region, IterationSpace(axes), reads, writes, work, parallel)
