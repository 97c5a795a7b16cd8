"""The backend of ``torch.compile``: graphs as optimized ONNX models.

    fast = torch.compile(model.eval(), backend="tracea", options={"budget": 60})
    with torch.no_grad():
        y = fast(x)        # the first call exports, optimizes, verifies and times

A graph falls back to ``fallback`` (``"eager"``, or another backend such as ``"inductor"``) when
derivatives are needed, a tensor is not on the CPU, ONNX cannot express it, its result differs, or
it is not faster.  A call falls back when a weight was replaced or changed in place.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch.fx import GraphModule

from tracea_graph.api import optimize, session
from tracea_graph.errors import TraceaError, UsageError
from tracea_graph.options import Options
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.torch.export import ExportedGraph, NotExportedError, export_graph
from tracea_graph.torch.fallback_log import log_fallback

__all__ = ["compile_graph"]

_LOG = logging.getLogger("tracea_graph.torch")
_OP = "torch.compile"
_PAIRS = 7
_DTYPES = {
    torch.float32: np.float32, torch.float64: np.float64, torch.float16: np.float16,
    torch.int64: np.int64, torch.int32: np.int32, torch.int16: np.int16, torch.int8: np.int8,
    torch.uint8: np.uint8, torch.bool: np.bool_,
}  # fmt: skip
Compiled = Callable[..., Sequence[torch.Tensor]]


def compile_graph(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """Compile a captured graph; this function is ``torch.compile``'s backend ``tracea``.

    ``options`` are fields of :class:`tracea_graph.Options`, and two further ones.  ``fallback``
    names the backend for graphs and calls that this tool cannot run.  With ``always``, the
    optimized model is used even if PyTorch is faster.  Raises UsageError for unknown options and
    for any ``mode`` but the default.
    """
    if mode not in (None, "default"):
        raise UsageError(f"the backend tracea has no mode {mode!r}; use options")
    given = dict(options or {})
    other, always = str(given.pop("fallback", "eager")), bool(given.pop("always", False))
    try:
        wanted = Options(**{"threads": (torch.get_num_threads(),), **given})
    except TypeError as error:
        raise UsageError(f"the backend tracea: {str(error).partition(') ')[2]}") from error

    def fall_back(reason: str, level: int = logging.INFO) -> Compiled:
        log_fallback(_OP, reason, level)
        return _other(other, graph, example_inputs)

    if reason := _unable(example_inputs):
        return fall_back(reason)
    try:
        made = _ModelSession(graph, example_inputs, wanted, other)
    except NotExportedError as error:
        return fall_back(f"ONNX cannot express the graph ({error})")
    except TraceaError as error:
        return fall_back(f"the graph could not be optimized ({error})", logging.WARNING)
    arguments = _concrete(example_inputs)
    if arguments is not None:
        apart = made.distance(arguments)
        if apart > wanted.tolerance:
            reason = f"a result differs by {apart:.1e} of max|y|"
            return fall_back(reason, logging.WARNING)
        if not always and (ratio := made.ratio(arguments)) < 1:
            return fall_back(f"PyTorch is {1 / ratio:.2f} times as fast")
    return made


def _unable(examples: Sequence[Any]) -> str:
    tensors = [one for one in examples if isinstance(one, torch.Tensor)]
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        return "derivatives may be needed (use torch.no_grad or torch.inference_mode)"
    for one in tensors:
        if one.device.type != "cpu" or one.layout != torch.strided:
            return "a tensor is not on the CPU, or not dense"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    return ""


def _other(name: str, graph: GraphModule, examples: Sequence[Any]) -> Compiled:
    if name == "eager":
        own: Compiled = graph.forward
        return own
    found: Compiled = torch._dynamo.lookup_backend(name)(graph, list(examples))
    return found


def _concrete(examples: Sequence[Any]) -> list[Any] | None:
    """Return examples with sizes as numbers; None if a tensor has no data."""
    if any(isinstance(one, torch._subclasses.FakeTensor) for one in examples):
        return None
    # the size that a symbol stands for, without a guard on it
    return [one.node.hint if isinstance(one, torch.SymInt) else one for one in examples]


class _ModelSession:
    """An optimized model in ONNX Runtime that reads and writes PyTorch's memory."""

    def __init__(
        self, graph: GraphModule, examples: Sequence[Any], options: Options, other: str
    ) -> None:
        self._graph, self._examples, self._other = graph, examples, other
        self._fallback: Compiled | None = None
        with ScratchFolder("torch") as name:
            folder = Path(name)
            self._exported = export_graph(graph, examples, folder / "graph.onnx")
            if options.data is None and (feeds := _feeds(self._exported, examples)):
                np.savez(folder / "feeds.npz", **feeds)  # type: ignore[arg-type]
                options = Options(**{**vars(options), "data": folder / "feeds.npz"})
            options = Options(**{**vars(options), "output": folder / "result.onnx"})
            report = optimize(self._exported.model, options)
            _LOG.info("%s: %s, %d kernels", _OP, report.outcome, report.kernels)
            settings = onnxruntime.SessionOptions()
            settings.intra_op_num_threads = torch.get_num_threads()
            settings.log_severity_level = 3
            self._session = session(folder / "result.onnx", sess_options=settings)
        self._types = [_type_of(one) for one in self._session.get_outputs()]
        self._shapes: dict[tuple[torch.Size, ...], list[tuple[int, ...]]] = {}

    def __call__(self, *arguments: Any) -> Sequence[torch.Tensor]:
        """Run the model, or its fallback if a weight was replaced or changed in place."""
        if not all(weight.is_current(arguments) for weight in self._exported.weights):
            log_fallback(_OP, "a weight was replaced or changed since the model was compiled")
            if self._fallback is None:
                self._fallback = _other(self._other, self._graph, self._examples)
            return self._fallback(*arguments)
        return self._run(arguments)

    def _run(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        binding = self._session.io_binding()
        tensors = [arguments[i].detach().contiguous() for i in self._exported.inputs]
        for name, tensor in zip(self._exported.names, tensors, strict=True):
            binding.bind_input(
                name, "cpu", 0, _DTYPES[tensor.dtype], list(tensor.shape), tensor.data_ptr()
            )
        key = tuple(tensor.shape for tensor in tensors)
        if (shapes := self._shapes.get(key)) is None:
            shapes = self._shapes[key] = self._shapes_of(binding)
        results = [torch.empty(s, dtype=t) for s, t in zip(shapes, self._types, strict=True)]
        for name, result in zip(self._exported.outputs, results, strict=True):
            binding.bind_output(
                name, "cpu", 0, _DTYPES[result.dtype], list(result.shape), result.data_ptr()
            )
        self._session.run_with_iobinding(binding)
        return results

    def _shapes_of(self, binding: Any) -> list[tuple[int, ...]]:
        """Run once with outputs that ONNX Runtime allocates; return the shapes of the results."""
        for name in self._exported.outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        shapes = [tuple(one.shape()) for one in binding.get_outputs()]
        binding.clear_binding_outputs()
        return shapes

    def distance(self, arguments: Sequence[Any]) -> float:
        """Return the largest difference from the captured graph, as a share of max|y|."""
        found, worst = self._run(arguments), 0.0
        with torch.no_grad():
            expected = self._graph(*arguments)
        for own, one in zip(found, expected, strict=True):
            if own.shape != one.shape or own.dtype != one.dtype:
                return float("inf")
            if one.numel():
                apart = (own.double() - one.double()).abs().max()
                worst = max(worst, float(apart / one.double().abs().max().clamp_min(1e-30)))
        return worst

    def ratio(self, arguments: Sequence[Any]) -> float:
        """Return the fallback's time divided by the model's, timed in pairs (above 1: faster)."""
        rival = self._fallback = _other(self._other, self._graph, self._examples)
        pairs = []
        with torch.no_grad():
            rival(*arguments)
            for _ in range(_PAIRS):
                start = time.perf_counter()
                rival(*arguments)
                between = time.perf_counter()
                self(*arguments)
                pairs.append((between - start) / (time.perf_counter() - between))
        return statistics.median(pairs)


def _feeds(exported: ExportedGraph, examples: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    arguments = _concrete(examples)
    if arguments is None:
        return {}
    tensors = (arguments[i].detach() for i in exported.inputs)
    return {name: t.numpy() for name, t in zip(exported.names, tensors, strict=True)}


def _type_of(output: Any) -> torch.dtype:
    name = {"float": "float32", "double": "float64"}
    word = str(output.type).removeprefix("tensor(").removesuffix(")")
    found: torch.dtype = getattr(torch, name.get(word, word))
    return found
