"""Build the programs that the tuner measures for calls that are cut into tasks.

Inputs are a tensor with one element per row, which binds the symbol of the rows; the weights, or a
few numbers that nothing reads; each other operand, in as much memory as it spans; and y of the
previous node.  Operands in bf16 are rounded by the program first, as in programs of models.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracea_graph.ir import Array, DType, TensorSpec, evaluate
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.schedules.task_problem import ROWS, Strided, TaskProblem
from tracea_graph.kernels.program import Buffer, Call, Program, Schedule, Temp, View
from tracea_graph.kernels.schema import Operand

__all__ = ["contents_of", "task_program"]

_NO_WEIGHTS = TensorSpec(DType.F32, (16,))
_INDEX = "index"
"""The operand that lists which blocks of a matrix are stored."""


def task_program(problem: TaskProblem, schedules: tuple[Schedule, ...]) -> Program:
    """Build a program of the problem alone with these schedules."""
    made = _Bench(problem)
    call = replace(problem.call, views=tuple(made.views()), schedules=schedules)
    inputs = (*made.inputs, made.outputs[0])
    temps = tuple(replace(t, last=len(made.rounds)) for t in made.temps)
    calls = (*made.rounds, call)
    return Program(inputs, tuple(made.outputs), {ROWS: (0, 0)}, temps, calls)


class _Bench:
    """Collects the inputs, outputs, scratch and calls around one call."""

    def __init__(self, problem: TaskProblem) -> None:
        self.problem = problem
        self.inputs = [TensorSpec(DType.F32, (ROWS,)), _NO_WEIGHTS]
        self.outputs = list[TensorSpec]()
        self.temps, self.rounds = list[Temp](), list[Call]()

    def views(self) -> list[View | None]:
        """The views of the call, in order."""
        schema, problem = CALLS[self.problem.kernel], self.problem
        operands = (operand for operand, _ in schema.each(problem.call))
        return [
            self._view(operand, held) if held else None
            for operand, held in zip(operands, problem.views, strict=True)
        ]

    def _view(self, operand: Operand, held: Strided) -> View:
        return self._written(held) if operand.written else self._read(held, operand.name == "w")

    def _read(self, held: Strided, weights: bool) -> View:
        dtype = DType[held.dtype]
        buffer = Buffer("input", 1 if weights else len(self.inputs))
        if weights:
            dims = tuple(evaluate(d, {}) for d in held.dims)
            self.inputs[1] = TensorSpec(dtype, dims)
            return View(buffer, held.dims, held.strides)
        rounded = dtype is DType.BF16
        self.inputs.append(TensorSpec(DType.F32 if rounded else dtype, (held.span,)))
        if rounded:
            line = View(buffer, (1, held.span), (held.span, 1))
            buffer = Buffer("temp", len(self.temps))
            at = len(self.rounds)
            self.temps.append(Temp(dtype, held.span, at, at))
            whole = View(buffer, line.dims, line.strides)
            self.rounds.append(CALLS.make("round", "bf16", x=line, y=whole))
        return View(buffer, held.dims, held.strides)

    def _written(self, held: Strided) -> View:
        buffer, spec = Buffer("output", len(self.outputs)), TensorSpec(DType.F32, (1,))
        if held.dtype == DType.BF16.name:  # in scratch; the output, never read, is not written
            buffer = Buffer("temp", len(self.temps))
            self.temps.append(Temp(DType.BF16, held.span, len(self.rounds), len(self.rounds)))
        else:
            spec = TensorSpec(DType[held.dtype], (held.span,))
        self.outputs.append(spec)
        return View(buffer, held.dims, held.strides)


def contents_of(problem: TaskProblem) -> dict[int, Array]:
    """Return contents for the one input that cannot be arbitrary: the indices of stored blocks.

    The indices are spread evenly over the matrix.  Returns an empty dict if the problem has none.
    """
    if not (found := problem.named.get(_INDEX)):
        return {}
    (w,), (x,) = problem.named["w"], problem.named["x"]
    stored, block, *_ = (evaluate(d, {}) for d in w.dims)
    lanes = 2 if x.dtype == DType.BF16.name else 1
    columns = sum(evaluate(y.dims[-1], {ROWS: 1}) for y in problem.named["y"][:1])
    places = -(-evaluate(x.dims[-1], {ROWS: 1}) // (block * lanes)) * -(-columns // 16)
    inputs = task_program(problem, ()).inputs
    at = next(i for i, spec in enumerate(inputs) if spec.dtype is DType.I32)
    (held,) = found
    spread = np.arange(evaluate(held.span, {}), dtype=np.int64) * places // max(stored, 1)
    return {at: spread.astype(np.int32)}
