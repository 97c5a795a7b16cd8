"""Writing part of a model: without some of its outputs, and with inner values as inputs."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto, ValueInfoProto, helper

from tracea_graph.errors import UsageError, did_you_mean
from tracea_graph.ir import Node
from tracea_graph.onnx_io.imported_model import Model
from tracea_graph.onnx_io.model_writer import WrittenModel, write

__all__ = ["write_part"]


def write_part(model: Model, unused: Sequence[str], fed: Sequence[str], out: Path) -> WrittenModel:
    """Write a model without its ``unused`` outputs, and with the inner values ``fed`` as inputs.

    Nodes and inputs that nothing reads any more are left out.  Raises UsageError for a name that
    the model lacks, for a value of unknown type, if no output is left, and if the file cannot be
    written.
    """
    outputs = [v for v in model.skeleton.graph.output if v.name not in unused]
    _check(model, unused, {v.name for v in model.skeleton.graph.output}, "output")
    if not outputs:
        raise UsageError(f"no output of {model.path.name} is left")
    nodes = [n for region in model.graph.regions() for n in region.nodes]
    _check(model, fed, {v for n in nodes for v in n.outputs}, "value")
    kept, read = _needed(nodes, [v.name for v in outputs], {*fed})
    old = {v.name: v for v in model.skeleton.graph.input}
    inputs = [info for name, info in old.items() if name in read]
    inputs += [_info(model, name) for name in dict.fromkeys(fed) if name in read]
    skeleton = ModelProto()
    skeleton.CopyFrom(model.skeleton)
    for field, values in (("input", inputs), ("output", outputs)):
        skeleton.graph.ClearField(field)
        getattr(skeleton.graph, field).extend(values)
    feeds = tuple(v.name for v in inputs if v.name not in model.overridable)
    part = replace(model, skeleton=skeleton, inputs=feeds)
    return write(part, kept, model.graph.weights, out)


def _check(model: Model, names: Sequence[str], known: Set[str], kind: str) -> None:
    for name in names:
        if name not in known:
            which = did_you_mean(name, known) or ""
            raise UsageError(f"{model.path.name} has no {kind} {name!r}{which}")


def _needed(
    nodes: Sequence[Node], outputs: Sequence[str], fed: Set[str]
) -> tuple[list[Node], set[str]]:
    """Return the nodes that outputs depend on if some values are fed, and all values read."""
    writer = {v: node for node in nodes for v in node.outputs if v and v not in fed}
    read, ahead, found = set[str](), list(outputs), set[int]()
    while ahead:
        value = ahead.pop()
        if value in read:
            continue
        read.add(value)
        if (node := writer.get(value)) is not None and id(node) not in found:
            found.add(id(node))
            ahead += node.reads
    return [node for node in nodes if id(node) in found], read


def _info(model: Model, name: str) -> ValueInfoProto:
    spec = model.graph.spec(name)
    if spec.dtype is None or spec.shape is None:
        raise UsageError(f"the type of {name!r} is not known, so it cannot be fed")
    shape = [e if isinstance(e, int) else str(e) for e in spec.shape]
    return helper.make_tensor_value_info(name, spec.dtype.onnx, shape)
