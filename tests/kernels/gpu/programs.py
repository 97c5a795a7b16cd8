"""Run the program of an op on this machine: in the host dialect, or wherever a test has it run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tests.kernels.gpu.machine import HERE, NUMPY, POISON, Array, Memory, compiled, run_here
from tracea_graph.ir import DType, Extent, TensorSpec, evaluate
from tracea_graph.kernels.gpu.architecture import Architecture
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.kernel_selection import for_variant, launches_for, variants_of
from tracea_graph.kernels.gpu.lowering.byte_results import round_where_computed
from tracea_graph.kernels.gpu.lowering.concat_folding import fold_concatenations
from tracea_graph.kernels.gpu.lowering.gate_folding import fold_gates
from tracea_graph.kernels.gpu.lowering.grouped_integers import group_integer_matmuls
from tracea_graph.kernels.gpu.lowering.joined_copies import join_copies
from tracea_graph.kernels.gpu.lowering.lower import lower_op
from tracea_graph.kernels.gpu.lowering.normed_integers import fold_norms_of_integers
from tracea_graph.kernels.gpu.lowering.pack_folding import fold_packs
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.lowering.quantized_attention import fold_quantized_attentions
from tracea_graph.kernels.gpu.lowering.result_folding import fold_results
from tracea_graph.kernels.gpu.lowering.row_scales import scale_rows_where_computed
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Buffer, Call, Program
from tracea_graph.ops import OpParams

__all__ = ["RunKernels", "launched_matmuls", "program_of", "run_program"]

RunKernels = Callable[[Sequence[tuple[Call, Variant]], Memory], None]
"""Runs kernels one after another on the buffers of a memory."""

_ALIGNED = 256
"""Alignment in bytes of a GPU's buffers."""
NO_SIZES: Mapping[str, int] = MappingProxyType({})
_TYPES = {np.dtype(kind): dtype for dtype, kind in NUMPY.items()}


def program_of(
    params: OpParams,
    specs: Sequence[TensorSpec],
    narrow: DType,
    sizes: Mapping[str, int] = NO_SIZES,
) -> Program:
    """Lower an op to store numbers in ``narrow``; ``sizes`` are likely values of symbols."""
    w = GpuProgramWriter(tuple(specs), tuple(params.infer(specs)), narrow, sizes=sizes)
    results = w.slots("output")
    made = lower_op(w, params, w.slots("input"), results)
    for value, target in zip(made, results, strict=True):
        if value.view != target.view:
            w.copy(value, target)
    round_where_computed(w)
    scale_rows_where_computed(w)
    fold_results(w)
    fold_packs(w)
    w.drop_unread()
    fold_gates(w)
    fold_quantized_attentions(w)
    group_integer_matmuls(w)
    fold_norms_of_integers(w)
    fold_concatenations(w)
    join_copies(w)
    return w.done({}, sizes)


def launched_matmuls(
    program: Program, sizes: Mapping[str, int], composed: str, architecture: Architecture
) -> list[bool]:
    """Return, for each matmul that has blocks at these sizes, whether its kernel is ``composed``.

    ``composed`` is a word of the names of kernels that compute several calls.
    """
    found = list[bool]()
    for call in program.calls:
        able = [v.refusal(architecture) is None for v, _ in variants_of(call)]
        launches = [one for one, _ in launches_for(call)]
        launch = next(one for one, fits in zip(launches, able, strict=True)
                      if fits and evaluate(one.when, sizes) > 0)  # fmt: skip
        if "gemm" in call.op and all(launch.blocks(sizes)):
            found.append(composed in launch.symbol)
    return found


def run_kernels_here(chosen: Sequence[tuple[Call, Variant]], memory: Memory) -> None:
    """Run kernels in the host dialect."""
    sources = [emit_kernel(call, variant, HERE) for call, variant in chosen]
    compiled(sources)
    for (call, variant), source in zip(chosen, sources, strict=True):
        run_here(source, launch_of(call, variant, HERE), memory)


def run_program(
    params: OpParams,
    arrays: Sequence[Array],
    narrow: DType = DType.F32,
    architecture: Architecture = HERE.architecture,
    run: RunKernels = run_kernels_here,
    shapes: Sequence[tuple[int | str, ...]] = (),
    likely: Mapping[str, int] = NO_SIZES,
) -> list[Array]:
    """Return the results of the op's kernels, the first of each call that an architecture has.

    A program for symbolic ``shapes`` is planned for ``likely`` sizes; calls whose results
    are empty at those of the arrays are left out.
    """
    shapes = shapes or [a.shape for a in arrays]
    specs = [TensorSpec(_TYPES[a.dtype], s) for a, s in zip(arrays, shapes, strict=True)]
    sizes = {symbol: n for a, s in zip(arrays, shapes, strict=True)
             for symbol, n in zip(s, a.shape, strict=True) if isinstance(symbol, str)}  # fmt: skip
    program, memory = program_of(params, specs, narrow, likely), Memory()
    results = [TensorSpec(s.dtype, _known(s.shape or (), sizes)) for s in program.outputs]
    buffers = dict[Buffer, Buffer]()

    def add(buffer: Buffer, size: int) -> Array:
        kept = np.full(size + _ALIGNED, POISON, np.uint8)
        start = -kept.ctypes.data % _ALIGNED
        memory.buffers.append(kept[start : start + size])
        buffers[buffer] = Buffer("temp", len(memory.buffers) - 1)
        return memory.buffers[-1]

    for i, array in enumerate(arrays):
        add(Buffer("input", i), array.nbytes)[:] = np.frombuffer(array.tobytes(), np.uint8)
    outputs = [
        add(Buffer("output", i), int(np.prod(s.shape, dtype=int)) * int(s.dtype.size))  # type: ignore[arg-type, union-attr]
        for i, s in enumerate(results)
    ]
    for i, temp in enumerate(program.temps):
        add(Buffer("temp", i), int(evaluate(temp.count, sizes) * temp.dtype.size))
    calls = [_with_buffers(_sized(call, sizes), buffers) for call in program.calls]
    calls = [call for call in calls if _has_results(call)]
    run([(for_variant(c, v), v) for c in calls for v in [_best(c, architecture)]], memory)
    pairs = zip(outputs, results, strict=True)
    return [one.view(NUMPY[s.dtype]).reshape(s.shape) for one, s in pairs]  # type: ignore[arg-type, index]


def _known(extents: Sequence[Extent], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(n, sizes) for n in extents)


def _sized(call: Call, sizes: Mapping[str, int]) -> Call:
    """Return a call whose views have known sizes."""
    views = [v and replace(v, dims=_known(v.dims, sizes), strides=_known(v.strides, sizes),
                           offset=evaluate(v.offset, sizes)) for v in call.views]  # fmt: skip
    return replace(call, views=tuple(views))


def _has_results(call: Call) -> bool:
    written = [v for operand, v in CALLS.of(call).each(call) if operand.written and v is not None]
    return any(0 not in v.dims for v in written)


def _with_buffers(call: Call, buffers: dict[Buffer, Buffer]) -> Call:
    views: list[Any] = [v and replace(v, buffer=buffers[v.buffer]) for v in call.views]
    return replace(call, views=tuple(views))


def _best(call: Call, architecture: Architecture) -> Variant:
    """Return the first variant for the call's sizes and an architecture."""
    able = ((v, when) for v, when in variants_of(call) if v.refusal(architecture) is None)
    return next(v for v, when in able if evaluate(when, {}) > 0)
