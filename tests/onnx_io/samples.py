"""Small models for the tests of import and export, and how to compare two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.graphs import session
from tracea_graph.onnx_io import Model, WrittenModel, load, write

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: Sequence[int | str | None] | None, kind: int = F32) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def tensor(name: str, array: Any, dtype: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> NodeProto:
    """``inputs`` and ``outputs`` are names between blanks, ``_`` an absent one."""
    before, after = ([("" if n == "_" else n) for n in t.split()] for t in (inputs, outputs))
    return helper.make_node(op, before, after, **attrs)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    tensors: Sequence[TensorProto] = (),
    opset: int = 17,
    ir: int = 8,
    **more: Any,
) -> ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors, **more)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir)


def mlp(opset: int = 17, ir: int = 8, width: int = 64) -> ModelProto:
    """Two layers with an Identity between them."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((8, width)), rng.standard_normal((width, 4))]
    nodes = [
        node("MatMul", "x w0", "h"),
        node("Relu", "h", "r"),
        node("Identity", "r", "i"),
        node("MatMul", "i w1", "y", name="last", doc_string="kept"),
    ]
    tensors = [tensor(f"w{i}", w) for i, w in enumerate(weights)]
    inputs = [value("x", ["batch", 8])]
    if ir < 4:
        inputs += [value("w0", [8, width]), value("w1", [width, 4])]
    return model(nodes, inputs, [value("y", ["batch", 4])], tensors, opset, ir)


def save(proto: ModelProto, folder: Path, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def read(proto: ModelProto, folder: Path) -> Model:
    return load(save(proto, folder))


def verbatim(loaded: Model, out: Path, **options: Any) -> WrittenModel:
    """Write a model's own nodes."""
    graph = loaded.graph
    nodes = [region.node for region in graph.regions()]
    return write(loaded, nodes, graph.weights, out, **options)


def ops(loaded: Model) -> list[str]:
    return [region.op for region in loaded.graph.regions()]


def feeds(path: Path, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Feeds for a model's inputs; unnamed sizes are 2, integers 0 or 1."""
    rng, out = np.random.default_rng(0), {}
    for item in session(path).get_inputs():
        shape = [d if isinstance(d, int) and d >= 0 else sizes.get(d, 2) for d in item.shape]
        kind = item.type.removeprefix("tensor(").removesuffix(")")
        if kind in ("float", "double", "float16"):
            dtype = {"float": "f4", "double": "f8", "float16": "f2"}[kind]
            out[item.name] = rng.standard_normal(shape).astype(dtype)
        elif kind == "string":
            out[item.name] = np.full(shape, "a", object)
        else:
            out[item.name] = rng.integers(0, 2, shape).astype(kind)
    return out


def run(path: Path, given: Mapping[str, Any]) -> list[Any]:
    return list(session(path).run(None, dict(given)))


def equal(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) or a is None:
        return bool(a == b)
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    return bool((x == y).all()) if x.dtype == object else x.tobytes() == y.tobytes()


def interface(proto: ModelProto) -> list[bytes]:
    """Inputs and outputs as bytes; before IR 4 without initializers."""
    held = {t.name for t in proto.graph.initializer} if proto.ir_version < 4 else set()
    inputs = [v for v in proto.graph.input if v.name not in held]
    return [v.SerializeToString() for v in (*inputs, *proto.graph.output)]


def skeleton(path: Path) -> ModelProto:
    return onnx.load(path, load_external_data=False)
