"""Model skeletons: the graph without its weights, and models with weights drawn in their place.

Of a large tensor only the shape, type, mean, spread and fraction of zeros are kept, so that a
regrown model has values of similar magnitude.  Small tensors keep their data, because shapes and
attributes are computed from them.  Texts that exporters leave behind are dropped.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tracea_graph.errors import ModelError

__all__ = ["regrow_weights", "write_skeleton"]

_KEPT = 64
"""Maximum number of elements of a tensor that keeps its data."""
_LARGEST = 1 << 31
_SUBGRAPH = onnx.AttributeProto.GRAPH


def write_skeleton(source: Path, out: Path, *, weights: bool = False) -> dict[str, Any]:
    """Write a model without its weights; return what :func:`regrow_weights` needs, as JSON values.

    With ``weights`` the model keeps its weights, in one file.  Raises ModelError if the model
    cannot be read, or is too large for one file with its weights.
    """
    try:
        model = onnx.load(source, load_external_data=weights)
    except Exception as error:  # protobuf's exceptions have no common public base
        raise ModelError(f"{source} is not a readable ONNX model: {error}") from error
    _drop_texts(model)
    facts: dict[str, Any] = {}
    if not weights:
        for name, tensor in _tensors(model):
            if math.prod(tensor.dims) > _KEPT:
                facts[name] = _facts(tensor, source.parent)
                _empty(tensor)
    elif model.ByteSize() >= _LARGEST:
        raise ModelError(f"{source} is too large to be packed with its weights")
    onnx.save(model, out)
    return facts


def regrow_weights(skeleton: Path, facts: Mapping[str, Any], out: Path) -> None:
    """Write a skeleton with weights drawn to match ``facts``; equal facts give equal bytes."""
    model = onnx.load(skeleton)
    for name, tensor in _tensors(model):
        if name in facts:
            drawn = _drawn(name, facts[name], tuple(tensor.dims), tensor.data_type)
            stored = numpy_helper.from_array(drawn, tensor.name)
            stored.data_type = tensor.data_type
            tensor.CopyFrom(stored)
    large = model.ByteSize() >= _LARGEST
    onnx.save(
        model, out, save_as_external_data=large, location=f"{out.name}.data" if large else None
    )


def _tensors(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield every dense tensor of a model, with a name that is unique in it."""
    yield from _graph_tensors("", model.graph)
    for function in model.functions:
        yield from _node_tensors(f"{function.domain}.{function.name}/", function.node)


def _graph_tensors(prefix: str, graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for tensor in graph.initializer:
        yield f"{prefix}{tensor.name}", tensor
    yield from _node_tensors(prefix, graph.node)


def _node_tensors(prefix: str, nodes: Any) -> Iterator[tuple[str, onnx.TensorProto]]:
    for i, node in enumerate(nodes):
        for attribute in node.attribute:
            place = f"{prefix}{i}.{attribute.name}"
            if attribute.HasField("t"):
                yield place, attribute.t
            for k, tensor in enumerate(attribute.tensors):
                yield f"{place}.{k}", tensor
            bodies = [attribute.g] if attribute.type == _SUBGRAPH else list(attribute.graphs)
            for k, body in enumerate(bodies):
                yield from _graph_tensors(f"{place}.{k}/", body)


def _facts(tensor: onnx.TensorProto, folder: Path) -> dict[str, Any]:
    if tensor.data_type == onnx.TensorProto.STRING:
        return {"kind": "text"}
    values = numpy_helper.to_array(tensor, str(folder))
    if values.dtype.kind in "iub":
        return {"kind": "integer", "low": int(values.min()), "high": int(values.max())}
    wide = np.asarray(values, np.float64)
    finite = wide[np.isfinite(wide)]
    return {
        "kind": "float",
        "mean": float(f"{finite.mean() if finite.size else 0.0:.3g}"),
        "spread": float(f"{finite.std() if finite.size else 0.0:.3g}"),
        "zeros": float(f"{(wide == 0).mean():.3g}"),
    }


def _empty(tensor: onnx.TensorProto) -> None:
    for field in ("raw_data", "data_location"):
        tensor.ClearField(field)
    for listed in (
        "float_data", "int32_data", "int64_data", "string_data", "double_data", "uint64_data",
        "external_data",
    ):  # fmt: skip
        tensor.ClearField(listed)


def _drawn(
    name: str, facts: Mapping[str, Any], shape: tuple[int, ...], code: int
) -> npt.NDArray[Any]:
    if facts["kind"] == "text":
        return np.full(shape, "", object)
    r = np.random.default_rng(zlib.crc32(name.encode()))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
    if facts["kind"] == "integer":
        wide = r.integers(facts["low"], facts["high"], shape, np.int64, endpoint=True)
        integers: npt.NDArray[Any] = wide.astype(dtype)
        return integers
    values = r.standard_normal(shape, np.float32) * facts["spread"] + facts["mean"]
    values[r.random(shape, np.float32) < facts["zeros"]] = 0
    floats: npt.NDArray[Any] = values.astype(dtype)
    return floats


def _drop_texts(model: onnx.ModelProto) -> None:
    """Drop what exporters say about sources, people and paths."""
    for field in ("doc_string", "producer_name", "producer_version"):
        model.ClearField(field)
    del model.metadata_props[:]
    for graph in _graphs(model.graph):
        graph.ClearField("doc_string")
        for value in (*graph.node, *graph.input, *graph.output, *graph.value_info):
            value.ClearField("doc_string")
            if hasattr(value, "metadata_props"):
                del value.metadata_props[:]


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in [attribute.g] * (attribute.type == _SUBGRAPH) + list(attribute.graphs):
                yield from _graphs(body)
