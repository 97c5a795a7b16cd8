"""torch's two ONNX exporters behind one signature.

``trace`` runs the TorchScript-based one, the only one of older versions of torch; ``capture`` the
one built on ``torch.export``.  Both give every parameter and statistic a random value first: the
exporters merge equal tensors, as fresh biases and norms would be.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

__all__ = ["Dynamic", "capture", "trace"]

Dynamic = Mapping[int, str]
"""Axis → the symbol it gets."""


def trace(
    module: Any,
    feeds: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    dynamic: Mapping[str, Dynamic],
    opset: int = 17,
    **arguments: Any,
) -> onnx.ModelProto:
    """Export by running the module once on ``feeds`` and recording it."""
    import torch

    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        arguments["dynamo"] = False
    arguments |= {"input_names": list(inputs), "output_names": list(outputs)}
    axes = {name: dict(dims) for name, dims in dynamic.items()}
    return _to_proto(module, feeds, opset_version=opset, dynamic_axes=axes, **arguments)


def capture(
    module: Any,
    feeds: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    dynamic: Mapping[str, Dynamic],
    opset: int = 20,
) -> onnx.ModelProto:
    """Export the whole program with symbolic dims.

    A symbol that is a sum gets a name of its own: ``torch.export`` proves no such equalities.
    """
    import torch

    names = {n: n if "+" not in n else "total_sequence" for d in dynamic.values() for n in d.values()}
    dims = {name: torch.export.Dim(name) for name in names.values()}
    shapes = tuple({a: dims[names[n]] for a, n in dynamic[name].items()} for name in inputs)
    return _to_proto(
        module,
        feeds,
        dynamo=True,
        opset_version=opset,
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_shapes=(shapes,) if _variadic(module) else shapes,
    )


def _variadic(module: Any) -> bool:
    """Whether ``forward`` takes ``*tensors``, whose shapes are one tuple."""
    kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
    return kinds == [inspect.Parameter.VAR_POSITIONAL]


def _random(module: Any) -> Any:
    """Small weights survive stripping, so these are of a sensible scale, too."""
    import torch

    torch.manual_seed(0)
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if not value.is_floating_point():
            continue
        if name.endswith("running_var"):
            value.data.uniform_(0.5, 1.5)
        elif name.endswith("running_mean") or "bias" in name:
            value.data.normal_(0.0, 0.1)
        elif isinstance(value, torch.nn.Parameter):
            scale = value.dim() == 1
            value.data.normal_(1.0 if scale else 0.0, 0.1)
    return module.eval()


def _to_proto(module: Any, feeds: tuple[Any, ...], **arguments: Any) -> onnx.ModelProto:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(_random(module), feeds, str(path), **arguments)
        return onnx.load(path)
