"""Call torch's two ONNX exporters through one signature.

``trace`` runs the TorchScript-based one, the only one of older versions of torch; ``capture`` the
one built on ``torch.export``.  Both first give every parameter and statistic a random value,
because the exporters merge equal tensors, such as fresh biases and norms.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

__all__ = ["Dynamic", "capture", "trace"]

Dynamic = Mapping[int, str]
"""Symbol of each dynamic axis."""


def trace(
    module: Any,
    feeds: tuple[Any, ...],
    dynamic: Mapping[str, Dynamic],
    opset: int = 17,
    **arguments: Any,
) -> onnx.ModelProto:
    """Export by running the module once on ``feeds`` and recording it.

    ``dynamic`` names every input, in the order of ``feeds``, then every output.
    """
    import torch

    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        arguments["dynamo"] = False
    axes = {name: dict(dims) for name, dims in dynamic.items() if dims}
    arguments |= {"dynamic_axes": axes, "opset_version": opset}
    return _to_proto(module, feeds, list(dynamic), arguments)


def capture(
    module: Any, feeds: tuple[Any, ...], dynamic: Mapping[str, Dynamic], opset: int = 20
) -> onnx.ModelProto:
    """Export the whole program with symbolic dims; ``dynamic`` as in :func:`trace`.

    A symbol that is a sum gets a name of its own, since ``torch.export`` proves no such
    equalities.
    """
    import torch

    inputs = tuple(dynamic.items())[: len(feeds)]
    symbols = {symbol for _, dims in inputs for symbol in dims.values()}
    dims = {
        symbol: torch.export.Dim("total_sequence" if "+" in symbol else symbol)
        for symbol in symbols
    }
    shapes = tuple({axis: dims[symbol] for axis, symbol in own.items()} for _, own in inputs)
    arguments: dict[str, Any] = {"dynamo": True, "opset_version": opset}
    arguments["dynamic_shapes"] = (shapes,) if _variadic(module) else shapes
    return _to_proto(module, feeds, list(dynamic), arguments)


def _variadic(module: Any) -> bool:
    """Return whether ``forward`` takes ``*tensors``, whose shapes are one tuple."""
    kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
    return kinds == [inspect.Parameter.VAR_POSITIONAL]


def _random(module: Any) -> Any:
    """Randomise a module; small weights survive stripping, so their scale is realistic too."""
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


def _to_proto(
    module: Any, feeds: tuple[Any, ...], names: list[str], arguments: dict[str, Any]
) -> onnx.ModelProto:
    import torch

    arguments |= {"input_names": names[: len(feeds)], "output_names": names[len(feeds) :]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(_random(module), feeds, str(path), **arguments)
        return onnx.load(path)
