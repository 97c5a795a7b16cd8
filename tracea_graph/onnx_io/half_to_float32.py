"""Half-precision models: compute in float32 what a model computes in fp16 or bf16.

    y = Conv(x, w)   in fp16   ->   y = Cast(Conv(Cast(x), Cast(w)))   in float32

Inputs, outputs, stored weights, and values of operators that support no other type keep their
type.  Nothing is rounded between two operators that compute in float32.  ONNX Runtime, too,
removes such pairs of casts: on most processors it has few kernels for fp16 and none for bf16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tracea_graph.ir import DType
from tracea_graph.onnx_io.external_data import is_external
from tracea_graph.onnx_io.node_conversion import captures_of, subgraphs_of, topological_node_order
from tracea_graph.onnx_io.protobuf_wire import LARGE
from tracea_graph.onnx_io.subgraph_flattening import is_flat
from tracea_graph.onnx_io.type_inference import HALF_TYPES, Types, can_widen, result_types

__all__ = ["widen_to_float32"]

_MOVES = frozenset({
    "Cast", "CastLike", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand",
    "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape",
    "ReverseSequence", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators that compute nothing: a model in which only these use half types is not changed."""
_EITHER = frozenset({"Shape", "Size"})
"""Operators that read only the shape of their operand."""


def widen_to_float32(model: ModelProto) -> frozenset[DType]:
    """Let the nodes of a model compute in float32 instead of fp16 and bf16, in place.

    Returns the types that were widened; empty if the model computes nothing in a half type.
    Subgraphs are widened too, but values that enter or leave a subgraph keep their types.  Models
    for training are not changed.
    """
    opsets = {("" if i.domain == "ai.onnx" else i.domain): i.version for i in model.opset_import}
    if model.training_info or not _mentions_half(model.graph):
        return frozenset()
    names = _Names(set(_every_name(model.graph)))
    scope = _Scope(model.graph, {}, opsets, names)
    found = scope.computed()
    if found:
        scope.rewrite()
    return frozenset(t for t in map(DType.from_onnx, found) if t is not None)


@dataclass
class _Names:
    """Names in use anywhere in the model, bodies included."""

    taken: set[str]

    def fresh(self, stem: str) -> str:
        name = stem
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


@dataclass
class _Scope:
    """One graph: the types of its values, and the nodes that are to compute in float32.

    ``outer`` are the types of the values of enclosing graphs.  ``born`` are half values that are
    produced in float32.
    """

    graph: GraphProto
    outer: Types
    opsets: Mapping[str, int]
    names: _Names
    nested: bool = False
    types: dict[str, int | None] = field(default_factory=dict)
    widened: list[NodeProto] = field(default_factory=list)
    inner: list[_Scope] = field(default_factory=list)
    born: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.types = {**self.outer, **_declared(self.graph)}
        chosen: list[NodeProto] = []
        flat = is_flat(self.graph)
        for node in self._ordered():
            inner = [
                _Scope(body, dict(self.types), self.opsets, self.names, nested=True)
                for body in subgraphs_of(node)
            ]
            self.inner += inner
            results = (
                inner[0].returned(node) if inner else result_types(node, self.types, self.opsets)
            )
            for value, code in zip(node.output, results, strict=True):
                if value and (code is not None or value not in self.types):
                    self.types[value] = code
            known = [self.types.get(v) if v else None for v in node.output]
            if not flat and can_widen(node, self.types, known, self.opsets):
                chosen.append(node)
                self.born |= {v for v in node.output if self._is_half(v)}
        self.widened = chosen

    def returned(self, node: NodeProto) -> list[int | None]:
        """Return the types of the outputs of this body that become a node's results."""
        first = 1 if node.op_type == "Loop" else 0
        made = [self.types.get(v.name) for v in self.graph.output[first:]]
        return [made[i] if i < len(made) else None for i in range(len(node.output))]

    def _ordered(self) -> list[NodeProto]:
        nodes = self.graph.node
        reads = [[v for v in (*n.input, *captures_of(n)[0]) if v] for n in nodes]
        return [nodes[i] for i in topological_node_order(reads, [[*n.output] for n in nodes])]

    def _is_half(self, value: str) -> bool:
        return bool(value) and self.types.get(value) in HALF_TYPES

    def computed(self) -> set[int]:
        """Return the half types that some node computes in."""
        found = set[int]()
        for node in self.widened:
            if node.op_type not in _MOVES:
                values = filter(self._is_half, (*node.input, *node.output))
                found |= {code for v in values if (code := self.types[v]) is not None}
        return found.union(*(scope.computed() for scope in self.inner))

    # ---- rewriting ---------------------------------------------------------------------

    def rewrite(self) -> None:
        """Let the chosen nodes read and write float32, with casts where a half value is needed."""
        for scope in self.inner:
            scope.rewrite()
        chosen = {id(node) for node in self.widened}
        wide_reads: set[str] = set()
        narrow_reads = {v.name for v in self.graph.output}
        for node in self.graph.node:
            narrow_reads |= set().union(*captures_of(node))
            for value in filter(self._is_half, node.input):
                if not self._reads_any(node):
                    (wide_reads if id(node) in chosen else narrow_reads).add(value)
        fed = {v.name for v in self.graph.input}
        self.born |= _converted(self.graph, wide_reads - narrow_reads - fed)
        both = {v for v in self.born if v in narrow_reads}
        casts = (wide_reads - self.born) | both
        wide = {v: self.names.fresh(f"{v}:f32") for v in sorted(casts)}
        for node in self.graph.node:
            self._rewire(node, id(node) in chosen, wide)
        for value in sorted(casts):
            self._convert(value, wide[value], value in both)
        if self.nested:  # the nodes of a subgraph are sorted
            ordered = self._ordered()
            copies = [helper.make_node("", [], []) for _ in ordered]
            for copy, node in zip(copies, ordered, strict=True):
                copy.CopyFrom(node)
            self.graph.ClearField("node")
            self.graph.node.extend(copies)
        self._declare(wide)

    def _reads_any(self, node: NodeProto) -> bool:
        """Whether a node can read a half value in either form, half or float32."""
        casts = node.op_type == "Cast" and not self._is_half(node.output[0])
        return casts or node.op_type in _EITHER

    def _rewire(self, node: NodeProto, chosen: bool, wide: Mapping[str, str]) -> None:
        either = self._reads_any(node)
        for i, value in enumerate(node.input):
            if value in wide and (value in self.born if either else chosen):
                node.input[i] = wide[value]
        if not chosen:
            return
        for i, value in enumerate(node.output):
            node.output[i] = wide.get(value, value)
        for attr in node.attribute:
            if node.op_type == "Cast" and attr.name == "to" and attr.i in HALF_TYPES:
                attr.i = TensorProto.FLOAT
            if node.op_type == "ConstantOfShape" and attr.name == "value":
                attr.t.CopyFrom(_in_float(attr.t))

    def _convert(self, value: str, wide: str, outwards: bool) -> None:
        """Add the cast between both forms of a value."""
        source, target = (wide, value) if outwards else (value, wide)
        code = self.types[value] if outwards else TensorProto.FLOAT
        self.graph.node.append(
            helper.make_node("Cast", [source], [target], name=f"cast {target}", to=code)
        )

    def _declare(self, wide: Mapping[str, str]) -> None:
        """Correct the declared types of values that are float32 under their old name."""
        for info in self.graph.value_info:
            if info.name in self.born and info.name not in wide:
                info.type.tensor_type.elem_type = TensorProto.FLOAT


def _converted(graph: GraphProto, values: set[str]) -> set[str]:
    """Store small constants that only float32 nodes read in float32; return their names."""
    found = set[str]()
    for tensor in graph.initializer:
        if tensor.name in values and _is_small(tensor):
            tensor.CopyFrom(_in_float(tensor))
            found.add(tensor.name)
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] in values:
            (tensor,) = (a.t for a in node.attribute)
            if _is_small(tensor):
                tensor.CopyFrom(_in_float(tensor))
                found.add(node.output[0])
    return found


def _is_small(tensor: TensorProto) -> bool:
    """Whether a tensor's data is in memory; that of large tensors stays in the file."""
    size = 2 * int(np.prod(tensor.dims, dtype=object))
    return 0 <= size <= LARGE and not is_external(tensor) and size in (
        len(tensor.raw_data), 2 * len(tensor.int32_data),
    )  # fmt: skip


def _in_float(tensor: TensorProto) -> TensorProto:
    array = numpy_helper.to_array(tensor).astype(np.float32)
    made = numpy_helper.from_array(array, tensor.name)
    made.doc_string = tensor.doc_string
    return made


def _declared(graph: GraphProto) -> dict[str, int | None]:
    """Types of inputs, constants and values that the graph declares; sequences have none."""
    found: dict[str, int | None] = {}
    for info in (*graph.value_info, *graph.output, *graph.input):
        tensor = info.type.tensor_type if info.type.HasField("tensor_type") else None
        found[info.name] = (tensor.elem_type or None) if tensor is not None else None
    for tensor in graph.initializer:
        found[tensor.name] = tensor.data_type
    for sparse in graph.sparse_initializer:
        found[sparse.values.name] = None
    return found


def _mentions_half(graph: GraphProto) -> bool:
    """Whether anything in the graph could be of a half type."""
    if not set(_declared(graph).values()).isdisjoint(HALF_TYPES):
        return True
    for node in graph.node:
        for attr in node.attribute:
            if attr.i in HALF_TYPES or attr.t.data_type in HALF_TYPES:
                return True
        if any(map(_mentions_half, subgraphs_of(node))):
            return True
    return False


def _every_name(graph: GraphProto) -> Iterable[str]:
    """Names of all values of a graph and its subgraphs."""
    yield from (v.name for v in (*graph.input, *graph.output, *graph.value_info))
    yield from (t.name for t in graph.initializer)
    for node in graph.node:
        yield from (*node.input, *node.output)
        for body in subgraphs_of(node):
            yield from _every_name(body)
