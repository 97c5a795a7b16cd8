"""Graph editor for canonicalization: onnx-graphsurgeon over a shell without data.

The shell holds only each node's operator and def-use edges, with captured values as extra inputs.
Attributes, subgraphs, tensors and documentation stay outside because a round trip would lose them.
A node's name in the shell is its index in the imported model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto, helper
from onnx_graphsurgeon.logger import G_LOGGER

from tracea_graph.ir import Node, Weight
from tracea_graph.onnx_io import node_conversion as node_io
from tracea_graph.onnx_io.input_symbols import Held, bind_symbols
from tracea_graph.onnx_io.shape_inference import infer_shapes
from tracea_graph.onnx_io.tensor_data import in_memory_weight
from tracea_graph.onnx_io.value_facts import ValueFacts

__all__ = ["EditorNode", "GraphEditor"]


@dataclass(frozen=True)
class EditorNode:
    """One node with its current inputs and outputs."""

    index: int
    proto: NodeProto
    captures: tuple[str, ...]
    handle: gs.Node = field(repr=False)

    @property
    def op(self) -> str:
        """The operator, with its domain unless that is the default one."""
        domain = self.proto.domain
        return (
            self.proto.op_type if domain in ("", "ai.onnx") else f"{domain}::{self.proto.op_type}"
        )


class GraphEditor:
    """A graph under canonicalization.

    ``growth`` is the number of bytes that constant folding may still add to the file, ``held`` the
    number of bytes that it has put in memory.  ``kept`` are values whose producer and name must
    stay.  ``inputs`` are the declared inputs, in which all axes of a symbol have equal sizes,
    except that an axis of a ``loose`` symbol may have size 1 and broadcast.
    """

    def __init__(
        self,
        skeleton: ModelProto,
        order: Sequence[int],
        captures: Sequence[tuple[str, ...]],
        weights: Mapping[str, Weight],
        opsets: Mapping[str, int],
        known: Mapping[str, TypeProto],
        growth: float,
    ) -> None:
        self.skeleton, self.opsets, self.growth, self.held = skeleton, opsets, growth, 0.0
        self.weights = dict(weights)
        self.captures = captures
        self.known = known
        self.inputs: Sequence[ValueInfoProto] = skeleton.graph.input
        self.loose: Mapping[str, Held] = {}
        self.sums: Mapping[str, str] = {}
        self.outputs = frozenset(v.name for v in skeleton.graph.output)
        self.kept = self.outputs | _annotated(skeleton)
        with _silent():
            self.graph = gs.import_onnx(_shell(skeleton, order, captures))
        self.tensors: dict[str, gs.Variable] = self.graph.tensors()
        self.facts = ValueFacts()
        self._gone: set[int] = set()
        self._calls: dict[int, EditorNode] = {}
        """Nodes by index, with their inputs and outputs when last looked up."""

    def calls(self) -> Iterator[EditorNode]:
        """Yield every node, producers first."""
        for handle in self.graph.nodes:
            index = int(handle.name)
            if index not in self._gone:
                if index not in self._calls:
                    self._calls[index] = self._call(index, handle)
                yield self._calls[index]

    def _call(self, index: int, handle: gs.Node) -> EditorNode:
        """Node with its current inputs and outputs: the imported one, or a copy if they differ."""
        source = self.skeleton.graph.node[index]
        inputs = [t.name for t in handle.inputs][: len(source.input)]
        outputs = [t.name for t in handle.outputs]
        if inputs != list(source.input) or outputs != list(source.output):
            proto = NodeProto()
            proto.CopyFrom(source)
            proto.input[:], proto.output[:] = inputs, outputs
            source = proto
        return EditorNode(index, source, self.captures[index], handle)

    def _rewired(self, handle: gs.Node) -> None:
        self._calls.pop(int(handle.name), None)

    def captured(self) -> set[str]:
        """Return the values of the graph that subgraphs read by name."""
        return {v for call in self.calls() for v in call.captures}

    def bind_symbols(self) -> None:
        """Rename symbols of the inputs so that only axes of equal size share a symbol."""
        nodes = [call.proto for call in self.calls()]
        found = bind_symbols(
            nodes, self.inputs, self.outputs, self.weights, self.opsets, self.known
        )
        self.inputs, self.known, self.loose = found.inputs, found.known, found.loose
        self.sums = found.sums

    def study(self) -> None:
        """Infer the facts about all values anew."""
        self.facts = infer_shapes(
            (call.proto for call in self.calls()),
            self.inputs,
            self.weights,
            self.opsets,
            self.known,
        )

    def bypass(self, call: EditorNode, *values: str) -> None:
        """Let readers of a node's first outputs read ``values`` instead; drop the node."""
        for output, value in zip(call.handle.outputs, values, strict=False):
            self._redirect(output, self.tensors[value])
        self.remove(call)

    def share(self, call: EditorNode, earlier: EditorNode) -> None:
        """Let readers of a node's outputs read those of an equal node; drop the node."""
        for old, new in zip(call.handle.outputs, earlier.handle.outputs, strict=True):
            self._redirect(old, new)
        self.remove(call)

    def hand_over(self, call: EditorNode, *values: str) -> None:
        """Let ``values`` stand for a node's first outputs; drop the node.

        The producer of a value that stands for an output of the model writes that output.
        """
        pairs = [*zip(call.handle.outputs, values, strict=False)]
        self.remove(call)
        for new, value in sorted(pairs, key=lambda pair: pair[0].name in self.outputs):
            old = self.tensors[value]
            if new.name not in self.outputs:
                self._redirect(new, old)
                continue
            producer = old.inputs[0]
            place = next(i for i, tensor in enumerate(producer.outputs) if tensor is old)
            producer.outputs[place] = new
            self._rewired(producer)
            self._redirect(old, new)

    def readers(self, call: EditorNode) -> list[EditorNode]:
        """Return the nodes that read the node's first output."""
        found = {int(r.name): r for r in call.handle.outputs[0].outputs}
        return [self._calls.get(i) or self._call(i, handle) for i, handle in found.items()]

    def read(self, call: EditorNode, operand: int, value: str) -> None:
        """Replace an operand of a node by another value."""
        call.handle.inputs[operand] = self.tensors[value]
        self._rewired(call.handle)

    def feed(self, call: EditorNode, operand: int, numbers: Sequence[int]) -> None:
        """Replace an operand of a node by a new weight, an int64 vector."""
        name = "sizes_" + "_".join(map(str, numbers)).replace("-", "m")
        while name in self.tensors and not self._holds(name, numbers):
            name += "_"
        if name not in self.tensors:
            self.tensors[name] = gs.Variable(name)
            self.weights[name] = in_memory_weight(name, np.array(numbers, np.int64))
            self.facts.weight(self.weights[name])
        self.read(call, operand, name)

    def _holds(self, name: str, numbers: Sequence[int]) -> bool:
        return name in self.weights and self.facts.numbers(name) == list(numbers)

    def _redirect(self, old: gs.Variable, new: gs.Variable) -> None:
        """Redirect every reader of one tensor to another."""
        for reader in list(old.outputs):
            for i, tensor in enumerate(reader.inputs):
                if tensor is old:
                    reader.inputs[i] = new
            self._rewired(reader)

    def remove(self, call: EditorNode) -> None:
        """Remove a node."""
        call.handle.inputs.clear()
        call.handle.outputs.clear()
        self._gone.add(call.index)

    def cleanup(self) -> int:
        """Drop nodes that no output needs; return how many were dropped."""
        self.graph.nodes = [n for n in self.graph.nodes if int(n.name) not in self._gone]
        before = len(self.graph.nodes)
        with _silent():
            self.graph.cleanup(recurse_subgraphs=False, recurse_functions=False)
        return before - len(self.graph.nodes)

    def nodes(self) -> list[Node]:
        """Return the nodes in the tile graph's representation."""
        imported = self.skeleton.graph.node
        return [
            node_io.from_proto(
                imported[c.index], c.index, c.captures, c.proto.input, c.proto.output
            )
            for c in self.calls()
        ]


def _shell(
    skeleton: ModelProto, order: Sequence[int], captures: Sequence[tuple[str, ...]]
) -> ModelProto:
    source = skeleton.graph
    nodes = []
    for index in order:
        node = source.node[index]
        reads = [*node.input, *captures[index]]
        nodes.append(helper.make_node(node.op_type, reads, node.output, name=str(index)))
    named = [helper.make_empty_tensor_value_info(v.name) for v in source.input]
    results = [helper.make_empty_tensor_value_info(v.name) for v in source.output]
    return helper.make_model(helper.make_graph(nodes, "shell", named, results))


def _annotated(skeleton: ModelProto) -> frozenset[str]:
    """Tensors that have quantization annotations."""
    notes = skeleton.graph.quantization_annotation
    names = {n.tensor_name for n in notes}
    return frozenset(names | {e.value for n in notes for e in n.quant_parameter_tensor_names})


@contextmanager
def _silent() -> Iterator[None]:
    before = G_LOGGER.severity
    G_LOGGER.severity = G_LOGGER.CRITICAL
    try:
        yield
    finally:
        G_LOGGER.severity = before
