"""Half-precision models in tests: their answers in float64, and values that NumPy lacks."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession, OrtValue

__all__ = ["BF16", "EPSILON", "F16", "NUMPY", "answers", "in_double"]

F16, BF16 = TensorProto.FLOAT16, TensorProto.BFLOAT16
EPSILON = {F16: 2.0**-10, BF16: 2.0**-7}
"""Distance of 1 to the next number."""
NUMPY = {F16: np.dtype(np.float16), BF16: np.dtype(ml_dtypes.bfloat16)}


def in_double(proto: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """The model's answers with every half and float32 tensor in float64."""
    made = ModelProto.FromString(proto.SerializeToString())
    _doubled(made.graph)
    narrow = (*NUMPY.values(), np.dtype(np.float32))
    wide = {n: a.astype(np.float64) if a.dtype in narrow else a for n, a in feeds.items()}
    return [np.asarray(a) for a in ReferenceEvaluator(made).run(None, wide)]


def _doubled(graph: GraphProto) -> None:
    narrow = (F16, BF16, TensorProto.FLOAT)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type in narrow:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    attributes = [a for n in graph.node for a in n.attribute]
    for tensor in (*graph.initializer, *(a.t for a in attributes)):
        if tensor.data_type in narrow:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for attribute in attributes:
        if attribute.name == "to" and attribute.i in narrow:
            attribute.i = TensorProto.DOUBLE
        _doubled(attribute.g)


def answers(session: InferenceSession, feeds: Mapping[str, Any]) -> list[Any]:
    """A session's answers to feeds of any type."""
    given = {name: _to_runtime(np.asarray(a)) for name, a in feeds.items()}
    return [_from_runtime(a) for a in session.run_with_ort_values(None, given)]


def _to_runtime(array: Any) -> OrtValue:
    if array.dtype == NUMPY[BF16]:
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), BF16)
    return OrtValue.ortvalue_from_numpy(array)


def _from_runtime(value: OrtValue) -> Any:
    if value.element_type() != BF16:
        return value.numpy()
    size = 2 * int(np.prod(value.shape()))
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(data, NUMPY[BF16]).reshape(value.shape())
