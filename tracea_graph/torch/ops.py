"""PyTorch operators on the CPU kernels: ``conv2d``, ``linear``, ``scaled_dot_product_attention``.

They take the arguments of the functions of these names in ``torch.nn.functional``, share memory
with tensors in both directions, and work with tracing, ``torch.compile``, ``vmap`` and autograd.
Kernels run under the :data:`CONDITIONS`; PyTorch runs all other calls.  A weight is packed at its
second use if it has not changed since the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from tracea_graph.native_library import Conv2dParams, KernelError, NativeLibrary, TensorView
from tracea_graph.torch.fallback_log import log_call_fallback
from tracea_graph.torch.kernel_library import kernel_library, packed_weights, tensor_view

__all__ = ["CONDITIONS", "conv2d", "linear", "scaled_dot_product_attention"]

CONDITIONS = (
    "tensors must be dense, on the CPU and float32; only a mask may be boolean",
    "autocast must be off",
    "convolutions must pad with zeros",
    "attention must have a nonzero scale and no dropout, operands of 3 or 4 axes and equal batch "
    "sizes, and a number of query heads that is a multiple of that of key heads",
    "this machine must have a C++ compiler, or use_library must be given a library",
)
"""All must hold for a kernel to run; otherwise PyTorch's operator runs.

PyTorch always computes derivatives.
"""

_LIBRARY = torch.library.Library("tracea", "DEF")
_LIBRARY.define(
    "conv2d(Tensor input, Tensor weight, Tensor? bias, SymInt[2] stride, SymInt[2] padding, "
    "SymInt[2] dilation, SymInt groups) -> Tensor"
)
_LIBRARY.define("linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor")
_LIBRARY.define(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
    "float dropout_p, bool is_causal, float? scale, bool enable_gqa) -> Tensor"
)


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolve images [N, C, H, W], or one [C, H, W], as ``torch.nn.functional.conv2d`` does.

    Raises RuntimeError if the shapes do not fit.
    """
    pads = _pads(padding, weight, dilation)
    if pads is None or torch.is_autocast_enabled(input.device.type):
        log_call_fallback(
            "conv2d", "autocast is on" if pads else "padding differs between two sides of an axis"
        )
        return functional.conv2d(input, weight, bias, stride, padding, dilation, groups)
    images = input.unsqueeze(0) if input.dim() == 3 else input
    found: Tensor = torch.ops.tracea.conv2d.default(
        images, weight, bias, _pair(stride), pads, _pair(dilation), groups
    )
    return found.squeeze(0) if input.dim() == 3 else found


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows by ``weight`` [N, K] transposed, as ``torch.nn.functional.linear`` does.

    Raises RuntimeError if the shapes do not fit.
    """
    if torch.is_autocast_enabled(input.device.type):
        log_call_fallback("linear", "autocast is on")
        return functional.linear(input, weight, bias)
    found: Tensor = torch.ops.tracea.linear.default(input, weight, bias)
    return found


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Attend as ``torch.nn.functional.scaled_dot_product_attention`` does.

    Raises RuntimeError if the shapes do not fit.
    """
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    reason = ""
    if torch.is_autocast_enabled(query.device.type):
        reason = "autocast is on"
    elif dropout_p:
        reason = "dropout_p is not 0"
    elif query.dim() not in (3, 4) or not query.dim() == key.dim() == value.dim():
        reason = "operands do not all have 3 or 4 axes"
    elif attn_mask is not None and (is_causal or not 1 < attn_mask.dim() <= query.dim()):
        reason = "the mask has too few or too many axes, or is given with is_causal"
    elif not _regular(query, key, value, enable_gqa):
        reason = "batch sizes differ, or numbers of heads do not fit"
    if reason:
        log_call_fallback("scaled_dot_product_attention", reason)
        return functional.scaled_dot_product_attention(*given, scale=scale, enable_gqa=enable_gqa)
    alone = query.dim() == 3
    q, k, v = (t.unsqueeze(0) if alone else t for t in (query, key, value))
    found: Tensor = torch.ops.tracea.scaled_dot_product_attention.default(
        q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )
    return found.squeeze(0) if alone else found


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value] * 2 if isinstance(value, int) else [*value] * (3 - len(value))


def _pads(
    padding: str | int | Sequence[int], weight: Tensor, dilation: int | Sequence[int]
) -> list[int] | None:
    """Return the padding of rows and of columns; None if the two sides of an axis differ."""
    if not isinstance(padding, str):
        return _pair(padding)
    if padding == "valid":
        return [0, 0]
    both = [d * (k - 1) for k, d in zip(weight.shape[2:], _pair(dilation), strict=True)]
    return None if any(width % 2 for width in both) else [width // 2 for width in both]


def _regular(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> bool:
    """Whether kernels can pair the heads: batch sizes are equal, and so are numbers of heads.

    With ``grouped``, the number of query heads may also be a multiple of that of key heads.
    """
    if query.dim() == 4 and not query.shape[0] == key.shape[0] == value.shape[0]:
        return False
    heads, kept = query.shape[-3], key.shape[-3]
    if value.shape[-3] != kept or kept == 0:
        return False
    return heads == kept or (grouped and heads % kept == 0)


# ---- kernels -------------------------------------------------------------------------------


def _unable(*tensors: Tensor | None, mask: Tensor | None = None) -> str:
    """Return why kernels cannot take tensors; "" if they can."""
    for tensor in (*tensors, mask):
        if tensor is None:
            continue
        if tensor.device.type != "cpu":
            return f"a tensor is on {tensor.device.type}"
        if tensor.layout != torch.strided or tensor.is_neg():
            return "a tensor is not dense"
        if tensor.dtype != torch.float32 and not (tensor.dtype == torch.bool and tensor is mask):
            return f"a tensor is {str(tensor.dtype).removeprefix('torch.')}"
    return "there is no library of kernels" if kernel_library() is None else ""


def _run(
    op: str, reason: str, out: Tensor, call: Callable[[NativeLibrary, Tensor], None],
    reference: Callable[[], Tensor],
) -> Tensor:  # fmt: skip
    """Return ``out`` written by a kernel, or PyTorch's result with the strides of ``out``."""
    library = kernel_library() if not reason else None
    if library is not None:
        try:
            call(library, out)
            return out
        except KernelError as error:
            reason = str(error)
    log_call_fallback(op, reason)
    with torch._C._AutoDispatchBelowAutograd():
        return out.copy_(reference())


def _conv_out(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    torch._check(
        input.dim() == 4 and weight.dim() == 4 and input.shape[1] == weight.shape[1] * groups,
        lambda: (
            f"images {list(input.shape)} do not fit filters {list(weight.shape)} in {groups} "
            "groups"
        ),
    )
    sizes = [
        (input.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1)
        // stride[i]
        + 1
        for i in range(2)
    ]
    torch._check(
        min(sizes) > 0,
        lambda: f"filters {list(weight.shape)} are larger than padded images {list(input.shape)}",
    )
    last = input.is_contiguous(memory_format=torch.channels_last) and not input.is_contiguous()
    return torch.empty(
        (input.shape[0], weight.shape[0], *sizes), dtype=input.dtype, device=input.device,
        memory_format=torch.channels_last if last else torch.contiguous_format,
    )  # fmt: skip


def _conv(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    given = (input, weight, bias, stride, padding, dilation, groups)

    def call(library: NativeLibrary, out: Tensor) -> None:
        def weights() -> tuple[TensorView, TensorView | None, Conv2dParams]:
            params = Conv2dParams.of(stride, (*padding, *padding), dilation, groups)
            return tensor_view(weight), None if bias is None else tensor_view(bias), params

        key = (*stride, *padding, *dilation, groups)
        ready = packed_weights(weight, bias, key, lambda: library.prepare_conv2d(*weights()))
        if ready is not None:
            ready(tensor_view(input), tensor_view(out))
        else:
            w, b, params = weights()
            library.conv2d(tensor_view(input), w, b, tensor_view(out), params)

    reason = _unable(input, weight, bias)
    return _run("conv2d", reason, _conv_out(*given), call, lambda: functional.conv2d(*given))


def _linear_out(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    torch._check(
        input.dim() >= 1 and weight.dim() == 2 and input.shape[-1] == weight.shape[1],
        lambda: f"rows of {list(input.shape)} do not fit weights {list(weight.shape)}",
    )
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    def call(library: NativeLibrary, out: Tensor) -> None:
        def weights() -> tuple[TensorView, TensorView | None]:
            return tensor_view(weight.t()), None if bias is None else tensor_view(bias)

        rows = input.reshape(-1, input.shape[-1])  # a copy unless its strides allow a view
        x, y = tensor_view(rows), tensor_view(out.view(-1, out.shape[-1]))
        ready = packed_weights(weight, bias, "linear", lambda: library.prepare_gemm(*weights()))
        if ready is not None:
            ready(x, y)
        else:
            w, b = weights()
            library.gemm(x, w, b, y)

    reason = _unable(input, weight, bias)
    out = _linear_out(input, weight, bias)
    return _run("linear", reason, out, call, lambda: functional.linear(input, weight, bias))


def _attention_out(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float,
    is_causal: bool, scale: float | None, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    torch._check(
        query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2],
        lambda: (
            f"shapes of query {list(query.shape)}, key {list(key.shape)} and value "
            f"{list(value.shape)} do not fit"
        ),
    )
    batch, heads, rows, _ = query.shape
    # heads side by side: what follows nearly always merges them
    return query.new_empty((batch, rows, heads, value.shape[-1])).transpose(1, 2)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float,
    is_causal: bool, scale: float | None, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    def call(library: NativeLibrary, out: Tensor) -> None:
        rows = tuple(t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
        mask = None
        if attn_mask is not None:
            mask = tensor_view(attn_mask.expand(*query.shape[:3], key.shape[2]))
        q, k, v = map(tensor_view, rows)
        library.attention(q, k, v, mask, tensor_view(out), scale or 0.0, int(is_causal))

    def reference() -> Tensor:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    reason = _unable(query, key, value, mask=attn_mask) or ("the scale is 0" if scale == 0 else "")
    given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return _run("scaled_dot_product_attention", reason, _attention_out(*given), call, reference)


# ---- derivatives, in PyTorch ---------------------------------------------------------------


def _conv_inputs(ctx: Any, inputs: Any, output: Tensor) -> None:
    input, weight, bias, *ctx.settings = inputs
    ctx.save_for_backward(input, weight)
    ctx.biased = bias is not None


def _conv_backward(ctx: Any, gradient: Tensor) -> Any:
    input, weight = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.settings
    found = torch.ops.aten.convolution_backward.default(
        gradient, input, weight, [weight.shape[0]], stride, padding, dilation, False, [0, 0],
        groups, [ctx.needs_input_grad[0], ctx.needs_input_grad[1],
                 ctx.biased and ctx.needs_input_grad[2]],
    )  # fmt: skip
    return *found, None, None, None, None


def _linear_inputs(ctx: Any, inputs: Any, output: Tensor) -> None:
    input, weight, _bias = inputs
    ctx.save_for_backward(input, weight)


def _linear_backward(ctx: Any, gradient: Tensor) -> Any:
    input, weight = ctx.saved_tensors
    wants = ctx.needs_input_grad
    rows = gradient.reshape(-1, gradient.shape[-1])
    return (
        gradient @ weight if wants[0] else None,
        rows.t() @ input.reshape(-1, input.shape[-1]) if wants[1] else None,
        rows.sum(0) if wants[2] else None,
    )


def _attention_inputs(ctx: Any, inputs: Any, output: Tensor) -> None:
    query, key, value, mask, _dropout, ctx.causal, ctx.scale, _grouped = inputs
    ctx.save_for_backward(query, key, value, mask)


def _attention_backward(ctx: Any, gradient: Tensor) -> Any:
    query, key, value, mask = ctx.saved_tensors
    batch, heads, rows, size = query.shape
    kept, keys = key.shape[1], key.shape[2]
    shared = heads // kept
    scale = 1 / math.sqrt(size) if ctx.scale is None else ctx.scale
    wide_key, wide_value = (t.repeat_interleave(shared, 1) for t in (key, value))
    scores = query @ wide_key.transpose(-1, -2) * scale
    seen = mask if mask is not None and mask.dtype == torch.bool else None
    if ctx.causal:
        seen = torch.ones(rows, keys, dtype=torch.bool, device=query.device).tril()
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1)
    if seen is not None:  # rows that see no key
        weights = weights.masked_fill(~seen, 0.0)

    def summed(wide: Tensor) -> Tensor:
        return wide.reshape(batch, kept, shared, *wide.shape[2:]).sum(2)

    slopes = gradient @ wide_value.transpose(-1, -2)
    slopes = weights * (slopes - (slopes * weights).sum(-1, keepdim=True))
    wants = ctx.needs_input_grad
    return (
        slopes @ wide_key * scale if wants[0] else None,
        summed(slopes.transpose(-1, -2) @ query * scale) if wants[1] else None,
        summed(weights.transpose(-1, -2) @ gradient) if wants[2] else None,
        slopes.sum_to_size(mask.shape) if wants[3] else None,
        None, None, None, None,
    )  # fmt: skip


# ---- registration --------------------------------------------------------------------------


def _mapped(name: str) -> Callable[..., tuple[Tensor, int]]:
    """Call an operator once for each element of a mapped axis."""

    def rule(info: Any, in_dims: Any, *given: Any) -> tuple[Tensor, int]:
        call = getattr(torch.ops.tracea, name).default
        every = [
            call(*(
                one.select(axis, i) if isinstance(one, Tensor) and axis is not None else one
                for one, axis in zip(given, in_dims, strict=True)
            ))
            for i in range(info.batch_size)
        ]  # fmt: skip
        return torch.stack(every), 0

    return rule


def _register(
    name: str, kernel: Callable[..., Tensor], out: Callable[..., Tensor],
    inputs: Callable[..., None], backward: Callable[..., Any],
) -> None:  # fmt: skip
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    full = f"tracea::{name}"
    torch.library.register_fake(full, out, lib=_LIBRARY)
    torch.library.register_autograd(full, backward, setup_context=inputs, lib=_LIBRARY)
    torch.library.register_vmap(full, _mapped(name), lib=_LIBRARY)


_register("conv2d", _conv, _conv_out, _conv_inputs, _conv_backward)
_register("linear", _linear, _linear_out, _linear_inputs, _linear_backward)
_register(
    "scaled_dot_product_attention", _attention, _attention_out, _attention_inputs,
    _attention_backward,
)  # fmt: skip
