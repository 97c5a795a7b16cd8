"""Base of the ops that work along one axis of an elementwise prologue's result."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.ops.iteration_space_parts import Shape

__all__ = ["AlongAxis"]


class AlongAxis:
    """Base class of the parameters of ops that work along one axis.

    ``axis`` counts from the end: −1 is the last axis.  ``prologue`` is an optional elementwise
    chain, whose result the op reads.
    """

    axis: int
    prologue: Chain | None

    def __post_init__(self) -> None:
        """Raise ValueError if the axis is not negative or the prologue has no float32 result."""
        if self.axis >= 0:
            raise ValueError("the axis must be negative, counted from the end")
        if self.prologue and self.prologue.result_types != (DType.F32,):
            raise ValueError("a prologue must have one float32 result")

    @property
    def operands(self) -> int:
        return len(self.prologue.operands) if self.prologue else 1

    def full(self, shapes: Sequence[Shape | None]) -> Shape:
        """Return the broadcast shape of the operands; raises ValueError if it is undetermined."""
        known = [s for s in shapes if s is not None]
        shape = broadcast(known) if len(known) == len(shapes) else None
        if shape is None or len(shape) < -self.axis:
            raise ValueError(
                "operand shapes are not proven to broadcast to a shape with that axis"
            )
        return shape
