"""Write calls of matmuls of two values, which every lowering of products shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernel_selection import FEW_ROWS, ONE_ROW, variants_of
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter, with_row_operands
from tracea_graph.kernels.gpu.lowering.split_k import add_split_k
from tracea_graph.kernels.program import Call
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.chain import Chain

__all__ = ["product_call", "with_split_k"]


def product_call(
    w: GpuProgramWriter, x: Value, weight: Value, layout: str, chain: Chain | None,
    epilogue_inputs: Sequence[Value], results: Sequence[Value], bias: Value | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write a matmul of two values of one type.

    ``epilogue_inputs`` and ``results`` have the shape of the matmul; ``more`` are further
    arguments of the call.
    """
    dtype = w.narrow
    x, weight = w.typed_as(x, dtype), w.typed_as(weight, dtype)
    if chain is not None or any(v.dtype is not dtype for v in results):
        chain = chain or Chain(("full",), (), (0,))
        made = w.typed(chain, [Value(results[0].view, DType.F32), *epilogue_inputs], results)
        chain = with_row_operands(made, [v.view for v in epilogue_inputs])
    call = CALLS.make(
        "gemm", w.multiplied, x=x.view, w=weight.view,
        bias=w.typed_as(bias, DType.F32).view if bias else None,
        inputs=[v.view for v in epilogue_inputs], y=[v.view for v in results], layout=layout,
        chain=chain, **more,
    )  # fmt: skip
    w.calls.append(with_split_k(w, call))


def with_split_k(w: GpuProgramWriter, call: Call) -> Call:
    """Return a matmul with the buffers of split-K, if kernels use them."""
    return add_split_k(w, call) if _splits(call) else call


def _splits(call: Call) -> bool:
    """Whether kernels with split-K compute a matmul where it has more than one row."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    chosen = [v.template for v, _ in variants_of(call)]
    more = [template for template in chosen if template != ONE_ROW]
    return more[0] != FEW_ROWS and (len(more) == len(chosen) or named["y"][0].dims[-2] != 1)
