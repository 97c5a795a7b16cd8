"""Lower two matmuls of one row, of which one's epilogue reads the other, as one call.

    gate = f(x · A), y = g(x · B, gate)    ->    y = g(x · B, f(x · A))

Both matrices are block-quantized, and lie one behind the other.  The kernel is one of a single
row; two calls of the same matrices compute several rows, and are not launched for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.lowering.block_quantized import block_quantized_params, lower_gated
from tracea_graph.kernels.gpu.lowering.program_writer import HALVES, GpuProgramWriter
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.block_quantized import BlockQuantized
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams

__all__ = ["GatedMatmuls", "gated_matmuls", "lower_gated_matmuls"]


_DEEPEST = 4096
"""Largest depth; the row, and gamma in float32, lie in shared memory."""


@dataclass(frozen=True)
class GatedMatmuls:
    """The steps of the gate and of the matmul that reads it, as an ``operand`` of its chain.

    ``chain`` is the epilogue of both, which reads the sums of the gate instead.
    """

    gate: int
    operand: int
    chain: Chain


def gated_matmuls(p: RegionParams) -> dict[int, GatedMatmuls]:
    """Return the pairs of matmuls, by the number of the step that reads the gate."""
    made, readers = p.makers, p.readers
    found = dict[int, GatedMatmuls]()
    for number, step in enumerate(p.steps):
        own = step.params
        if not _coded(step) or not isinstance(own, GemmParams) or own.epilogue is None:
            continue
        for operand, value in enumerate(own.split(step.operands)[3], 1):
            gate = made.get(value)
            if gate is None or readers[value] != 1 or value in p.results:
                continue
            before = p.steps[gate]
            if _coded(before) and _alike(p, before, step):
                assert isinstance(before.params, GemmParams)
                chain = _with_gate(own.epilogue, operand, before.params.epilogue)
                found[number] = GatedMatmuls(gate, operand, chain)
                break
    return found


def _coded(step: RegionStep) -> bool:
    """Whether a step is a matmul by a block-quantized matrix, with one float32 result."""
    own = block_quantized_params(step)
    if own is None or (isinstance(own.layout, BlockQuantized) and own.layout.int8_rows):
        return False
    types = own.epilogue.result_types if own.epilogue else (DType.F32,)
    half = step.narrow in [t.short for t in HALVES]
    return types == (DType.F32,) and half and own.k <= _DEEPEST


def _alike(p: RegionParams, gate: RegionStep, step: RegionStep) -> bool:
    """Whether two matmuls have one input, layout and size, and the gate has no other operands."""
    a, b = gate.params, step.params
    assert isinstance(a, GemmParams) and isinstance(b, GemmParams)
    stored = (*a.stored(gate.operands), *b.stored(step.operands))
    same = (a.k, a.n, a.layout, gate.narrow) == (b.k, b.n, b.layout, step.narrow)
    same = same and gate.operands[0] == step.operands[0] and not a.epilogue_inputs
    return same and all(i < p.inputs for i in stored)


def _with_gate(chain: Chain, operand: int, gate: Chain | None) -> Chain:
    """Return a chain that applies another one to an ``operand`` first."""
    if gate is None or not gate.steps:
        return chain
    count, more = len(chain.operands), len(gate.steps)

    def of_gate(a: int | float) -> int | float:
        return a if isinstance(a, float) else operand if a == 0 else count + a - 1

    def moved(a: int | float) -> int | float:
        if isinstance(a, float):
            return a
        return int(of_gate(gate.results[0])) if a == operand else a if a < count else a + more

    steps = [Step(s.op, tuple(map(of_gate, s.args))) for s in gate.steps]
    steps += (Step(s.op, tuple(map(moved, s.args))) for s in chain.steps)
    results = tuple(int(moved(r)) for r in chain.results)
    return replace(chain, steps=tuple(steps), results=results)


def lower_gated_matmuls(
    w: GpuProgramWriter, p: RegionParams, pair: GatedMatmuls, number: int,
    starts: Sequence[int], values: dict[int, Value], wanted: Mapping[int, Value | None],
) -> None:  # fmt: skip
    """Write the calls and add the result to ``values``; ``w.narrow`` is the steps' type."""
    step, gate = p.steps[number], p.steps[pair.gate]
    own, before = step.params, gate.params
    assert isinstance(own, GemmParams) and isinstance(before, GemmParams)
    assert own.epilogue is not None and isinstance(own.layout, BlockQuantized)
    x = values[step.operands[0]]
    full = (*x.shape[:-1], own.n)
    made = wanted.get(starts[number]) or w.number(full)
    stored = [
        one.params.stored([values.get(i) for i in one.operands])
        for one in (gate, step) if isinstance(one.params, GemmParams)
    ]  # fmt: skip
    inputs = [i for i in own.split(step.operands)[3] if i != starts[pair.gate]]
    seen = [w.flat(values[i].stretched(full), len(full) - 1, 1) for i in inputs]
    chains = before.epilogue or Chain((FULL,), (), (0,)), own.epilogue, pair.chain
    matrices = [(s[0], s[1]) for s in stored]
    lower_gated(w, own.layout, x, matrices, chains, pair.operand, seen, w.matrix(made))
    values[starts[number]] = made
