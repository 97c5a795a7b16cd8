"""Modules whose layers run on the kernels, and functions that put them into a model."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn
from torch.overrides import TorchFunctionMode

from tracea_graph.torch import ops
from tracea_graph.torch.fallback_log import log_call_fallback

__all__ = ["TraceaConv2d", "TraceaLinear", "attention_kernels", "patch_conv2d", "patch_module"]

_LOG = logging.getLogger("tracea_graph.torch")


class TraceaConv2d(nn.Conv2d):  # type: ignore[misc]
    """``torch.nn.Conv2d`` on the kernels; padding modes other than zeros fall back to PyTorch."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Convolve images [N, C, H, W], or one [C, H, W]."""
        if self.padding_mode != "zeros":
            log_call_fallback("conv2d", f"the padding mode is {self.padding_mode}")
            return super().forward(input)
        return ops.conv2d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class TraceaLinear(nn.Linear):  # type: ignore[misc]
    """``torch.nn.Linear`` on the kernels."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Multiply rows [..., K] by the transposed weight [N, K]; return [..., N]."""
        return ops.linear(input, self.weight, self.bias)


class attention_kernels(TorchFunctionMode):  # type: ignore[misc]
    """Run PyTorch's attention function on the kernels within ``with attention_kernels():``.

    Models call ``scaled_dot_product_attention`` as a function, so no module can be replaced.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the kernels for attention, and every other function as it is."""
        if func is functional.scaled_dot_product_attention:
            return ops.scaled_dot_product_attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


_REPLACED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: TraceaConv2d,
    nn.Linear: TraceaLinear,
}


def patch_conv2d(module: nn.Module) -> int:
    """Turn every ``Conv2d`` in a module, or the module itself, into a :class:`TraceaConv2d`.

    They are changed in place and keep their parameters, hooks and names.  Returns how many there
    are.  Subclasses of ``Conv2d`` are not changed, since they may compute something else; each is
    logged.
    """
    return _patch(module, (nn.Conv2d,))


def patch_module(module: nn.Module) -> int:
    """Make every ``Conv2d`` and ``Linear`` in a module run on the kernels, in place.

    Returns the number of replaced modules; see :func:`patch_conv2d` for what stays.  Attention is
    a function, not a module: use :class:`attention_kernels` for it.
    """
    return _patch(module, tuple(_REPLACED))


def _patch(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> int:
    count = 0
    for name, inner in module.named_modules():
        if type(inner) in kinds:
            inner.__class__ = _REPLACED[type(inner)]
            count += 1
        elif isinstance(inner, kinds) and type(inner) not in _REPLACED.values():
            _LOG.info("%s is not replaced: %s is a subclass", name, type(inner).__name__)
    return count
