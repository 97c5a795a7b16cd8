"""Check the shapes of a whole model: infer them in order, and compare with what is declared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto

from tracea_graph.onnx_io import model_validation, tensor_data
from tracea_graph.onnx_io.model_reader import read_unchecked
from tracea_graph.onnx_io.shape_contradictions import (
    Contradiction,
    false_declarations,
    incompatible_operands,
    unknown_shapes,
)
from tracea_graph.onnx_io.shape_inference import ShapeInference
from tracea_graph.onnx_io.value_facts import ValueFacts, attribute
from tracea_graph.temporary_files import gc_paused

__all__ = ["check_shapes"]


def check_shapes(path: Path, strict: bool = False) -> tuple[int, tuple[Contradiction, ...]]:
    """Return the number of tensors checked and every contradiction, in the operators' order.

    Without ``strict``, only contradictions that hold for all sizes are returned.  Raises
    ModelError for a file that is not a model, or whose graph has an invalid structure.
    """
    with gc_paused():
        skeleton, opsets, weights, names = read_unchecked(path)
        graph = skeleton.graph
        order, _ = model_validation.check_structure(graph, names)
        declared = {v.name: v.type for v in (*graph.value_info, *graph.output)}
        facts = ValueFacts()
        facts.declare([v for v in graph.input if v.name not in weights])
        for weight in weights.values():
            facts.weight(weight)
        imports = tuple(onnx.helper.make_opsetid(d, v) for d, v in opsets.items())
        inference = ShapeInference(opsets, imports, declared)

        def found() -> Iterator[Contradiction]:
            for index in order:
                node = graph.node[index]
                yield from incompatible_operands(node, facts, opsets)
                if not (node.output and node.output[0] in weights):
                    inference.visit(node, facts)
                    _learn_contents(node, facts)
                if strict:
                    yield from unknown_shapes(node, facts)
                label = node.name or node.op_type
                for name in (v for v in node.output if v in declared):
                    yield from false_declarations(name, declared[name], facts, label, strict)

        listed = tuple(found())
        return len(facts.specs), listed


def _learn_contents(node: NodeProto, facts: ValueFacts) -> None:
    """Add the tensor of a Constant node, whose elements may be sizes."""
    held = attribute(node, "value") if node.op_type == "Constant" else None
    if isinstance(held, TensorProto):
        facts.weight(tensor_data.from_proto(held, None, node.output[0]))
