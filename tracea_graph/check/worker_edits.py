"""Models as a worker opens them: with inner values as outputs, and random ones as inputs.

Found by its path, as the worker is; ``onnx`` is imported only when a model has to be edited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DISTRIBUTIONS = ("Bernoulli", "Dropout", "Multinomial")
"""Random operators that read more than a shape."""
ELEMENTS = {"float32": "FLOAT", "float64": "DOUBLE"}
"""ONNX's names of element types, where they are not NumPy's."""


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
