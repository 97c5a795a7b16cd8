"""Small models in ONNX text, as files and as tile graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser, shape_inference

from tracea_graph.ir import DType, Extent, Node, TensorSpec, Weight
from tracea_graph.ttg.region_graph import TileGraph

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'


def model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A model from the text of its graph; ``weights`` become initializers."""
    made = parser.parse_model(HEAD + text)
    made.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return made


def save(folder: Path, name: str, text: str, **weights: np.ndarray) -> Path:
    path = folder / name
    onnx.save(model(text, **weights), path)
    return path


def graph(text: str, **weights: np.ndarray) -> TileGraph:
    """The tile graph of such a model, shapes inferred."""
    made = shape_inference.infer_shapes(model(text, **weights), data_prop=True).graph
    values = [*made.value_info, *made.output, *made.input]
    constants = {
        t.name: Weight(
            t.name,
            DType.from_onnx(t.data_type),
            tuple(t.dims),
            lambda t=t: numpy_helper.to_array(t),
        )
        for t in made.initializer
    }
    nodes = [
        Node(n.op_type, tuple(n.input), tuple(n.output), _attrs(n), n.domain, n.name)
        for n in made.node
    ]
    specs = {v.name: _spec(v.type.tensor_type) for v in values}
    names = [v.name for v in made.input], [v.name for v in made.output]
    return TileGraph.of_nodes(nodes, *names, constants, specs, 17)


def _spec(tensor: onnx.TypeProto.Tensor) -> TensorSpec:
    dims: tuple[Extent, ...] = tuple(d.dim_param or d.dim_value for d in tensor.shape.dim)
    return TensorSpec(DType.from_onnx(tensor.elem_type), dims)


def _attrs(node: onnx.NodeProto) -> Mapping[str, object]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}
