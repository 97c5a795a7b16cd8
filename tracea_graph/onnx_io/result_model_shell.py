"""The result's ``ModelProto`` without constants, with the original's metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import count

from onnx import GraphProto, ModelProto, NodeProto, StringStringEntryProto, helper

from tracea_graph.errors import GraphError
from tracea_graph.ir import Node, Weight
from tracea_graph.onnx_io import initializer_guards, subgraph_flattening
from tracea_graph.onnx_io import local_functions as function_io
from tracea_graph.onnx_io import node_conversion as node_io
from tracea_graph.onnx_io.imported_model import Model
from tracea_graph.onnx_io.local_functions import LocalFunction
from tracea_graph.onnx_io.node_conversion import OWN_DOMAINS, topological_node_order

__all__ = ["build_shell", "referenced_weights"]

MINIMUM_IR = 8
"""Minimum IR version: functions need it, and all supported ONNX Runtime versions read it."""


def build_shell(
    model: Model,
    nodes: Sequence[Node],
    functions: Sequence[LocalFunction],
    domain: str,
    metadata: Mapping[str, str],
    node_metadata: Mapping[str, Mapping[str, str]],
    guard: Sequence[Node] = (),
) -> ModelProto:
    """Return a model of ``nodes`` without initializers; ``guard`` computes a guard's condition."""
    source = model.skeleton
    proto = ModelProto()
    proto.CopyFrom(source)
    graph = proto.graph
    for field in ("node", "initializer"):
        graph.ClearField(field)
    for node in _sorted(nodes):
        graph.node.append(_with_metadata(node, source.graph.node, node_metadata))
    _make_names_unique(graph)
    proto.ir_version = max(source.ir_version, MINIMUM_IR)
    _keep_inputs(graph, model)
    _keep_live(graph, nodes)
    ours = {v for node in nodes if domain and node.domain == domain for v in node.outputs}
    _unname(graph, ours)
    if ours:
        _correct(graph, model)
        _declare_outputs(graph, model)
    subgraph_flattening.sink_into_subgraphs(proto)
    called = (n.domain for f in functions for n in f.nodes if n.domain.startswith(OWN_DOMAINS))
    contrib = (n.domain for n in nodes if n.domain == "com.microsoft")
    for name in dict.fromkeys(filter(None, (domain, *called, *contrib))):
        if not any(i.domain == name for i in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid(name, 1))
    for function in functions:
        imported = source.graph.node
        proto.functions.append(
            function_io.to_proto(function, domain, proto.opset_import, imported)
        )
    _set_metadata(proto.metadata_props, metadata)
    if guard:
        initializer_guards.wrap_in_guard(
            proto, model, [node_io.to_proto(node, ()) for node in guard]
        )
    return proto


def referenced_weights(
    model: Model, proto: ModelProto, nodes: Sequence[Node], weights: Mapping[str, Weight]
) -> dict[str, Weight]:
    """Return the weights that nodes, outputs, annotations or training info refer to.

    Raises GraphError if something refers to a value that nothing provides.
    """
    graph = proto.graph
    written = {v for node in nodes for v in node.outputs}
    given = {v.name for v in graph.input} | {s.values.name for s in graph.sparse_initializer}
    read = [v for node in nodes for v in node.reads] + [v.name for v in graph.output]
    needed: dict[str, Weight] = {}
    for value in dict.fromkeys(read):
        if value in written or value in given:
            continue
        if value not in weights:
            raise GraphError(f"value {value!r} is read but nothing provides it")
        needed[value] = weights[value]
    spoken = _annotated_values(graph) | ({*_named(model)} if proto.training_info else set())
    return needed | {v: weights[v] for v in sorted(spoken - written - given) if v in weights}


def _sorted(nodes: Sequence[Node]) -> list[Node]:
    order = topological_node_order([n.reads for n in nodes], [n.outputs for n in nodes])
    if len(order) < len(nodes):
        raise GraphError("the nodes to be written form a cycle")
    return [nodes[i] for i in order]


def _make_names_unique(graph: GraphProto) -> None:
    """Make node names unique, as ONNX Runtime requires: repeated operators repeat their names."""
    used = {n.name for n in graph.node}
    seen: set[str] = set()
    for node in graph.node:
        if node.name in seen:
            free = (f"{node.name}_{i}" for i in count(2))
            node.name = next(name for name in free if name not in used)
            used.add(node.name)
        seen.update({node.name} - {""})


def _with_metadata(
    node: Node, imported: Sequence[NodeProto], extra: Mapping[str, Mapping[str, str]]
) -> NodeProto:
    proto = node_io.to_proto(node, imported)
    entries = extra.get(node.name) or extra.get(next(iter(node.outputs), ""))
    if not entries:
        return proto
    marked = NodeProto()
    marked.CopyFrom(proto)
    _set_metadata(marked.metadata_props, entries)
    return marked


def _set_metadata(props: object, entries: Mapping[str, str]) -> None:
    held: list[StringStringEntryProto] = list(props)  # type: ignore[call-overload]
    known = {p.key: p for p in held}
    for key, value in entries.items():
        if key in known:
            known[key].value = value
        else:
            props.add(key=key, value=value)  # type: ignore[attr-defined]


def _keep_inputs(graph: GraphProto, model: Model) -> None:
    """List initializers as inputs as before IR 4; from IR 4 that makes them overridable."""
    kept = {*model.inputs, *model.overridable}
    inputs = [v for v in graph.input if v.name in kept]
    if len(inputs) < len(graph.input):
        graph.ClearField("input")
        graph.input.extend(inputs)


def _keep_live(graph: GraphProto, nodes: Iterable[Node]) -> None:
    """Drop the value infos of values that no longer exist."""
    alive = {v for node in nodes for v in (*node.reads, *node.outputs)}
    alive |= {v.name for v in (*graph.input, *graph.output)}
    infos = [v for v in graph.value_info if v.name in alive]
    graph.ClearField("value_info")
    graph.value_info.extend(infos)
    notes = [n for n in graph.quantization_annotation if n.tensor_name in alive]
    graph.ClearField("quantization_annotation")
    graph.quantization_annotation.extend(notes)


def _unname(graph: GraphProto, values: Set[str]) -> None:
    """Drop the symbols of dimensions from these values' infos.

    ONNX Runtime reuses a freed buffer for a value whose dimensions have equal names, yet accepts
    inputs of different sizes under one name.  Values of its own operators have names either way.
    """
    for info in graph.value_info:
        if info.name in values and info.type.HasField("tensor_type"):
            for dim in info.type.tensor_type.shape.dim:
                if dim.HasField("dim_param"):
                    dim.ClearField("dim_param")


def _correct(graph: GraphProto, model: Model) -> None:
    """Correct the ranks and drop the sizes that the file declares and inference proves wrong.

    ONNX Runtime accepts a false declaration as long as it cannot infer the shape itself, as of a
    Reshape to computed sizes.  Custom operators tell it more shapes.
    """
    for info in (*graph.output, *graph.value_info):
        found = model.graph.spec(info.name).shape
        tensor = info.type.tensor_type
        if found is None or not tensor.HasField("shape"):
            continue
        if len(tensor.shape.dim) != len(found):
            tensor.ClearField("shape")
            for _ in found:
                tensor.shape.dim.add()
        for dim, size in zip(tensor.shape.dim, found, strict=True):
            if dim.HasField("dim_value") and isinstance(size, int) and dim.dim_value != size:
                dim.ClearField("dim_value")


def _declare_outputs(graph: GraphProto, model: Model) -> None:
    """Declare the shapes of outputs that have none, as far as inference knows them.

    Otherwise ONNX Runtime takes those of custom operators, which have names of their own for
    sizes that are no input's.
    """
    dims = (d for v in graph.input for d in v.type.tensor_type.shape.dim)
    symbols = {d.dim_param for d in dims}
    for info in graph.output:
        spec = model.graph.spec(info.name)
        if info.type.WhichOneof("value") not in (None, "tensor_type") or spec.dtype is None:
            continue
        tensor = info.type.tensor_type
        if spec.shape is None or tensor.HasField("shape"):
            continue
        tensor.elem_type = tensor.elem_type or spec.dtype.onnx
        tensor.shape.SetInParent()
        for extent in spec.shape:
            dim = tensor.shape.dim.add()
            if isinstance(extent, int):
                dim.dim_value = extent
            elif extent in symbols:
                dim.dim_param = str(extent)


def _annotated_values(graph: GraphProto) -> set[str]:
    notes = graph.quantization_annotation
    return {e.value for n in notes for e in n.quant_parameter_tensor_names}


def _named(model: Model) -> Iterable[str]:
    return (t.name for t in model.skeleton.graph.initializer)
