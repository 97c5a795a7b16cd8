"""Models as a worker opens them: with inner values as outputs, and random ones as inputs.

Found by its path, as the worker is; ``onnx`` is imported only when a model has to be parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DISTRIBUTIONS = ("Bernoulli", "Dropout", "Multinomial")
"""Random operators that read more than a shape."""
ELEMENTS = {"float32": "FLOAT", "float64": "DOUBLE"}
"""ONNX's names of element types, where they are not NumPy's."""
GRAPH, OUTPUT, NAME = 7, 12, 1
"""Field numbers in onnx.proto3: of a model, of a graph, of a value."""


def extended(path: str, extra: Sequence[str], _: object) -> bytes:
    """The model with more of its values as outputs, without parsing its weights.

    Of a message that stands twice in a protobuf file the parts are merged: a second graph that
    has nothing but outputs adds them to the first (protobuf encoding, "Last One Wins").
    """
    data = Path(path).read_bytes()
    graphs = [place for field, *place in fields(data, 0, len(data)) if field == GRAPH]
    known = {
        data[a:b].decode()
        for graph in graphs
        for field, *output in fields(data, *graph) if field == OUTPUT
        for name, a, b in fields(data, *output) if name == NAME
    }  # fmt: skip
    outputs = (message(OUTPUT, message(NAME, v.encode())) for v in extra if v not in known)
    return b"".join((data, message(GRAPH, b"".join(outputs))))


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Numbers and places of a message's length-delimited fields; what has no length is passed."""
    while at < end:
        key, at = varint(data, at)
        if key & 7 == 2:
            size, at = varint(data, at)
            yield key >> 3, at, at + size
            at += size
        elif key & 7 == 0:
            at = varint(data, at)[1]
        else:
            at += {1: 8, 5: 4}[key & 7]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the place behind it."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def message(field: int, body: bytes) -> bytes:
    """A length-delimited field."""
    head = bytearray([field << 3 | 2])
    size = len(body)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes((*head, size)) + body


def edited(path: str, extra: Sequence[str], cut: Mapping[str, Sequence[Any]]) -> bytes:
    """The model with more of its values as outputs, and random ones as inputs."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    cut_random(model.graph, cut)
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=v) for v in extra if v not in known)
    return bytes(model.SerializeToString())


def cut_random(graph: Any, cut: Mapping[str, Sequence[Any]]) -> None:
    """Values with their element type's name and dims become inputs, in the place of their nodes.

    What a distribution depends on becomes an output, for nothing else would compare it.
    """
    from onnx import TensorProto, ValueInfoProto, helper

    for node in [n for n in graph.node if not cut.keys().isdisjoint(n.output)]:
        if node.op_type in DISTRIBUTIONS:
            name = f"{node.output[0]}.drawn_from"
            graph.node.append(helper.make_node("Identity", node.input[:1], [name]))
            graph.output.append(ValueInfoProto(name=name))
        graph.node.remove(node)
    for name, (kind, dims) in cut.items():
        element = getattr(TensorProto, ELEMENTS.get(kind, kind.upper()))
        graph.input.append(helper.make_tensor_value_info(name, element, dims))


def random_values(graph: Any, ops: Sequence[str]) -> list[str]:
    """What random nodes write of that the outputs depend on, in the order of the nodes.

    Those of ``ops`` are random; Dropout only if it may be told to train.
    """
    writer = {v: node for node in graph.node for v in node.output if v}
    seen, ahead = set[str](), [output.name for output in graph.output]
    while ahead:
        value = ahead.pop()
        if value not in seen:
            seen.add(value)
            ahead += reads(writer[value]) if value in writer else []
    return [
        v
        for node in graph.node
        if node.domain in ("", "ai.onnx")
        and node.op_type in ops
        and (node.op_type != "Dropout" or (len(node.input) > 2 and node.input[2]))
        and not seen.isdisjoint(node.output)
        for v in node.output
        if v
    ]


def reads(node: Any) -> list[str]:
    """The values a node reads, those of its subgraphs' nodes among them."""
    graphs = [g for a in node.attribute for g in (a.g, *a.graphs)]
    inner = [v for graph in graphs for n in graph.node for v in reads(n)]
    return [*node.input, *inner, *(output.name for graph in graphs for output in graph.output)]
