"""Validation of models; every error is one sentence.

Structure is checked here.  Types, shapes and operator signatures are checked by onnx; if it
objects, ONNX Runtime decides, because it accepts much that the specification does not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, defs, shape_inference

from tracea_graph.errors import ModelError
from tracea_graph.onnx_io.node_conversion import captures_of, topological_node_order
from tracea_graph.onnx_io.protobuf_wire import PayloadSpans
from tracea_graph.onnx_io.shape_contradictions import first_contradiction

__all__ = [
    "OLDEST_OPSET",
    "check_opset",
    "check_structure",
    "check_utf8_names",
    "infer_all_types",
    "newest_opset",
    "plain_session",
    "without_data",
]

OLDEST_OPSET = 7

_LONGEST_SHAPE = 1 << 16
"""Elements of a vector that may be a shape."""
_TOLERATED = ("is not a registered function/op", "No Op registered", "NOT_IMPLEMENTED")
"""Parts of ONNX Runtime's messages about operators that it merely does not implement."""
_UNSUPPORTED = "Exception during initialization"
"""Start of ONNX Runtime's messages about attributes that its kernels refuse, valid or not."""


def check_opset(opsets: Mapping[str, int], ir_version: int) -> None:
    """Raise ModelError for unsupported opset or IR versions."""
    newest = newest_opset()
    if not OLDEST_OPSET <= opsets.get("", newest) <= newest:
        raise ModelError(
            f"opset {opsets['']} is not supported: convert the model to opset "
            f"{OLDEST_OPSET} to {newest} with onnx.version_converter"
        )
    if not 0 < ir_version <= onnx.IR_VERSION:
        raise ModelError(f"IR version {ir_version} is not supported (1 to {onnx.IR_VERSION} are)")


def newest_opset() -> int:
    """Return the newest supported version of the default operator set."""
    return onnx.defs.onnx_opset_version()


def check_utf8_names(message: Message) -> None:
    """Raise ModelError if a name or documentation is not valid UTF-8."""
    for field, content in message.ListFields():
        many = content if field.is_repeated else (content,)
        if field.type == field.TYPE_MESSAGE:
            for part in many:
                check_utf8_names(part)
        elif field.type == field.TYPE_STRING and not all(map(_is_text, many)):
            raise ModelError(f"field {field.name!r} is not UTF-8 text: the model is corrupt")


def check_structure(
    graph: GraphProto, constants: Sequence[str]
) -> tuple[list[int], list[tuple[str, ...]]]:
    """Return the topological order of the nodes, and the outer values that each captures.

    ``constants`` are the names of all initializers.  Raises ModelError for a value that is written
    twice, for one that nothing writes, and for a cycle.
    """
    if not graph.output:
        raise ModelError("the graph has no outputs, so there is nothing to compute")
    inputs = [v.name for v in graph.input]
    written = [v for node in graph.node for v in node.output if v]
    _require_unique(inputs, "graph input {!r} is listed twice")
    stored = [*graph.initializer, *(one.values for one in graph.sparse_initializer)]
    _require_unique([t.name for t in stored], "initializer {!r} is listed twice")
    _require_unique(written, "value {!r} is written by two nodes")
    _require_unique(
        [*set(inputs) | set(constants), *written],
        "value {!r} is both written by a node and an input or initializer",
    )
    defined = {*inputs, *constants, *written}
    captures = [_captures(node, defined) for node in graph.node]
    reads = [[v for v in (*n.input, *c) if v] for n, c in zip(graph.node, captures, strict=True)]
    for node, values in zip(graph.node, reads, strict=True):
        for value in values:
            if value not in defined:
                raise ModelError(f"node {_label(node)} reads {value!r}, which nothing produces")
    for output in graph.output:
        if output.name not in defined:
            raise ModelError(f"graph output {output.name!r} has no producer")
    order = topological_node_order(reads, [[*node.output] for node in graph.node])
    if len(order) < len(graph.node):
        stuck = min(set(range(len(graph.node))) - set(order))
        raise ModelError(f"the graph has a cycle through node {_label(graph.node[stuck])}")
    return order, captures


def without_data(skeleton: ModelProto, spans: PayloadSpans, external: Sequence[str]) -> ModelProto:
    """Return a self-contained copy, in which constants with data elsewhere are graph inputs."""
    shell = ModelProto()
    shell.CopyFrom(skeleton)
    graph = shell.graph
    named = {v.name for v in graph.input}
    lacking = {*external, *(graph.initializer[i].name for i in spans.initializers)}
    held = {t.name: t for t in graph.initializer if t.name in lacking}
    for i in spans.constants:
        node = graph.node[i]
        held[node.output[0]] = node.attribute[0].t
    for name, tensor in held.items():
        if name not in named:
            graph.input.append(
                onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
            )
    _blank_duplicates(graph)
    kept = [t for t in graph.initializer if t.name not in lacking]
    nodes = [n for i, n in enumerate(graph.node) if i not in spans.constants]
    for field, items in (("initializer", kept), ("node", nodes)):
        graph.ClearField(field)
        getattr(graph, field).extend(items)
    return shell


def infer_all_types(shell: ModelProto, order: Sequence[str]) -> dict[str, TypeProto]:
    """Return the types of values, inferred over the whole model or declared.

    ``shell`` has no large data.  Raises ModelError if both onnx and ONNX Runtime refuse it.
    """
    rank = {output: i for i, output in enumerate(order)}
    nodes = sorted(shell.graph.node, key=lambda n: rank.get(next(iter(n.output), ""), 0))
    shell.graph.ClearField("node")
    shell.graph.node.extend(nodes)
    inferred = shell
    try:
        onnx.checker.check_model(shell)
        inferred = shape_inference.infer_shapes(shell, True, True, _may_propagate(shell))
    except (
        onnx.checker.ValidationError,
        shape_inference.InferenceError,
        RuntimeError,
        ValueError,
    ):
        _ask_runtime(shell)
        opsets = {one.domain or "": one.version for one in shell.opset_import}
        _require_all_inputs(shell.graph.node, opsets)
        inferred = _lenient(shell)
    infos = [*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input]
    return {info.name: info.type for info in infos}


def _require_all_inputs(nodes: Iterable[NodeProto], opsets: Mapping[str, int]) -> None:
    """Raise ModelError for a node with fewer inputs or outputs than its operator has.

    Of a model with operators that it does not know, ONNX Runtime says nothing about the others.
    """
    for node in nodes:
        if node.domain not in ("", "ai.onnx") or not defs.has(node.op_type):
            continue
        try:
            schema = defs.get_schema(node.op_type, opsets.get("", 1), "")
        except defs.SchemaError:  # the operator is younger than the model's set
            continue
        if len(node.input) < schema.min_input or len(node.output) < schema.min_output:
            raise ModelError(f"node {_label(node)} has too few inputs or outputs")
        for attr in node.attribute:
            _require_all_inputs(attr.g.node, opsets)


def _blank_duplicates(graph: GraphProto) -> None:
    """Clear repeated node names, which ONNX Runtime refuses and nothing here needs."""
    seen: set[str] = set()
    for node in graph.node:
        if node.name in seen:
            node.name = ""
        seen.add(node.name)


def _is_text(content: str | bytes) -> bool:
    return isinstance(content, str)


def _may_propagate(shell: ModelProto) -> bool:
    """Whether onnx may follow the values of vectors, of which some are shapes.

    It keeps 150 bytes for each element of every vector, inputs of a fixed size too.
    """
    shapes = (v.type.tensor_type.shape.dim for v in shell.graph.input)
    return all(len(dims) != 1 or dims[0].dim_value <= _LONGEST_SHAPE for dims in shapes)


def _lenient(shell: ModelProto) -> ModelProto:
    for data_prop in (True, False) if _may_propagate(shell) else (False,):
        try:
            return shape_inference.infer_shapes(shell, False, False, data_prop)
        except (shape_inference.InferenceError, RuntimeError, ValueError):
            continue
    return shell


def _ask_runtime(shell: ModelProto) -> None:
    """Raise ModelError with ONNX Runtime's reason if it finds the model invalid."""
    try:
        plain_session(shell.SerializeToString())
    except Exception as error:  # the binding raises several unrelated types
        text = str(error)
        if not any(reason in text for reason in _TOLERATED):
            if _UNSUPPORTED in text:
                raise ModelError(
                    f"ONNX Runtime does not run the model: {_sentence(text)}"
                ) from error
            found = first_contradiction(_lenient(shell))
            where = f" ({found})" if found else ""
            raise ModelError(f"the model is invalid: {_sentence(text)}{where}") from error


def _sentence(text: str) -> str:
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text.strip())
    text = re.sub(r"^Load model from .*? failed:", "", text)
    text = re.sub(r"^/\S+ .*?\) ?(?=This is)", "", text.split("\n")[0])
    text = re.sub(rf"^{_UNSUPPORTED}: /\S+ .*?\) (\[with .*?\] )?", "", text)
    return text[:240].rstrip(" .")


def _captures(node: onnx.NodeProto, defined: set[str]) -> tuple[str, ...]:
    certain, possible = captures_of(node)
    return tuple(sorted(certain | (possible & defined)))


def _require_unique(names: Sequence[str], message: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ModelError(message.format(name))


def _label(node: onnx.NodeProto) -> str:
    return f"{node.name or node.op_type!r} ({node.op_type})" if node.name else repr(node.op_type)


def plain_session(model: bytes) -> Any:
    """Open a CPU session for a small model; raises whatever ONNX Runtime raises."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.enable_mem_reuse = False  # planning memory reuse is quadratic in the number of nodes
    return ort.InferenceSession(model, options, ["CPUExecutionProvider"], enable_fallback=0)
