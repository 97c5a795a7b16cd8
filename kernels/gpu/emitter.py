"""Generate the source of a kernel from a call and a variant.

``emit`` has no side effects.  ``launch_of`` gives the launch configuration, for symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import jinja2

from tracea_graph.errors import GraphError
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.dialect import Target
from tracea_graph.kernels.gpu.families import (
    arg_max,
    attention,
    attention_projection,
    attention_rows,
    block_dequantization,
    block_quantized_matmul,
    block_sparse_matmul,
    cached_attention,
    concatenation,
    convolution,
    depthwise_and_pooling,
    depthwise_projection,
    dynamic_quantization_range,
    elements_of_lines,
    elementwise,
    embedding_lookups,
    expanded_depthwise,
    few_key_attention,
    few_pixel_convolution,
    few_row_matmul,
    float32_convolution,
    float32_matmul,
    gated_matmul,
    grid_samples,
    grouped_attention,
    grouped_integers,
    image_packing,
    image_resize,
    index_ramps,
    indexed_slices,
    integer_matmul,
    integer_steps,
    kv_append_rotated,
    kv_cache_append,
    low_rank_matmul,
    normed_integers,
    one_row_matmul,
    quantized_attention,
    recurrent_cells,
    row_mlp,
    row_norms_and_reductions,
    scaled_two_of_four,
    split_key_attention,
    squeeze_excite,
    strided_copies,
    tensor_core_matmul,
    top_k,
    two_of_four_matmul,
    warpgroup_attention,
    warpgroup_blocks,
    warpgroup_convolution,
    warpgroup_integers,
    warpgroup_matmul,
    warpgroup_two_of_four,
)
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.launch import Launch
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["emit_kernel", "kernel_preamble", "launch_of", "render", "symbol_of"]


class Family(Protocol):
    """Protocol of a module of ``families``, which serves the kernels of one template."""

    def name(self, call: Call) -> str:
        """Return the op part of a symbol: op, epilogue and attributes that change the source."""
        ...

    def parameters(self, call: Call, variant: Variant) -> dict[str, Any]:
        """Return the parameters of the template."""
        ...

    def shared(self, call: Call, variant: Variant) -> int:
        """Return the dynamic shared memory of a block, in bytes."""
        ...

    def launch(self, call: Call, variant: Variant, symbol: str) -> Launch:
        """Return the launch of the call's kernel."""
        ...


_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "elementwise.cu.in": elementwise,
        "rows.cu.in": row_norms_and_reductions,
        "gemm.cu.in": tensor_core_matmul,
        "gemm_blocks.cu.in": block_sparse_matmul,
        "gemm_blocks_wgmma.cu.in": warpgroup_blocks,
        "gemm_bytes.cu.in": integer_matmul,
        "gemm_nbits.cu.in": block_quantized_matmul,
        "dequantize.cu.in": block_dequantization,
        "gemm_nbits_few.cu.in": block_quantized_matmul,
        "gemm_nbits_one.cu.in": block_quantized_matmul,
        "gemm_two_of_four.cu.in": two_of_four_matmul,
        "gemm_two_of_four_wgmma.cu.in": warpgroup_two_of_four,
        "scaled_two_of_four.cu.in": scaled_two_of_four,
        "gemm_wgmma.cu.in": warpgroup_matmul,
        "gemm_bytes_wgmma.cu.in": warpgroup_integers,
        "gemm_few.cu.in": few_row_matmul,
        "gemm_one.cu.in": one_row_matmul,
        "attention.cu.in": attention,
        "attention_few.cu.in": few_key_attention,
        "attention_split.cu.in": split_key_attention,
        "attention_wgmma.cu.in": warpgroup_attention,
        "attention_rows.cu.in": attention_rows,
        "attention_cached.cu.in": cached_attention,
        "attention_grouped.cu.in": grouped_attention,
        "conv.cu.in": convolution,
        "conv_bytes.cu.in": integer_matmul,
        "conv_bytes_wgmma.cu.in": warpgroup_integers,
        "conv_fma.cu.in": float32_convolution,
        "conv_wgmma.cu.in": warpgroup_convolution,
        "conv_few.cu.in": few_pixel_convolution,
        "window_bytes.cu.in": integer_matmul,
        "embedding.cu.in": embedding_lookups,
        "same.cu.in": embedding_lookups,
        "take.cu.in": embedding_lookups,
        "arg.cu.in": arg_max,
        "gather_nd.cu.in": indexed_slices,
        "update_order.cu.in": indexed_slices,
        "scatter_nd.cu.in": indexed_slices,
        "scatter_elements.cu.in": elements_of_lines,
        "cumulative_sum.cu.in": elements_of_lines,
        "grid_sample.cu.in": grid_samples,
        "integer_step.cu.in": integer_steps,
        "iota.cu.in": index_ramps,
        "kv_append.cu.in": kv_cache_append,
        "kv_append_rotated.cu.in": kv_append_rotated,
        "attention_projection.cu.in": attention_projection,
        "attention_quantized.cu.in": quantized_attention,
        "attention_quantized_many.cu.in": quantized_attention,
        "mlp.cu.in": row_mlp,
        "gemm_gated_wgmma.cu.in": gated_matmul,
        "gemm_grouped_wgmma.cu.in": grouped_integers,
        "gemm_low_rank_depth_wgmma.cu.in": low_rank_matmul,
        "gemm_low_rank_wgmma.cu.in": low_rank_matmul,
        "gemm_normed_wgmma.cu.in": normed_integers,
        "recurrent.cu.in": recurrent_cells,
        "pack.cu.in": image_packing,
        "resize.cu.in": image_resize,
        "depthwise_projection.cu.in": depthwise_projection,
        "squeeze_excite.cu.in": squeeze_excite,
        "top_k.cu.in": top_k,
        "value_range.cu.in": dynamic_quantization_range,
        "window.cu.in": depthwise_and_pooling,
        "window_tile.cu.in": depthwise_and_pooling,
        "depthwise_large.cu.in": depthwise_and_pooling,
        "depthwise_lanes.cu.in": depthwise_and_pooling,
        "depthwise_expanded.cu.in": expanded_depthwise,
        "pool_whole.cu.in": depthwise_and_pooling,
        "move.cu.in": strided_copies,
        "concat.cu.in": concatenation,
        "transpose.cu.in": strided_copies,
        "gemm_fma.cu.in": float32_matmul,
    }
)


def symbol_of(call: Call, variant: Variant, target: Target) -> str:
    """Return ``tracea_<dtype>_<op>[_<epilogue>]_<tile>__<architecture>``."""
    name = _FAMILIES[variant.template].name(call)
    return f"tracea_{call.dtype}_{name}_{variant.tile}__{target.architecture.name}"


def emit_kernel(call: Call, variant: Variant, target: Target) -> KernelSource:
    """Generate the kernel of a call.

    The text depends on types, elementwise expression and attributes, not on sizes.  Raises
    GraphError if the dialect lacks the template.
    """
    CALLS.of(call)
    if variant.template in target.dialect.lacks:
        raise GraphError(f"the dialect {target.dialect.name} lacks {variant.template}")
    family, symbol = _FAMILIES[variant.template], symbol_of(call, variant, target)
    body = render(
        variant.template, symbol=symbol, threads=variant.threads, dialect=target.dialect.name,
        **variant.params, **family.parameters(call, variant),
    )  # fmt: skip
    head = f"// {symbol}\n// From {variant.template}.  Generated, do not edit.\n"
    text = head + kernel_preamble(target) + body
    return KernelSource(symbol, text, variant.threads, family.shared(call, variant))


def render(template: str, **parameters: Any) -> str:
    """Render a template by its file name."""
    return _environment().get_template(template).render(**parameters)


def kernel_preamble(target: Target) -> str:
    """Return the code in front of every kernel: the dialect's primitives, and helpers."""
    names = (target.dialect.words, "values.h", "words.h")
    templates = map(_environment().get_template, names)
    return "".join(template.render(**target.dialect.parameters) for template in templates)


def shared_of(call: Call, variant: Variant) -> int:
    """Return the dynamic shared memory of a block of the call's kernel, in bytes."""
    return _FAMILIES[variant.template].shared(call, variant)


def launch_of(call: Call, variant: Variant, target: Target) -> Launch:
    """Return the launch of the kernel that ``emit`` generates for these arguments."""
    family = _FAMILIES[variant.template]
    return family.launch(call, variant, symbol_of(call, variant, target))


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        line_statement_prefix="//%",
        block_start_string="<%%",  # because PTX operands stand in braces
        block_end_string="%%>",
        variable_start_string="${",
        variable_end_string="}",
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
