"""Diagnosis of shape errors: the operator whose operands are incompatible, and their shapes."""

from __future__ import annotations

import onnx
from onnx import ModelProto, TypeProto
from onnx.shape_inference import InferenceError, infer_node_outputs

from tracea_graph.ir import DType, TensorSpec

__all__ = ["contradiction"]


def contradiction(shell: ModelProto) -> str:
    """Describe the first operator with incompatible operands; empty if there is none.

    ``shell`` holds the types that inference found before it failed.
    """
    graph = shell.graph
    known: dict[str, TypeProto] = {
        v.name: v.type for v in (*graph.value_info, *graph.output, *graph.input)
    }
    for tensor in graph.initializer:
        known[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    opsets = {i.domain: i.version for i in shell.opset_import}
    for node in graph.node:
        names = [v for v in dict.fromkeys(node.input) if v]
        if len(names) < 2 or node.domain not in opsets or any(v not in known for v in names):
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain)
            infer_node_outputs(schema, node, {v: known[v] for v in names})
        except onnx.defs.SchemaError:
            continue
        except (InferenceError, onnx.checker.ValidationError):
            operands = " and ".join(f"{v!r} is {_spec(known[v])}" for v in names)
            return f"node {node.name or node.op_type!r}: {operands}"
        except (RuntimeError, ValueError, TypeError):
            continue
    return ""


def _spec(kind: TypeProto) -> TensorSpec:
    tensor = kind.tensor_type
    dims = (
        d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim
    )
    shape = tuple(dims) if tensor.HasField("shape") else None
    return TensorSpec(DType.from_onnx(tensor.elem_type), shape)
