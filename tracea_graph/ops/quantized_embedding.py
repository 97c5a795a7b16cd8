"""``FusedQuantizedEmbedding``: rows of a block-quantized table, dequantized.

y[..., :] = W[:, ids[...]]        W [K, N]: a row of the table is a column of the matrix

The matrix is stored like that of a product, so that a table and an output head can share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.block_quantized import BlockQuantized
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import aligned_access, axes_named, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ops.weight_layouts import Floats
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["QuantizedEmbeddingParams"]

_STEPS = 4
"""Operations for one number: take a code out of its byte, subtract, convert, scale."""


@dataclass(frozen=True)
class QuantizedEmbeddingParams:
    """Operands: codes and scales of a matrix ``[K, N]``, and integer ids."""

    k: int
    n: int
    layout: BlockQuantized

    def __post_init__(self) -> None:
        self.layout.check(self.k, self.n)

    @property
    def operands(self) -> int:
        return 3

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the ids' shape followed by K; raises ValueError if the ids' rank is unknown."""
        shape = specs[2].shape
        if shape is None:
            raise ValueError("the rank of the ids is unknown")
        return (TensorSpec(DType.F32, (*shape, self.k)),)

    def reference(self, arrays: Sequence[Any]) -> list[Floats]:
        matrix = self.layout.matrix(arrays[:2], self.k, self.n)
        return [np.ascontiguousarray(matrix.T)[np.asarray(arrays[2])]]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=_STEPS * prod(result))

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        matrix = self.layout.to_onnx(b, b.inputs[:2], self.k, self.n)
        return b.done(b("Gather", b("Transpose", matrix, perm=(1, 0)), b.inputs[2], axis=0))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model the rows of the result, one per id; reads of the table are not modeled."""
        shape = graph.spec(region.results[0]).shape or ()
        names, space = axes_named("d", shape)
        reads = [aligned_access(graph, region.operands[2], names[:-1])]
        writes = [aligned_access(graph, region.results[0], names)]
        return region_model(region, space, reads, writes, (LoopWork(names, _STEPS),), names[:-1])
