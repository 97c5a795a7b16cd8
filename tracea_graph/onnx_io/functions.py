"""Model-local functions: what a custom operator computes, in standard operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnx import FunctionProto, NodeProto, OperatorSetIdProto

from tracea_graph.ir import Node
from tracea_graph.onnx_io import nodes as node_io

__all__ = ["Function", "to_proto"]


@dataclass(frozen=True)
class Function:
    """The body of one operator type of the library's domain.

    ``attributes`` are names a caller passes; the body need not use them.
    """

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    attributes: tuple[str, ...] = ("plan",)


def to_proto(
    function: Function,
    domain: str,
    imports: Iterable[OperatorSetIdProto],
    imported: Sequence[NodeProto],
) -> FunctionProto:
    """A function as ONNX writes it; ``imported`` are the nodes of the imported model."""
    proto = FunctionProto(name=function.type, domain=domain)
    proto.input.extend(function.inputs)
    proto.output.extend(function.outputs)
    proto.attribute.extend(function.attributes)
    proto.node.extend(node_io.to_proto(node, imported) for node in function.nodes)
    for i, node in enumerate(proto.node):
        # onnxruntime 1.20 names nodes it fuses after these and refuses two without a name
        node.name = node.name or f"{function.type}_{i}"
    proto.opset_import.extend(imports)
    return proto
