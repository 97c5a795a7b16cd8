"""Edit models for a worker: expose inner values as outputs, and turn random values into inputs.

The worker imports this file by path, so that no other module of the package is imported.  ``onnx``
is imported only when a request needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DISTRIBUTIONS = ("Bernoulli", "Dropout", "Multinomial")
"""Random operators that read operands other than a shape."""
ELEMENTS = {"float32": "FLOAT", "float64": "DOUBLE"}
"""ONNX's names of element types that differ from NumPy's."""
QUANTIZERS = frozenset(
    ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
)
"""Operators that round their first operand to integers."""
RESULT_SCALES = {
    "QLinearAdd": 6, "QLinearAveragePool": 3, "QLinearConcat": 0, "QLinearConv": 6,
    "QLinearGlobalAveragePool": 3, "QLinearLeakyRelu": 3, "QLinearMatMul": 6, "QLinearMul": 6,
    "QLinearReduceMean": 3, "QLinearSigmoid": 3, "QGemm": 7,
}  # fmt: skip
"""Operators that round their result to integers, and the index of the operand that scales it."""
MASKING = frozenset(("Add", "Sub"))
"""Operators that add a mask to scores."""
PAST_MASKS = frozenset(("Cast", "Identity", "Max", "Reshape", "Transpose", "Unsqueeze", "Where"))
"""Operators between a mask and a Softmax."""
HIDDEN_SCORE = -1e3
"""Scores below this are masked; float32 resolves them to 6e-5 or coarser."""
LOWEST_SCORE = -1e30
"""Lower scores, -inf among them, move by nothing."""
ULP = 2.0**-23
"""Largest distance of two neighbouring float32 numbers, as a share of them."""
ROUNDING_LEVEL = 4
"""Accuracy level at which MatMulNBits rounds its first operand to integers."""
GRAPH, NODE, OUTPUT, WRITES, NAME = 7, 1, 12, 2, 1
"""Field numbers in onnx.proto3: of a model, of a graph (two), of a node, of a value."""


def with_extra_outputs(path: str, extra: Sequence[str]) -> bytes:
    """Return a serialized model with the values ``extra`` as outputs, without parsing weights.

    Protobuf merges a message that occurs twice: a second graph that has only outputs adds them to
    the first (protobuf encoding, "Last One Wins").
    """
    data = Path(path).read_bytes()
    graphs = [place for field, *place in proto_fields(data, 0, len(data)) if field == GRAPH]
    known = {
        data[a:b].decode()
        for graph in graphs
        for field, *output in proto_fields(data, *graph) if field == OUTPUT
        for name, a, b in proto_fields(data, *output) if name == NAME
    }  # fmt: skip
    outputs = (
        encode_field(OUTPUT, encode_field(NAME, v.encode())) for v in extra if v not in known
    )
    return b"".join((data, encode_field(GRAPH, b"".join(outputs))))


def written_values(path: str) -> list[str]:
    """Return what the nodes of a model's main graph write, without parsing its weights."""
    data = Path(path).read_bytes()
    return [
        data[a:b].decode()
        for field, *graph in proto_fields(data, 0, len(data)) if field == GRAPH
        for field, *node in proto_fields(data, *graph) if field == NODE
        for field, a, b in proto_fields(data, *node) if field == WRITES and a < b
    ]  # fmt: skip


def proto_fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, end) of each length-delimited field of a message."""
    while at < end:
        key, at = read_varint(data, at)
        if key & 7 == 2:
            size, at = read_varint(data, at)
            yield key >> 3, at, at + size
            at += size
        elif key & 7 == 0:
            at = read_varint(data, at)[1]
        else:
            at += {1: 8, 5: 4}[key & 7]


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def encode_field(field: int, body: bytes) -> bytes:
    """Return a length-delimited field."""
    head = bytearray([field << 3 | 2])
    size = len(body)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes((*head, size)) + body


def instrument_model(
    path: str, extra: Sequence[str], cut: Mapping[str, Sequence[Any]], jitter: float
) -> bytes:
    """Return a serialized model with the changes that verification needs.

    The values ``extra`` become outputs, and the random values in ``cut`` become inputs.  If
    ``jitter`` is not 0, noise of that relative size is added before quantizers, and noise of one
    unit in the last place to scores that an added mask hides.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    replace_random_nodes(model.graph, cut)
    if jitter:
        add_jitter(model.graph, jitter)
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=v) for v in extra if v not in known)
    return bytes(model.SerializeToString())


def replace_random_nodes(graph: Any, cut: Mapping[str, Sequence[Any]]) -> None:
    """Replace random nodes by inputs; ``cut`` maps what they write to element type and dims.

    The operand of a distribution becomes an output, because nothing else would compare it.
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


def result_scale(node: Any) -> int | None:
    """Return the index of the operand that scales a node's rounded result; None if none does."""
    at = RESULT_SCALES.get(node.op_type)
    return at if at is not None and len(node.input) > at and node.input[at] else None


def rounded_operands(node: Any) -> tuple[int, ...]:
    """Return the indices of the operands that a node rounds to integers.

    Attention rounds new keys and values, or what packs them with queries, for a quantized cache.
    """
    if node.op_type == "GroupQueryAttention":
        kinds = {a.s for a in node.attribute if a.name in ("k_quant_type", "v_quant_type")}
        packed = len(node.input) < 2 or not node.input[1]
        return () if kinds <= {b"", b"NONE"} else (0,) if packed else (1, 2)
    if node.op_type != "MatMulNBits":
        return (0,) if node.op_type in QUANTIZERS else ()
    levels = [a.i for a in node.attribute if a.name == "accuracy_level"]
    return (0,) if ROUNDING_LEVEL in levels else ()


def takes_jitter(graph: Any) -> bool:
    """Return whether :func:`add_jitter` changes what a graph computes."""
    return bool(masked_softmaxes(graph)) or any(
        rounded_operands(n) or result_scale(n) is not None for n in graph.node
    )


def masked_softmaxes(graph: Any) -> set[str]:
    """Return the results of those Softmax nodes that read scores to which a mask may be added."""
    writer = {v: node for node in graph.node for v in node.output if v}
    stored = {t.name for t in graph.initializer}
    found = set[str]()
    for softmax in (n for n in graph.node if n.op_type == "Softmax"):
        ahead = list(softmax.input)
        while ahead:
            node = writer.get(ahead.pop())
            if node is not None and node.op_type in PAST_MASKS:
                ahead += node.input
            elif node is not None and node.op_type in MASKING and stored.isdisjoint(node.input):
                found.add(softmax.output[0])
    return found


def add_jitter(graph: Any, size: float) -> None:
    """Let every quantizer of computed values read x + size · x · sin(1e5 · x) instead of x.

    The noise is as large as the difference between float32 sums in two orders, and varies from
    element to element.  For an operator that rounds its own result, the scale of that result is
    multiplied by ``1 + size`` instead.

    A Softmax reads scores x below ``HIDDEN_SCORE`` with noise of ``ULP`` instead of ``size``: the
    sum of a score and a mask of −1e4 is rounded to a multiple of 1e-3, and which one it is depends
    on the last bits of the score.  Scores that are equal, because a mask of −1e9 leaves nothing of
    them, stay equal.
    """
    from onnx import helper, numpy_helper

    numbers = {
        "jitter.rate": 1e5, "jitter.size": size, "jitter.scale": 1.0 + size, "jitter.ulp": ULP,
        "jitter.hidden": HIDDEN_SCORE, "jitter.lowest": LOWEST_SCORE,
    }  # fmt: skip
    stored, nodes = {t.name for t in graph.initializer}, list(graph.node)
    masked = masked_softmaxes(graph)
    del graph.node[:]

    def write(op: str, *operands: str, **attributes: Any) -> str:
        result = f"{operands[0]}.jitter{len(graph.node)}"
        graph.node.append(helper.make_node(op, operands, [result], **attributes))
        return result

    def noise(x: str, share: str) -> str:
        return write("Mul", write("Mul", write("Sin", write("Mul", x, "jitter.rate")), share), x)

    for node in nodes:
        if masked.intersection(node.output):
            x = node.input[0]
            hidden = write("Cast", write("Less", x, "jitter.hidden"), to=1)
            moved = noise(write("Max", x, "jitter.lowest"), "jitter.ulp")
            node.input[0] = write("Add", write("Mul", moved, hidden), x)
        for at in rounded_operands(node):
            if (x := node.input[at]) not in stored:
                node.input[at] = write("Add", noise(x, "jitter.size"), x)
        if (last := result_scale(node)) is not None:
            node.input[last] = write("Mul", node.input[last], "jitter.scale")
        graph.node.append(node)
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v, np.float32), name) for name, v in numbers.items()
    )


def random_values(graph: Any, ops: Sequence[str]) -> list[str]:
    """Return the values that random nodes write and that outputs depend on, in node order.

    Nodes of types ``ops`` are random, except a Dropout that cannot be in training mode.
    """
    writer = {v: node for node in graph.node for v in node.output if v}
    seen, ahead = set[str](), [output.name for output in graph.output]
    while ahead:
        value = ahead.pop()
        if value not in seen:
            seen.add(value)
            ahead += values_read(writer[value]) if value in writer else []
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


def values_read(node: Any) -> list[str]:
    """Return the values that a node reads, including those that nodes of its subgraphs read."""
    graphs = [g for a in node.attribute for g in (a.g, *a.graphs)]
    inner = [v for graph in graphs for n in graph.node for v in values_read(n)]
    return [*node.input, *inner, *(output.name for graph in graphs for output in graph.output)]
