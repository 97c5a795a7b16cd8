"""Convert a model of the zoo to a 16-bit floating-point type.

    python -m models.make minilm-fp16    # by onnxruntime's converter, inputs and outputs included
    python -m models.make minilm-bf16    # every float32 tensor of the graph in bf16

ONNX Runtime runs fp16 models on CPUs with casts around most operators, and refuses bf16 ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import GraphProto, TensorProto, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16

__all__ = ["FORMS", "halve"]

FORMS = ("fp16", "bf16")
"""Suffixes of the names of converted models."""
_TYPED = ("to", "dtype")
"""Attributes that name an element type."""
_LARGEST = float.fromhex("0x1.FEp127")
"""Largest bf16 number.  Fills of masks are below its negative in float32, and 0 times infinity is
no number.
"""


def halve(source: Path, form: str, target: Path) -> None:
    """Write the 16-bit form of a float32 model.

    Raises:
        ValueError: there is no such form.
    """
    model = onnx.load(source)
    if form == "fp16":
        model = convert_float_to_float16(model, keep_io_types=False)
    elif form == "bf16":
        _to_bf16(model.graph)
    else:
        raise ValueError(f"there is no 16-bit form '{form}', only {', '.join(FORMS)}")
    onnx.save(model, target)


def _to_bf16(graph: GraphProto) -> None:
    """Change the element type of every float32 tensor of a graph without subgraphs."""
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.BFLOAT16
    for tensor in _tensors(graph):
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            finite = np.where(np.isfinite(array), np.clip(array, -_LARGEST, _LARGEST), array)
            rounded = finite.astype(ml_dtypes.bfloat16)
            tensor.CopyFrom(
                TensorProto(
                    name=tensor.name, dims=tensor.dims, data_type=TensorProto.BFLOAT16,
                    raw_data=rounded.view(np.uint16).tobytes(),
                )
            )  # fmt: skip
    for attr in (a for node in graph.node for a in node.attribute):
        if attr.name in _TYPED and attr.i == TensorProto.FLOAT:
            attr.i = TensorProto.BFLOAT16


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from (a.t for a in node.attribute if a.HasField("t"))
