"""QuantizeLinear and DequantizeLinear of ``com.microsoft`` become ONNX's own.

ONNX Runtime's quantizer writes them with ``UseQDQContribOps``, and for 16 bits below opset 21.  It
computes both domains with one kernel.  A node whose opset has an equal operator is renamed, so
that shapes are inferred behind it and rules match it.  Source: ONNX Runtime's documentation of
contributed operators.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto

from tracea_graph.onnx_io.node_conversion import all_nodes, subgraphs_of

__all__ = ["standardize_quantizers"]

_BYTES = frozenset((TensorProto.UINT8, TensorProto.INT8))
_OTHER_SIZES = frozenset(
    (TensorProto.UINT16, TensorProto.INT16, TensorProto.UINT4, TensorProto.INT4)
)
_SINCE, _AXIS_SINCE, _OTHER_SIZES_SINCE = 10, 13, 21
"""First opsets of both operators, of scales along an axis, and of other sizes than bytes."""

Constants = dict[str, TensorProto]


def standardize_quantizers(model: ModelProto) -> int:
    """Rename the nodes that ONNX's operators can replace, in place; return how many.

    Their scales and zero points must be constants, which say the type of the integers.
    """
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    nodes = [n for n in all_nodes(model.graph) if _contributed(n)]
    if not nodes or opset < _SINCE:
        return 0
    graphs = [model.graph, *(g for n in all_nodes(model.graph) for g in subgraphs_of(n))]
    known = {t.name: t for graph in graphs for t in graph.initializer}
    for node in all_nodes(model.graph):
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            known[node.output[0]] = node.attribute[0].t
    fitting = [node for node in nodes if _fits(node, known, opset)]
    for node in fitting:
        node.domain = ""
        if opset < _AXIS_SINCE:
            del node.attribute[:]  # one scale has no axis
    return len(fitting)


def _contributed(node: NodeProto) -> bool:
    linear = node.op_type in ("QuantizeLinear", "DequantizeLinear")
    return node.domain == "com.microsoft" and linear


def _fits(node: NodeProto, known: Constants, opset: int) -> bool:
    x, scale, zero = (known.get(name) for name in (*node.input, "")[:3])
    if scale is None or scale.data_type != TensorProto.FLOAT:
        return False
    if {a.name for a in node.attribute} - {"axis"} or (scale.dims and opset < _AXIS_SINCE):
        return False
    quantizes = node.op_type == "QuantizeLinear"
    integers = zero if zero is not None or quantizes else x
    if integers is None:
        return quantizes and len(node.input) < 3  # bytes, as in ONNX
    allowed = _BYTES if quantizes else _BYTES | {TensorProto.INT32}
    return integers.data_type in (
        allowed | _OTHER_SIZES if opset >= _OTHER_SIZES_SINCE else allowed
    )
