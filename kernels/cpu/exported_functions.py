"""The functions that each kernel exports, by its op and the element type it multiplies.

In names, ``{}`` stands for the kernel's type, which is left out for float32: ``winograd{}_in`` is
``winograd_in`` and ``winograd_bf16_in``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tracea_graph.kernels.cpu.isa_levels import ARM, X86
from tracea_graph.kernels.cpu.variants import VARIANTS
from tracea_graph.kernels.program import Call

__all__ = ["ARM_KERNELS", "KERNELS", "ExportedFunction"]


@dataclass(frozen=True)
class ExportedFunction:
    """One function a unit exports: the name in its symbol, its C signature, and a remark."""

    name: str
    takes: str
    gives: str = "void"
    note: str = ""


_X86 = frozenset(isa.name for isa in X86.levels if isa not in ARM.levels)
_RANGES = "const tracea_attention_tile*, tracea_attention_range*"
_GEMM, _CONV = "const tracea_gemm_tile*", "const tracea_conv_tile*"
_RECURRENT = "const tracea_recurrent_tile*"

_OPS: Mapping[str, tuple[ExportedFunction, ...]] = MappingProxyType(
    {
        "gemm": (ExportedFunction("gemm{}", _GEMM),),
        "norm": tuple(
            ExportedFunction(f"norm{{}}_{kind}", "const tracea_norm_tile*")
            for kind in ("layer", "rms", "group", "columns")
        ),
        "gather": (ExportedFunction("gather{}", "const tracea_gather_tile*"),),
        "attention": (
            ExportedFunction("attention{}", "const tracea_attention_tile*"),
            ExportedFunction("attention{}_scratch", "int64_t, int64_t, int64_t", "int64_t"),
            ExportedFunction("attention{}_ranges", _RANGES),
        ),
        "conv": (ExportedFunction("conv{}", _CONV),),
        "depthwise": (ExportedFunction("depthwise{}", "const tracea_depthwise_tile*"),),
        "pool": (ExportedFunction("pool{}", "const tracea_pool_tile*"),),
        "reorder": (
            ExportedFunction("reorder_to_nchw16c{}", "const tracea_reorder_tile*"),
            ExportedFunction("reorder_to_nchw{}", "const tracea_reorder_tile*"),
        ),
        "conv_plain": (ExportedFunction("conv_plain{}", "const tracea_conv_plain_tile*"),),
        "winograd": (
            ExportedFunction("winograd{}_in", "const tracea_winograd_in_tile*"),
            ExportedFunction("winograd{}_out", "const tracea_winograd_out_tile*"),
        ),
        "reduce": (
            ExportedFunction("reduce{}_rows", "const tracea_reduce_tile*"),
            ExportedFunction("reduce{}_columns", "const tracea_reduce_tile*"),
        ),
        "softmax": (
            ExportedFunction("softmax{}_rows", "const tracea_softmax_tile*"),
            ExportedFunction("softmax{}_columns", "const tracea_softmax_tile*"),
        ),
        "copy": (ExportedFunction("copy{}", "const tracea_copy_tile*"),),
        "recurrent": tuple(
            ExportedFunction(f"{cell}{{}}", _RECURRENT) for cell in ("lstm", "gru", "gru_before")
        ),
        "gemm_block_sparse": (
            ExportedFunction("gemm_block_sparse{}", "const tracea_block_sparse_tile*"),
            ExportedFunction("all_finite{}", "const float*, int64_t", "int32_t"),
        ),
        "gemm_nbits": (
            ExportedFunction("gemm_nbits{}", "const tracea_nbits_tile*"),
            ExportedFunction("unpack_nbits{}", "const tracea_nbits_unpack_tile*"),
            ExportedFunction("round_nbits{}", "const tracea_nbits_round_tile*", "int32_t"),
        ),
        "resize": (ExportedFunction("resize{}", "const tracea_resize_tile*"),),
        "channel_shuffle": (
            ExportedFunction("channel_shuffle{}", "const tracea_channel_shuffle_tile*"),
        ),
        "gemm_bitmap": (
            ExportedFunction("gemm_bitmap{}", "const tracea_bitmap_tile*", "const void*"),
        ),
        "arg_reduce": (
            ExportedFunction("arg_reduce{}_rows", "const tracea_arg_reduce_tile*"),
            ExportedFunction("arg_reduce{}_columns", "const tracea_arg_reduce_tile*"),
        ),
        "top_k": (ExportedFunction("top_k{}", "const tracea_top_k_tile*"),),
    }
)
"""Functions that all kernels of an op export, whatever type they multiply."""
_OWN: Mapping[tuple[str, str], tuple[ExportedFunction, ...]] = MappingProxyType(
    {
        ("gemm", "f32"): (
            ExportedFunction("gemm_dot", "const tracea_gemm_dot_tile*"),
            ExportedFunction("gemm_pack", "const tracea_gemm_pack_tile*"),
        ),
        ("gemm", "bf16"): (
            ExportedFunction("gemm{}_end", "void"),
            ExportedFunction("gemm_weight_only_bf16", _GEMM, note="with float32 on the left"),
            ExportedFunction("round{}", "const tracea_round_tile*"),
        ),
        ("gemm", "f16"): (ExportedFunction("round{}", "const tracea_round_tile*"),),
        ("gemm", "int16"): (ExportedFunction("round{}", "const tracea_round_int16_tile*"),),
        ("gemm", "int8"): (
            ExportedFunction("sum_rows{}", "const tracea_sum_rows_tile*"),
            ExportedFunction("depthwise_nhwc{}", "const tracea_depthwise_bytes_tile*"),
            ExportedFunction("round{}", "const tracea_round_int8_tile*"),
            ExportedFunction(
                "winograd_image{}", "const tracea_winograd_image_tile*", "int32_t",
                note="0: this level has none",
            ),
            ExportedFunction(
                "winograd_nhwc{}", "const tracea_winograd_bytes_tile*", "int32_t",
                note="likewise",
            ),
        ),
        ("gemm", "bf16x2"): (
            ExportedFunction("gemm{}_end", "void"),
            ExportedFunction(
                "round{}", "const tracea_round_tile*",
                note="rows of y are twice as long, filled up to whole turns",
            ),
        ),
        ("attention", "f32_by_f16"): (
            ExportedFunction("round{}", "const tracea_round_tile*", note="to fp16, any columns"),
        ),
        ("attention", "f32_by_bf16"): (
            ExportedFunction("round{}", "const tracea_round_tile*", note="to bf16, any columns"),
        ),
        ("attention", "f32_by_i8"): (
            ExportedFunction(
                "round{}", "const tracea_round_tile*",
                note="to the nearest of the integers from -128 to 127, which y holds in bytes",
            ),
        ),
        ("conv", "f32"): (ExportedFunction("conv_narrow", _CONV),),
        ("conv", "bf16"): (
            ExportedFunction("conv{}_end", "void"),
            ExportedFunction("conv_first_layer{}", _CONV,
                note="inputs are float32, results may be bf16"),
            ExportedFunction("first_layer_split", "const tracea_first_layer_line*", "int32_t"),
        ),
        ("conv", "f16"): (ExportedFunction("round_pixels{}", "const tracea_split_tile*"),),
        ("conv", "int16"): (
            ExportedFunction("image_range", "tracea_image_tile*"),
            ExportedFunction("image_round", "tracea_image_tile*"),
        ),
        ("conv", "bf16x2"): (
            ExportedFunction("conv{}_end", "void"),
            ExportedFunction("split_pixels", "const tracea_split_tile*"),
        ),
    }
)  # fmt: skip
"""Functions that kernels of one type export in addition."""
_NOTES = MappingProxyType(
    {
        "gemm_bf16": "each lane holds a pair of bf16; k is a number of pairs",
        "gemm_int16": "each lane holds a pair of integers; k is a number of pairs",
        "gemm_f16": "two rows of 16 numbers lie where the 16 pairs of gemm_bf16 do",
        "gemm_int8": "each lane holds four bytes; k is a number of fours",
        "gemm_bf16x2": "as gemm_bf16; upper and lower halves take turns along k",
        "attention_f32_by_f16": "k and v are fp16, and columns of k lie side by side",
        "attention_f32_by_bf16": "k and v are bf16, and columns of k lie side by side",
        "attention_f32_by_i8": "k and v are int8, and columns of k lie side by side",
        "conv_f16": "strides of x are in pairs; two rows of 16 filters lie where pairs do",
        "conv_bf16": "inputs are pairs of bf16; depth and strides are in pairs",
        "conv_int16": "each lane holds a pair of integers; depth and strides are in pairs",
        "conv_bf16x2": "each lane holds a pair: of x the upper half first, of w the lower",
        "depthwise_bf16": "strides of x are in pairs of elements",
        "pool_bf16": "strides of x are in pairs of elements; computes maxima only",
        "winograd_bf16_in": "x and v are bf16; their strides are in pairs",
        "winograd_bf16_out": "v is float32",
        "winograd_int16_in": "x is float32; v is integers, and its plane is in pairs",
        "gemm_block_sparse_bf16": "each lane holds a pair of bf16; steps of k are in pairs",
        "gemm_bitmap_bf16": "stored numbers are bf16, A is float32",
    }
)
"""Remarks on functions of one type."""


def _functions(op: str, dtype: str) -> Iterator[ExportedFunction]:
    for function in (*_OPS[op], *_OWN.get((op, dtype), ())):
        name = function.name.format(Call.name_of("", dtype))
        yield replace(function, name=name, note=function.note or _NOTES.get(name, ""))


_EVERY = {v.kernel: tuple(_functions(v.op, v.dtype)) for v in VARIANTS if v.op != "chain"}
_ARM = frozenset(_EVERY) - {v.kernel for v in VARIANTS if v.isa in _X86}
KERNELS: Mapping[str, tuple[ExportedFunction, ...]] = MappingProxyType(
    {kernel: functions for kernel, functions in _EVERY.items() if kernel not in _ARM}
)
"""The kernels that every processor family has, with their functions, in the order of
``tracea_isa_table``, which is the order of the variants.  A library may hold any of them, and any
chains."""

ARM_KERNELS: Mapping[str, tuple[ExportedFunction, ...]] = MappingProxyType(
    {kernel: functions for kernel, functions in _EVERY.items() if kernel in _ARM}
)
"""Kernels that Arm alone has; in ``tracea_isa_table`` they stand last."""
