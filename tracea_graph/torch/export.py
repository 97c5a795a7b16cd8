"""Write a graph that TorchDynamo captured as an ONNX model, with its weights as initializers."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

__all__ = ["ExportedGraph", "FrozenTensor", "NotExportedError", "export_graph"]


class NotExportedError(Exception):
    """A graph that ONNX cannot express; the message says why."""


@dataclass(frozen=True)
class FrozenTensor:
    """A parameter or buffer that became a constant of the model.

    ``argument`` is its index among the graph's arguments; ``version`` is PyTorch's version counter
    at the time of export.
    """

    argument: int
    tensor: weakref.ref[torch.Tensor]
    version: int

    def is_current(self, arguments: Sequence[Any]) -> bool:
        """Whether a call's argument is this tensor, and was not changed in place since export."""
        expected: Any = self.tensor()
        if arguments[self.argument] is not expected:
            return False
        return bool(expected.is_inference() or expected._version == self.version)


@dataclass(frozen=True)
class ExportedGraph:
    """An exported model file.

    * ``inputs``: for each input of the model, the index of the graph argument to feed.
    * ``names``, ``outputs``: names of the model's inputs and outputs.
    * ``weights``: parameters and buffers that are constants of the model.
    """

    model: Path
    inputs: tuple[int, ...]
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[FrozenTensor, ...]


def export_graph(graph: GraphModule, examples: Sequence[Any], model: Path) -> ExportedGraph:
    """Write a captured graph as the ONNX file ``model``.

    ``examples`` are tensors, and symbolic sizes of them.  Raises NotExportedError for a graph that
    changes its arguments, returns something other than tensors, or has operators that ONNX lacks.
    """
    closed = GraphModule(graph, _copy(graph))
    weights, inputs = _close(closed, examples)
    tensors = tuple(examples[i].detach() for i in inputs)  # tracing marks what it is given
    if not tensors:
        raise NotExportedError("the graph has no inputs")
    dims = tuple(
        {axis: torch.export.Dim.AUTO for axis, size in enumerate(_sizes(closed, i))
         if not isinstance(size, int)}
        for i in range(len(tensors))
    )  # fmt: skip
    try:
        # the traces below are none of the one that captured the graph
        with torch._guards.tracing(None), torch.no_grad(), _quiet():
            program = torch.export.export(closed.eval(), tensors, dynamic_shapes=dims)
            _check(program)
            written = torch.onnx.export(program, dynamo=True, verbose=False)
            assert written is not None
            written.save(str(model), external_data=True)
    except NotExportedError:
        raise
    except Exception as error:  # the exporters raise whatever they come across
        text = str(error).strip().splitlines() or [""]
        raise NotExportedError(f"{type(error).__name__}: {text[0]}") from error
    proto = written.model.graph
    names = tuple(str(value.name) for value in proto.inputs)
    if len(names) != len(tensors):
        raise NotExportedError("the exporter dropped an input")
    outputs = tuple(str(value.name) for value in proto.outputs)
    return ExportedGraph(model, tuple(inputs), names, outputs, tuple(weights))


def _copy(graph: GraphModule) -> torch.fx.Graph:
    copied = torch.fx.Graph()
    found = copied.graph_copy(graph.graph, {}, return_output_node=True)
    result, _ = found
    if not isinstance(result, tuple | list) or not all(isinstance(r, Node) for r in result):
        raise NotExportedError("a result is not a tensor")
    if any(not isinstance(r.meta.get("example_value"), torch.Tensor) for r in result):
        raise NotExportedError("a result is not a tensor")
    copied.output(tuple(result))
    return copied


def _close(graph: GraphModule, examples: Sequence[Any]) -> tuple[list[FrozenTensor], list[int]]:
    """Make weights attributes and read sizes from tensors; return weights and other arguments."""
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    first = next(node for node in graph.graph.nodes if node.op != "placeholder")
    weights, inputs, sizes = list[FrozenTensor](), list[int](), list[tuple[Node, Any]]()
    for i, (place, example) in enumerate(zip(places, examples, strict=True)):
        if isinstance(example, torch.SymInt):
            sizes.append((place, example))
        elif not isinstance(example, torch.Tensor):
            raise NotExportedError(f"an argument is of type {type(example).__name__}")
        elif is_weight(example):
            version = 0 if example.is_inference() else example._version
            weights.append(FrozenTensor(i, weakref.ref(example), version))
            graph.register_buffer(f"weight_{i}", example.detach())
            with graph.graph.inserting_before(first):
                place.replace_all_uses_with(graph.graph.get_attr(f"weight_{i}"))
            graph.graph.erase_node(place)
        else:
            place.target = f"input_{len(inputs)}"
            inputs.append(i)
    for place, symbol in sizes:
        source, axis = _source(places, inputs, symbol)
        with graph.graph.inserting_before(first):
            size = graph.graph.call_method("size", (source, axis))
        place.replace_all_uses_with(size)
        graph.graph.erase_node(place)
    graph.graph.lint()
    graph.recompile()
    return weights, inputs


def is_weight(example: torch.Tensor) -> bool:
    """Whether a tensor is a parameter or buffer of a module, as TorchDynamo tells."""
    static = getattr(example, "_dynamo_static_input_type", None) is not None
    return static or isinstance(example, torch.nn.Parameter)


def _source(places: Sequence[Node], inputs: Sequence[int], symbol: Any) -> tuple[Node, int]:
    """Return an input and its axis whose size is a symbol."""
    for i in inputs:
        for axis, size in enumerate(places[i].meta["example_value"].shape):
            if isinstance(size, torch.SymInt) and str(size) == str(symbol):
                return places[i], axis
    raise NotExportedError(f"no input has the size {symbol}")


def _sizes(graph: GraphModule, index: int) -> Sequence[Any]:
    """Return an input's sizes, symbolic ones included."""
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    shape: Sequence[Any] = places[index].meta["example_value"].shape
    return shape


def _check(program: torch.export.ExportedProgram) -> None:
    signature = program.run_decompositions({}).graph_signature  # with in-place operators resolved
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise NotExportedError("the graph changes its arguments")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what exporters print, and their warnings."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
