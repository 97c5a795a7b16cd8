"""Forms of a drawn model in which import has more to do: branches, loops, half precision.

What computes is the drawn model itself, so the answers are known whatever they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from tracea_graph.onnx_io.node_conversion import rename_values

__all__ = ["DEEPER", "FLAG", "halved", "in_branches", "in_loop"]

FLAG, DEEPER = "fuzz__flag", "fuzz__deeper"
"""Inputs that select a branch, and one in the other branch."""


def in_branches(model: ModelProto) -> ModelProto:
    """If(flag) { model } else { If(deeper) { model } else { model } }, all of equal names.

    Every second constant is one of the branches.
    """
    made, outputs = _copy(model), [f"{v.name}__out" for v in model.graph.output]
    inner = helper.make_node("If", [DEEPER], _inner(outputs))
    for name in ("then_branch", "else_branch"):
        inner.attribute.append(helper.make_attribute(name, _body(model, outputs)))
    other = helper.make_graph([inner], "other", [], _typed(model, _inner(outputs)))
    choice = helper.make_node("If", [FLAG], [v.name for v in model.graph.output])
    choice.attribute.append(helper.make_attribute("then_branch", _body(model, outputs)))
    choice.attribute.append(helper.make_attribute("else_branch", other))
    graph = made.graph
    flags = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in (FLAG, DEEPER)]
    graph.input.extend(flags)
    _only(graph, choice)
    own = {t.name for t in _own(model)}
    held = [t for t in graph.initializer if t.name not in own]
    graph.ClearField("initializer")
    graph.initializer.extend(held)
    return made


def in_loop(model: ModelProto, trips: int) -> ModelProto:
    """The model in a loop of so many iterations, whose outputs are stacked."""
    made, names = _copy(model), [v.name for v in model.graph.output]
    outputs = [f"{name}__out" for name in names]
    body = _body(model, outputs, every=True)
    heads = (("fuzz__i", TensorProto.INT64), ("fuzz__go", TensorProto.BOOL))
    body.input.extend(helper.make_tensor_value_info(n, kind, []) for n, kind in heads)
    body.node.append(helper.make_node("Identity", ["fuzz__go"], ["fuzz__on"]))
    results = [*body.output]
    body.ClearField("output")
    body.output.append(helper.make_tensor_value_info("fuzz__on", TensorProto.BOOL, []))
    body.output.extend(results)
    graph = made.graph
    constants = (np.array(trips, np.int64), "fuzz__trips"), (np.array(True), "fuzz__yes")
    graph.initializer.extend(numpy_helper.from_array(a, n) for a, n in constants)
    _only(graph, helper.make_node("Loop", ["fuzz__trips", "fuzz__yes"], names, body=body))
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    return made


def halved(model: ModelProto, kind: int, rounded: bool) -> ModelProto:
    """The model with every float32 tensor in a half type; if only ``rounded``, in float32 still,
    with its constants rounded to that type.

    Values that the model itself casts to that type are float32 then, too: from one half to itself
    a cast rounds nothing.
    """
    made = _copy(model)
    graph, floats = made.graph, (TensorProto.FLOAT, kind)
    target = TensorProto.FLOAT if rounded else kind
    attributes = [a for node in graph.node for a in node.attribute]
    for tensor in (*graph.initializer, *(a.t for a in attributes if a.HasField("t"))):
        if tensor.data_type in floats:
            with np.errstate(over="ignore"):
                half = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
            array = half.astype(helper.tensor_dtype_to_np_dtype(target))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type in floats:
            info.type.tensor_type.elem_type = target
    for attribute in attributes:
        if attribute.name == "to" and attribute.i in floats:
            attribute.i = target
    return made


def _body(model: ModelProto, outputs: Sequence[str], every: bool = False) -> GraphProto:
    """A branch that computes the model; ``every`` constant is an outer one, or every second."""
    names = {v: f"{v}__in" for node in model.graph.node for v in node.output if v}
    nodes = [rename_values(node, names) for node in model.graph.node]
    for output, value in zip(outputs, model.graph.output, strict=True):
        source = names.get(value.name, value.name)
        nodes.append(helper.make_node("Identity", [source], [output]))
    constants = [] if every else _own(model)
    return helper.make_graph(nodes, "body", [], _typed(model, outputs), constants)


def _own(model: ModelProto) -> list[TensorProto]:
    """The constants that branches have themselves: every second that cannot be fed."""
    fed = {v.name for v in model.graph.input}
    return [t for t in model.graph.initializer if t.name not in fed][1::2]


def _typed(model: ModelProto, names: Sequence[str]) -> list[ValueInfoProto]:
    """Declarations of the model's outputs by other names, without sizes."""
    found = []
    for name, value in zip(names, model.graph.output, strict=True):
        kind = value.type.tensor_type.elem_type
        found.append(helper.make_tensor_value_info(name, kind, None))
    return found


def _inner(outputs: Sequence[str]) -> list[str]:
    return [f"{name}__deep" for name in outputs]


def _only(graph: GraphProto, node: NodeProto) -> None:
    for name in ("node", "value_info"):
        graph.ClearField(name)
    graph.node.append(node)


def _copy(model: ModelProto) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(model)
    return made
