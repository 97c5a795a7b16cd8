"""``FusedRegion``: a program of several ops in one node, with its intermediate values inside.

    v = inputs; for each step: v += step(v[operands]); results are chosen values

A value between two steps never leaves the program, and may be stored in scratch memory, in another
layout, or in registers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import TensorSpec
from tracea_graph.ops.function_body import Body, BodyBuilder, splice_body
from tracea_graph.ttg.loop_nest_model import RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

if TYPE_CHECKING:
    from tracea_graph.ops import OpParams

__all__ = ["RegionParams", "RegionStep", "RowTile"]

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class RegionStep:
    """One op of a program, and the numbers of the values that it reads.

    The inputs of the region are numbered first, then the results of each step.  ``narrow`` is the
    short name of the 16-bit float type that the step's factors and results may be rounded to, or
    empty; sums, and results of the region, keep their types.  A matmul with a ``factor`` other
    than 0 may round its factors to 8-bit floats: its left operand times ``factor``, and its matrix
    with a scale for each column.  If its sums are ``promoted``, they are kept in float32 even
    where a machine sums 8-bit floats in fewer bits.
    """

    params: OpParams
    operands: tuple[int, ...]
    results: int = 1
    narrow: str = ""
    factor: float = 0.0
    promoted: bool = False


@dataclass(frozen=True)
class RowTile:
    """Row tiling of steps ``first`` to ``last``, inclusive.

    One iteration computes ``rows`` rows of the last step.
    """

    first: int
    last: int
    rows: int


@dataclass(frozen=True)
class RegionParams:
    """A program: steps in order, which read and produce numbered values.

    The ``inputs`` operands are numbered first, then the results of each step.  ``results`` are the
    numbers of the values that the region returns; later steps may read these, too.  ``row_tiles``
    are ranges of steps fused over tiles of rows, which affects where values are stored, but not
    the values.  Raises ValueError if a step reads a value that is not yet computed, or if no step
    computes a result.
    """

    inputs: int
    steps: tuple[RegionStep, ...]
    results: tuple[int, ...]
    row_tiles: tuple[RowTile, ...] = ()

    def __post_init__(self) -> None:
        known = self.inputs
        for step in self.steps:
            if any(not 0 <= i < known for i in step.operands):
                raise ValueError("a step reads a value that is not computed before it")
            known += step.results
        if any(not self.inputs <= i < known for i in self.results):
            raise ValueError("a result is computed by no step")

    @classmethod
    def of(
        cls, params: OpParams, operands: int, results: int, narrow: str = "", factor: float = 0.0,
        promoted: bool = False,
    ) -> RegionParams:  # fmt: skip
        """Return a program of one step that reads all operands and returns all results."""
        step = RegionStep(params, tuple(range(operands)), results, narrow, factor, promoted)
        return cls(operands, (step,), tuple(range(operands, operands + results)))

    @property
    def operands(self) -> int:
        return self.inputs

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the number of the first result of each step."""
        ends = accumulate((step.results for step in self.steps), initial=self.inputs)
        return tuple(ends)[:-1]

    @property
    def makers(self) -> dict[int, int]:
        """Return the numbers of the steps by those of their first results."""
        return {start: number for number, start in enumerate(self.starts)}

    @property
    def readers(self) -> Counter[int]:
        """Count the operands of steps that are each value."""
        return Counter(i for step in self.steps for i in step.operands)

    def infer_all(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs of all values: the inputs, then each step's results."""
        values = list(specs)
        for step in self.steps:
            values += step.params.infer([values[i] for i in step.operands])[: step.results]
        return tuple(values)

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        values = self.infer_all(specs)
        return tuple(values[i] for i in self.results)

    def reference(self, arrays: Sequence[Any]) -> list[Floats]:
        values = list(arrays)
        for step in self.steps:
            values += step.params.reference([values[i] for i in step.operands])[: step.results]
        return [values[i] for i in self.results]

    def body(self, opset: int) -> Body:
        """Write the steps' bodies in sequence."""
        b = BodyBuilder(self.inputs, opset)
        values = list(b.inputs)
        for step in self.steps:
            reads = [values[i] for i in step.operands]
            values += splice_body(b.nodes, step.params.body(opset), reads)
        return b.done(*(values[i] for i in self.results))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Return None: the op is opaque to the tile graph."""
        return None
