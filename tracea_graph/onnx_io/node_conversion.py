"""Conversion between ``NodeProto`` and ``ir.Node``, captures of subgraphs, order of nodes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto, numpy_helper

from tracea_graph.errors import GraphError, ModelError
from tracea_graph.ir import RANDOM_OPS, Attr, Blob, Node
from tracea_graph.onnx_io.tensor_data import tensor_attribute_array

__all__ = [
    "OWN_DOMAINS",
    "ImportedNode",
    "all_nodes",
    "captures_of",
    "from_proto",
    "has_subgraph",
    "is_random",
    "rename_reads",
    "rename_value_info",
    "rename_values",
    "subgraphs_of",
    "to_proto",
    "topological_node_order",
]  # fmt: skip

Array = npt.NDArray[Any]
_KIND = AttributeProto.AttributeType
OWN_DOMAINS = "tracea."
"""Prefix of the domains of this tool's custom ops; each library has its own domain."""


@dataclass(frozen=True, eq=False)
class ImportedNode(Node):
    """A node of the imported model whose inputs or outputs canonicalization changed.

    ``origin`` is the node's index in the imported model, from which export takes documentation and
    metadata.
    """

    origin: int | None = None


def from_proto(
    proto: NodeProto,
    index: int,
    captures: Sequence[str],
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Node:
    """Convert node ``index`` of the imported model; ``inputs`` and ``outputs`` replace its own."""
    ins, outs = tuple(inputs or proto.input), tuple(outputs or proto.output)
    attrs = {a.name: _attr_of(a) for a in proto.attribute}
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    head = (proto.op_type, ins, outs, attrs, domain, proto.name, tuple(captures))
    if ins == tuple(proto.input) and outs == tuple(proto.output):
        return Node(*head, source=index)
    return ImportedNode(*head, origin=index)


def to_proto(node: Node, imported: Sequence[NodeProto]) -> NodeProto:
    """Convert a node to ONNX; for a node with ``source``, return that imported node itself."""
    if node.source is not None:
        return imported[node.source]
    proto = NodeProto()
    origin = node.origin if isinstance(node, ImportedNode) else None
    old: Mapping[str, AttributeProto] = {}
    if origin is not None:
        proto.CopyFrom(imported[origin])
        old = {a.name: a for a in imported[origin].attribute}
        for field in ("input", "output", "attribute"):
            proto.ClearField(field)
    proto.op_type, proto.name, proto.domain = node.op, node.name, node.domain
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    for name, value in node.attrs.items():
        kept = old.get(name)
        same = kept is not None and _same(_attr_of(kept), value)
        proto.attribute.append(kept if kept is not None and same else _attr_proto(name, value))
    return proto


def has_subgraph(proto: NodeProto) -> bool:
    return any(a.HasField("g") or a.graphs for a in proto.attribute)


def subgraphs_of(proto: NodeProto) -> Iterator[GraphProto]:
    """Yield the subgraphs of a node."""
    for attribute in proto.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield every node, including those of subgraphs."""
    for node in graph.node:
        yield node
        for body in subgraphs_of(node):
            yield from all_nodes(body)


def is_random(node: NodeProto) -> bool:
    """Return whether an operator may yield different results each time."""
    asked = node.op_type != "Dropout" or (len(node.input) > 2 and bool(node.input[2]))
    return node.op_type in RANDOM_OPS and asked


def rename_values(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """Return a copy of a node with renamed values, captured ones included."""
    made = NodeProto()
    made.CopyFrom(node)
    for field in (made.input, made.output):
        field[:] = [names.get(v, v) for v in field]
    for body in subgraphs_of(made):
        own = {v.name for v in body.input} | {t.name for t in body.initializer}
        own |= {v for inner in body.node for v in inner.output}
        rename_reads(body, {old: new for old, new in names.items() if old not in own})
    return made


def rename_reads(body: GraphProto, names: Mapping[str, str]) -> None:
    """Rename the values that a subgraph reads or returns, in place."""
    nodes = [rename_values(inner, names) for inner in body.node]
    outputs = [rename_value_info(v, names) for v in body.output]
    for name, items in (("node", nodes), ("output", outputs)):
        body.ClearField(name)
        getattr(body, name).extend(items)


def rename_value_info(value: ValueInfoProto, names: Mapping[str, str]) -> ValueInfoProto:
    """Return a copy of a value's declaration under its new name."""
    made = ValueInfoProto()
    made.CopyFrom(value)
    made.name = names.get(value.name, value.name)
    return made


def captures_of(proto: NodeProto) -> tuple[set[str], set[str]]:
    """Return the outer values that the subgraphs of a node read.

    The second set holds names that a body reads before it defines them: they are captures only if
    an outer value of that name exists.
    """
    certain: set[str] = set()
    possible: set[str] = set()
    for body in subgraphs_of(proto):
        sure, maybe = _free(body)
        certain |= sure
        possible |= maybe
    return certain, possible - certain


def _free(body: GraphProto) -> tuple[set[str], set[str]]:
    known = {v.name for v in body.input} | {t.name for t in body.initializer}
    known |= {s.values.name for s in body.sparse_initializer}
    later = {v for n in body.node for v in n.output}
    read: set[str] = set()
    maybe: set[str] = set()
    for node in body.node:
        sure, unsure = captures_of(node)
        read |= ({*node.input} | sure) - known
        maybe |= unsure - known
        known |= {*node.output}
    read |= {v.name for v in body.output} - known
    read.discard("")
    return read - later, (read & later) | maybe


def _attr_of(proto: AttributeProto) -> Attr:
    kind = proto.type
    if proto.ref_attr_name:
        return _blob(proto)
    if kind == _KIND.FLOAT:
        return proto.f
    if kind == _KIND.INT:
        return proto.i
    if kind == _KIND.STRING:
        return _text(proto.s)
    if kind == _KIND.INTS:
        return tuple(proto.ints)
    if kind == _KIND.FLOATS and proto.floats:
        return tuple(proto.floats)
    if kind == _KIND.STRINGS and proto.strings:
        texts = tuple(_text(s) for s in proto.strings)
        if all(isinstance(t, str) for t in texts):
            return cast(tuple[str, ...], texts)
    if kind == _KIND.TENSOR and not proto.t.string_data:
        return tensor_attribute_array(proto.t, proto.name)
    return _blob(proto)


def _attr_proto(name: str, value: Attr) -> AttributeProto:
    """Convert an attribute; raises ModelError for a number beyond 64 bits, of a corrupt model."""
    try:
        return _made(name, value)
    except ValueError as error:
        raise ModelError(f"its sizes are corrupt: {name!r} is beyond 64 bits ({error})") from error


def _made(name: str, value: Attr) -> AttributeProto:
    if isinstance(value, Blob):
        proto: AttributeProto = AttributeProto.FromString(value.data)
        proto.name = name
        return proto
    proto = AttributeProto(name=name)
    if isinstance(value, np.ndarray):
        proto.type = _KIND.TENSOR
        proto.t.CopyFrom(numpy_helper.from_array(value))
    elif isinstance(value, tuple):
        _set_list(proto, value)
    elif isinstance(value, (int, np.integer)):
        proto.type, proto.i = _KIND.INT, int(value)
    elif isinstance(value, (float, np.floating)):
        proto.type, proto.f = _KIND.FLOAT, float(value)
    else:
        proto.type, proto.s = _KIND.STRING, _bytes(value)
    return proto


def _set_list(proto: AttributeProto, value: tuple[int | float | str, ...]) -> None:
    if all(isinstance(v, (int, np.integer)) for v in value):
        proto.type = _KIND.INTS
        proto.ints.extend(int(v) for v in value)
    elif all(isinstance(v, (int, float, np.number)) for v in value):
        proto.type = _KIND.FLOATS
        proto.floats.extend(float(v) for v in value)
    elif all(isinstance(v, (str, bytes)) for v in value):
        proto.type = _KIND.STRINGS
        proto.strings.extend(_bytes(cast(str, v)) for v in value)
    else:
        raise GraphError(f"attribute {proto.name!r} has elements of several types: {value!r}")


def _same(a: Attr, b: Attr) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and _same_array(a, b)
    return type(a) is type(b) and a == b


def _same_array(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _blob(proto: AttributeProto) -> Blob:
    return Blob(_KIND.Name(proto.type), proto.SerializeToString(deterministic=True))


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def topological_node_order(
    reads: Sequence[Sequence[str]], writes: Sequence[Sequence[str]]
) -> list[int]:
    """Return indices of nodes, producers first and in the given order otherwise.

    Nodes on a cycle, and nodes that depend on one, are missing from the result.
    """
    producer = {v: i for i, values in enumerate(writes) for v in values if v}
    needs = [{producer[v] for v in values if v in producer} for values in reads]
    waiting = [len(n) for n in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for i, sources in enumerate(needs):
        for source in sources:
            readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return order
