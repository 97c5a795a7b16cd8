"""Attributes of calls on which the sources of their kernels depend."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["SOURCE_ATTRIBUTES"]

SOURCE_ATTRIBUTES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    **dict.fromkeys(("integer_gemm", "integer_conv", "integer_depthwise"), ("shifted",)),
    **dict.fromkeys(("take", "gather_nd", "update_order"), ("index_type",)), "conv": ("groups",),
    "gemm_nbits": ("zero_kind", "bits", "group", "divided", "second"), "reduce": ("kind", "mean"),
    "pool": ("kind", "kernel", "strides", "dilations"), "cumulative_sum": ("exclusive", "reverse"),
    "embedding": ("count", "table_type", "index_type"), "depthwise": ("strides", "dilations"),
    "grid_sample": ("sampling", "beyond", "aligned"), "integer_step": ("step", "count", "y_type"),
    "scatter_elements": ("reduction", "index_type"), "float8_gemm": ("promoted", "w_type"),
    "pack": ("x_type", "lines", "held"), "squeeze_excite": ("squeezed",), "arg": ("kind", "last"),
    "recurrent": ("kind", "hidden"), "softmax": ("log", "stepped"), "scatter_nd": ("reduction",),
    "gemm": ("layout", "norm"), "gemm_two_of_four": ("norm",),
    "top_k": ("smallest",), "mlp": ("activation",),
    "gated_gemm": ("activation", "layout"), "low_rank_gemm": ("layout1", "layout2", "norm"),
    "grouped_integer_gemm": ("matrices", "summed", "vectors", "shifted"),
    "normed_integer_gemm": ("shifted", "rounded_type"),
    "expanded_depthwise": ("activation", "strides"), "iota": ("y_type",),
    "resize": ("how", "cubic"), "norm": ("kind", "rounded_type"),
    "depthwise_projection": ("strides", "activation", "levels", "x_type", "zero"),
    "kv_append_rotated": ("cache_type",),
    "dequantize": ("zero_kind", "bits", "group", "divided"),
    "quantized_attention": ("form",), "concat": ("count", "filled"),
})  # fmt: skip
"""By op; attention's are found by ``kernel_selection``."""
