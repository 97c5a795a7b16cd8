"""Build the program of a guard: do tensors still hold the expected bytes?

y = all(bytes of x[i] = bytes of reference[i])
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType, TensorSpec, product
from tracea_graph.kernels.cpu.calls import LIMITS
from tracea_graph.kernels.cpu.lowering.region_writer import RegionWriter, Slot
from tracea_graph.kernels.program import Program, View

__all__ = ["MOST_GUARDED", "lower_guard"]

MOST_GUARDED = 255
"""Tensors per guard: each takes two of a program's 512 inputs, itself and its reference."""


def lower_guard(specs: Sequence[TensorSpec]) -> Program:
    """Build a program that compares tensors bytewise with references; its result is bool ``[1]``.

    Inputs are the tensors, of these specs, then their references.  Raises ValueError if there are
    no specs or more than :data:`MOST_GUARDED`, or if a size is symbolic.
    """
    if not 0 < len(specs) <= MOST_GUARDED:
        raise ValueError(f"a guard compares 1 to {MOST_GUARDED} tensors, not {len(specs)}")
    if any(s.shape is None or any(not isinstance(d, int) for d in s.shape) for s in specs):
        raise ValueError("a guard compares tensors of known sizes")
    w = RegionWriter((*specs, *specs), (TensorSpec(DType.BOOL, (1,)),), {})
    operands, (result,) = w.operands(), w.results()
    x, references = operands[: len(specs)], operands[len(specs) :]
    step = LIMITS["kMaxCompared"]
    for i in range(0, len(specs), step):
        w.call(
            "bytes_equal",
            x=[*map(_flat, x[i : i + step])],
            reference=[*map(_flat, references[i : i + step])],
            y=result.view,
            count=len(x[i : i + step]),
            further=i > 0,
        )
    return w.done({})


def _flat(slot: Slot) -> View:
    return View.dense(slot.buffer, (product(slot.shape),))
