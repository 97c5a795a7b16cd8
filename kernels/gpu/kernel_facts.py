"""Facts about the GPU kernels: from the table of variants, and from the cubin of a typical call.

Kernels are compiled for the types and elementwise expressions of their calls.  The resources of a
variant are therefore those of its kernel for one typical call without an elementwise expression.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.errors import GraphError
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES, Architecture
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel
from tracea_graph.kernels.gpu.kernel_catalog import variant_id
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.kernel_metadata import KernelMetadata, LaunchSpec, Resources
from tracea_graph.kernels.program import Buffer, Call, View
from tracea_graph.kernels.program_writer import LackingError

__all__ = ["kernel_metadata", "typical_call"]

_TASKS: Mapping[str, str] = MappingProxyType(
    {
        "gemm": "a tile of the result; the blocks of a cluster may share its depth k",
        "conv": "a tile of output pixels by filters",
        "attention": "a tile of queries of one head",
        "norm": "rows; a team of threads computes each row",
        "softmax": "rows; a team of threads computes each row",
        "reduce": "rows; a team of threads computes each row",
        "depthwise": "output pixels of neighbouring channels",
        "depthwise_projection": "output pixels of all filters",
        "pool": "output pixels of neighbouring channels",
        "attention_projection": "16 rows; a block has two heads and their columns",
        "quantized_attention": "tiles of queries of one head",
        "expanded_depthwise": "lines of an image, for some channels after others",
        "gated_gemm": "a tile of the result, of products of both matrices",
        "grouped_integer_gemm": "a tile of the result of one of the matmuls",
        "normed_integer_gemm": "half of the columns of 64 rows",
        "low_rank_gemm": "half of the columns of 64 rows",
        "mlp": "64 rows for each warpgroup, in turn",
        "squeeze_excite": "a slice of an image's channels",
        "copy": "contiguous elements, or a tile that is transposed",
        "concat": "neighbouring elements of the result",
        "elementwise": "neighbouring elements",
    }
)
"""What one block computes, by op; for other ops, a part of the result."""


def kernel_metadata(
    levels: Sequence[str],
    kernels: Container[str] | None = None,
    environment: Environment | None = None,
) -> tuple[KernelMetadata, ...]:
    """Return the facts of every variant that these architectures support, in table order.

    ``kernels`` restricts the result to variants with these ids, or for calls of these names.  With
    an environment, variants that have a :func:`typical_call` are compiled or taken from the cache,
    and their resources are included.  Raises BuildError if compilation fails.
    """
    found = []
    for level in levels:
        architecture = ARCHITECTURES[level]
        for variant in VARIANTS:
            names = Call.name_of(variant.op, variant.dtype), variant_id(variant, level)
            wanted = kernels is None or any(name in kernels for name in names)
            if wanted and variant.refusal(architecture) is None:
                found.append(_metadata(variant, architecture, environment))
    return tuple(found)


def _metadata(
    variant: Variant, architecture: Architecture, environment: Environment | None
) -> KernelMetadata:
    source = _source(variant, architecture) if environment is not None else None
    schema = CALLS[Call.name_of(variant.op, variant.dtype)]
    chain = {"none": "none", "required": "chain"}.get(schema.chain, "chain, if its call has one")
    made = KernelMetadata(
        variant_id(variant, architecture.name), variant.op, variant.dtype, architecture.name,
        variant.tile, (source.symbol,) if source else (), variant.template,
        LaunchSpec(_TASKS.get(variant.op, "a part of the result"), variant.threads,
                   source.shared if source else 0),
        chain, dict(variant.params), variant.needs,
    )  # fmt: skip
    if environment is None or source is None:
        return made
    (built,) = compile_sources([source], [architecture.name], environment)
    facts = built.facts
    if facts is None:
        return made
    launch = replace(made.launch, shared_bytes=source.shared + facts.shared)
    spilled = facts.stack // 4
    return replace(
        made, launch=launch,
        resources=Resources(facts.code, facts.registers, facts.stack, spilled),
    )  # fmt: skip


def _source(variant: Variant, architecture: Architecture) -> KernelSource | None:
    """Return the source of a variant for a typical call; None if it cannot compute that call."""
    call = typical_call(variant.op, variant.dtype)
    if call is None:
        return None
    try:
        return emit_kernel(call, variant, Target(CUDA, architecture))
    except (GraphError, LackingError):
        return None


def typical_call(op: str, dtype: str) -> Call | None:
    """Return a call of ordinary shapes, or None if none is defined for the op."""
    made = {
        "gemm": _gemm, "conv": _conv, "attention": _attention, "norm": _rows, "softmax": _rows,
        "reduce": _rows, "pool": _pool, "copy": _copy,
    }.get(op)  # fmt: skip
    return made(op, dtype) if made else None


def _view(place: int, *dims: int) -> View:
    steps, step = list[int](), 1
    for dim in reversed(dims):
        steps.insert(0, step)
        step *= dim
    return View(Buffer("temp", place), dims, tuple(steps))


def _gemm(op: str, dtype: str) -> Call:
    x, w, y = _view(0, 4096, 1024), _view(1, 1024, 1024), _view(2, 4096, 1024)
    return CALLS.make(op, dtype, x=x, w=w, y=[y], layout="nk")


def _conv(op: str, dtype: str) -> Call:
    x, w, y = _view(0, 8, 56, 56, 128), _view(1, 128, 3, 3, 128), _view(2, 8, 56, 56, 128)
    return CALLS.make(op, dtype, x=x, w=w, y=[y], strides=(1, 1), dilations=(1, 1), pads=(1, 1))


def _attention(op: str, dtype: str) -> Call:
    q, k, v, y = (_view(i, 4, 12, 1024, 64) for i in range(4))
    return CALLS.make(op, dtype, q=q, k=k, v=v, y=y, scale=0.125, mask_kind="none",
                      order="none", zero_rows="none", fill=0.0, softcap=0.0)  # fmt: skip


def _rows(op: str, dtype: str) -> Call:
    more: dict[str, Any] = {"norm": {"kind": "layer", "epsilon": 1e-5}, "reduce": {"kind": "sum"}}
    x, y = _view(0, 4096, 768), _view(1, 4096, 1 if op == "reduce" else 768)
    return CALLS.make(op, dtype, x=[x] if op == "norm" else x, y=y, **more.get(op, {}))


def _pool(op: str, dtype: str) -> Call:
    x, y = _view(0, 8, 56, 56, 128), _view(1, 8, 28, 28, 128)
    return CALLS.make(
        op, dtype, x=x, y=y, kind="max", kernel=(3, 3), strides=(2, 2), dilations=(1, 1),
        pads=(1, 1),
    )  # fmt: skip


def _copy(op: str, dtype: str) -> Call:
    transposed = replace(_view(0, 1024, 4096), strides=(1, 1024))
    return CALLS.make(op, dtype, x=transposed, y=_view(1, 1024, 4096))
