"""Scale the weights of a stored graph so that every product has an output of unit scale.

A weight rule sees one node.  In deep convolutional networks activations, gates and skip
connections accumulate to factors of thousands, and outputs saturate or vanish.  Layer by layer, in
graph order, the network runs, and the weight's deviation is divided by the root mean square of its
product's output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from models.make import regrow, stripped
from models.rules import WeightRule

__all__ = ["balance"]

Array = np.ndarray[Any, np.dtype[Any]]
BRANCH = 0.4
PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")


def balance(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    """Scale the stored rules of all product weights in place, by the outputs for ``feeds``."""
    tensors = {t.name: t for t in model.graph.initializer if stripped(t)}
    weights = {name: _grown(tensor) for name, tensor in tensors.items()}
    branches = _branches(model.graph)
    session = _session(model, tensors)
    for node in model.graph.node:
        if node.op_type not in PRODUCTS or node.input[1] not in weights:
            continue
        name = node.input[1]
        (result,) = session.run([node.output[0]], {**feeds, **weights})
        size = np.float32(np.sqrt(np.square(result, dtype=np.float64).mean()))
        size /= np.float32(BRANCH if node.output[0] in branches else 1.0)
        weights[name] /= size
        kind, mean, deviation = tensors[name].doc_string.split()
        rule = WeightRule(kind, float(mean), float(deviation) / float(size))
        tensors[name].doc_string = str(rule)
    return model


def _branches(graph: onnx.GraphProto) -> set[str]:
    """Return products that are added to a skip connection: they are small, as in trained nets."""
    products = {node.output[0] for node in graph.node if node.op_type in PRODUCTS}
    added = (set(node.input) & products for node in graph.node if node.op_type == "Add")
    return {names.pop() for names in added if len(names) == 1}


def _grown(tensor: onnx.TensorProto) -> Array:
    return np.concatenate(list(regrow(tensor))).reshape(tuple(tensor.dims))


def _session(
    model: onnx.ModelProto, tensors: Mapping[str, onnx.TensorProto]
) -> ort.InferenceSession:
    """Open a session on a copy that takes weights as inputs and returns every product's output."""
    open_ = onnx.ModelProto()
    open_.CopyFrom(model)
    kept = [t for t in model.graph.initializer if t.name not in tensors]
    del open_.graph.initializer[:]
    open_.graph.initializer.extend(kept)
    make = onnx.helper.make_tensor_value_info
    open_.graph.input.extend(
        make(name, onnx.TensorProto.FLOAT, tensor.dims) for name, tensor in tensors.items()
    )
    outputs = {value.name for value in model.graph.output}
    open_.graph.output.extend(
        make(node.output[0], onnx.TensorProto.FLOAT, None)
        for node in model.graph.node
        if node.op_type in PRODUCTS and node.output[0] not in outputs
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(open_.SerializeToString(), options)
