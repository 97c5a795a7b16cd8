"""Model-local functions: custom operators expressed in standard operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import FunctionProto, NodeProto, OperatorSetIdProto, TensorProto, helper, numpy_helper

from tracea_graph.ir import Node
from tracea_graph.onnx_io import node_conversion as node_io

__all__ = ["LocalFunction", "to_proto"]

_ANY_CONSTANT = 9
"""Opset from which Constant supports all types; earlier ones support only floating point."""
_FLOATS = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)


@dataclass(frozen=True)
class LocalFunction:
    """ONNX local function: the body of one operator type of the custom-op domain.

    ``attributes`` are the attribute names a node may have; the body may ignore some.  ``domain``
    is set only if it differs from the domain of the model's custom operators.
    """

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    attributes: tuple[str, ...] = ("plan",)
    domain: str = ""


def to_proto(
    function: LocalFunction,
    domain: str,
    imports: Iterable[OperatorSetIdProto],
    imported: Sequence[NodeProto],
) -> FunctionProto:
    """Convert a function to ONNX; the nodes in its body may refer to nodes in ``imported``."""
    proto = FunctionProto(name=function.type, domain=function.domain or domain)
    proto.input.extend(function.inputs)
    proto.output.extend(function.outputs)
    proto.attribute.extend(function.attributes)
    # inside functions ONNX Runtime accepts only one name of the standard domain
    for one in imports:
        proto.opset_import.add(version=one.version).domain = _standard(one.domain)
    nodes = (node_io.to_proto(node, imported) for node in function.nodes)
    if any(not i.domain and i.version < _ANY_CONSTANT for i in proto.opset_import):
        nodes = (plain for node in nodes for plain in _in_floats(node))
    proto.node.extend(nodes)
    for i, node in enumerate(proto.node):
        # onnxruntime 1.20 names fused nodes after these and rejects two that have no name
        node.name = node.name or f"{function.type}_{i}"
    return proto


def _standard(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _in_floats(node: NodeProto) -> list[NodeProto]:
    """Return a node; a Constant of integers or booleans becomes a cast of doubles."""
    if node.op_type != "Constant" or node.attribute[0].t.data_type in _FLOATS:
        return [node]
    tensor, (name,) = node.attribute[0].t, node.output
    doubles = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64))
    return [
        helper.make_node("Constant", [], [f"{name}_double"], value=doubles),
        helper.make_node("Cast", [f"{name}_double"], [name], to=tensor.data_type),
    ]
