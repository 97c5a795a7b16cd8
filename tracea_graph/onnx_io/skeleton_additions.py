"""New nodes and constants of a model that is being read, under names that nothing else has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, helper, numpy_helper

from tracea_graph.onnx_io.node_conversion import all_nodes

__all__ = ["SkeletonAdditions"]


@dataclass
class SkeletonAdditions:
    """Adds to ``graph``, in place; ``opset`` is the version of ONNX's operators."""

    graph: GraphProto
    opset: int
    _taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        graph = self.graph
        self._taken |= {v.name for v in (*graph.input, *graph.initializer)}
        for node in all_nodes(graph):
            self._taken |= {*node.input, *node.output}

    def fresh(self, stem: str) -> str:
        """Return a name that no value has, and take it."""
        name = stem
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def constant(self, stem: str, array: npt.NDArray[Any]) -> str:
        """Add a constant; return its name."""
        name = self.fresh(stem)
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add a node with one result; return the result's name."""
        result = self.fresh(name)
        self.add_node(op, inputs, [result], **attributes)
        return result

    def add_node(
        self, op: str, inputs: Sequence[str], results: Sequence[str], **attributes: Any
    ) -> None:
        """Add a node."""
        self.graph.node.append(helper.make_node(op, inputs, results, **attributes))

    def with_axes(self, op: str, value: str, axes: Sequence[int], name: str) -> str:
        """Add a Squeeze or Unsqueeze of some axes; none for no axes."""
        if not axes:
            return value
        if self.opset < 13:
            return self.add(op, [value], name, axes=[*axes])
        stored = self.constant(f"{name}:axes", np.array([*axes], np.int64))
        return self.add(op, [value, stored], name)

    def replace(self, node: NodeProto, finals: Sequence[str]) -> None:
        """Let a node, in its position, write its first result, and new nodes the others.

        ``finals`` are the values to return instead of the node's results; "" for one not read.
        """
        pairs = [(f, v) for f, v in zip(finals, node.output, strict=False) if f and v]
        for source, result in pairs[1:]:
            self.graph.node.append(helper.make_node("Identity", [source], [result]))
        first = helper.make_node("Identity", [pairs[0][0]], [pairs[0][1]], node.name)
        node.CopyFrom(first)
