"""PyTorch: operators and modules on the kernels, and a backend of ``torch.compile``.

    import tracea_graph.torch as tt

    tt.patch(model)                                  # its convolutions and linear layers
    y = tt.ops.conv2d(x, weight, bias, padding=1)    # an operator
    fast = torch.compile(model, backend="tracea")    # the graph as an optimized ONNX model

Needs the extra ``tracea-graph[torch]``; nothing else in the package imports PyTorch.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401 (asked for here, to say what is missing)
except ImportError as error:
    raise ImportError(
        "tracea_graph.torch needs PyTorch: pip install tracea-graph[torch]"
    ) from error

from tracea_graph.torch import ops
from tracea_graph.torch.fallback_log import fallback_counts
from tracea_graph.torch.kernel_library import use_library
from tracea_graph.torch.modules import (
    TraceaConv2d,
    TraceaLinear,
    attention_kernels,
    patch_conv2d,
    patch_module,
)

__all__ = [
    "TraceaConv2d",
    "TraceaLinear",
    "attention_kernels",
    "fallback_counts",
    "ops",
    "patch_conv2d",
    "patch_module",
    "use_library",
]  # fmt: skip
