"""Shape inference: types and symbolic shapes of every value in the model's own symbols.

onnx's inference runs node by node on the facts known so far, which preserves symbols.  Rules of
this package take over where it loses them (``Reshape`` by computed sizes, ``Conv`` over a symbolic
height …).  The most common operators, whose results are like their operands, have only rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import onnx
from onnx import NodeProto, OperatorSetIdProto, TypeProto, ValueInfoProto
from onnx.shape_inference import InferenceError, infer_node_outputs

from tracea_graph.ir import DType, TensorSpec, Weight
from tracea_graph.onnx_io.broadcast_shape_rules import ALL, RULES
from tracea_graph.onnx_io.contrib_shapes import CONTRIB_SHAPES
from tracea_graph.onnx_io.shape_values import evaluate_shape_node
from tracea_graph.onnx_io.tensor_data import tensor_attribute_array
from tracea_graph.onnx_io.value_facts import (
    FLOATS,
    INTEGERS,
    Partial,
    ValueFacts,
    attribute,
    small_integers,
)
from tracea_graph.ops.elementwise_steps import UNARY

__all__ = ["ShapeInference", "infer_shapes"]

T = TypeVar("T")

_REFUSALS = (
    InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, TypeError, KeyError,
)  # fmt: skip

_UNARY = UNARY | frozenset((
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "Clip", "Cosh",
    "CumSum", "Gelu", "Hardmax", "Identity", "InstanceNormalization", "LRN", "LogSoftmax",
    "LpNormalization", "MeanVarianceNormalization", "Not", "PRelu", "Sinh", "Softmax", "Tan",
    "Trilu",
))  # fmt: skip
"""Operators whose only used output has the type and sizes of their first operand."""

_TYPED = frozenset((
    "Add", "AveragePool", "Concat", "Conv", "ConvTranspose", "Div", "Flatten", "MatMul", "Max",
    "Mean", "Min", "Mod", "Mul", "Pad", "Pow", "Reshape", "Slice", "Sub", "Sum",
))  # fmt: skip
"""Operators with a rule for sizes, whose result has the type of their first operand."""

FOLLOWED = INTEGERS | FLOATS
"""Types whose contents may become sizes."""

_ROUNDS = 4
"""Iterations of a loop's body to infer before its state counts as unknown."""


def infer_shapes(
    nodes: Iterable[NodeProto],
    inputs: Iterable[ValueInfoProto],
    weights: Mapping[str, Weight],
    opsets: Mapping[str, int],
    known: Mapping[str, TypeProto],
) -> ValueFacts:
    """Return facts about every value; ``nodes`` are in topological order.

    ``known`` are types that whole-model inference found or that the model declares.  They are used
    only for operators that cannot be inferred on their own.
    """
    facts = ValueFacts()
    facts.declare(list(inputs))
    for weight in weights.values():
        facts.weight(weight)
    imports = tuple(onnx.helper.make_opsetid(d, v) for d, v in opsets.items())
    inference = ShapeInference(opsets, imports, known)
    for node in nodes:
        inference.visit(node, facts)
    return facts


@dataclass(frozen=True)
class ShapeInference:
    """Infers facts about the results of one node after another.

    ``known`` holds types of values that neither this project's rules nor onnx can infer.
    """

    opsets: Mapping[str, int]
    imports: Sequence[OperatorSetIdProto]
    known: Mapping[str, TypeProto]

    def visit(self, node: NodeProto, facts: ValueFacts) -> None:
        """Infer facts about a node's results from its operands."""
        standard = node.domain in ("", "ai.onnx")
        if not (standard and _quick(node, facts)):
            self._learn(node, facts, standard)
        if len(node.output) == 1 and facts.dtype(node.output[0]) in FOLLOWED:
            value = _try(evaluate_shape_node, node, facts)
            if value is not None:
                facts.values[node.output[0]] = value
                facts.specs[node.output[0]] = TensorSpec(facts.dtype(node.output[0]), value.shape)

    def _learn(self, node: NodeProto, facts: ValueFacts, standard: bool) -> None:
        types = self._types(node, facts)
        if node.op_type in LIKE_INPUT and node.input:
            for name in {*node.output[:1], *(node.output[3:] if "Skip" in node.op_type else ())}:
                if name not in types or not types[name].tensor_type.HasField("shape"):
                    types[name] = facts.type_of(node.input[0])  # onnx may know the type alone
        sizes = list(self._sizes(node, facts) if standard else ())
        if node.domain in CONTRIB_SHAPES:
            sizes = self._contributed(node, facts, types)
        for i, name in enumerate(node.output):
            if not name:
                continue
            kind = types.get(name)
            if kind is None or not kind.WhichOneof("value"):
                kind = self.known.get(name, TypeProto())
            facts.learn(name, kind, sizes[i] if i < len(sizes) else None)
            if facts.shape(name) is None and (declared := self.known.get(name)) is not None:
                facts.learn(name, declared)

    def _types(self, node: NodeProto, facts: ValueFacts) -> dict[str, TypeProto]:
        """Types by onnx's rule for one operator; empty if it has none or fails."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in self.opsets or any(a.HasField("g") or a.graphs for a in node.attribute):
            return {}
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets[domain], domain)
        except onnx.defs.SchemaError:
            return {}
        types = {name: facts.type_of(name) for name in node.input if name}
        data = {name: tensor for name in types if (tensor := facts.data_of(name)) is not None}
        try:
            return infer_node_outputs(schema, node, types, data, None, list(self.imports))
        except _REFUSALS:
            return {}

    def _contributed(
        self, node: NodeProto, facts: ValueFacts, types: dict[str, TypeProto]
    ) -> list[Partial]:
        """Sizes of an operator's first output; adds its type to ``types``."""
        known = CONTRIB_SHAPES[node.domain].get(node.op_type)
        sizes = _try(known.sizes, node, facts) if known else None
        dtype = facts.dtype(known.typed_operand(node)) if known and sizes is not None else None
        if dtype is None:
            return []
        types[node.output[0]] = onnx.helper.make_tensor_type_proto(dtype.onnx, None)
        return [sizes]

    def _sizes(self, node: NodeProto, facts: ValueFacts) -> Sequence[Partial]:
        """Sizes of a node's outputs, as far as rules determine them."""
        if node.op_type == "Loop":
            return _try(self._loop, node, facts) or ()
        if node.op_type == "If":
            return _try(self._branch, node, facts) or ()
        if node.op_type in ALL:
            return _try(ALL[node.op_type], node, facts) or ()
        rule = RULES.get(node.op_type)
        return () if rule is None else (_try(rule, node, facts),)

    def _branch(self, node: NodeProto, facts: ValueFacts) -> Sequence[Partial]:
        """Sizes and contents returned by the branch that a known condition selects."""
        flag = facts.numbers(node.input[0])
        if flag is None or len(flag) != 1:
            return ()
        body = attribute(node, "then_branch" if flag[0] else "else_branch")
        inner = facts.inside()
        for tensor in body.initializer:
            inner.specs[tensor.name] = TensorSpec(
                DType.from_onnx(tensor.data_type), tuple(tensor.dims)
            )
        for inside in body.node:
            self.visit(inside, inner)
            held = attribute(inside, "value") if inside.op_type == "Constant" else None
            if held is not None and DType.from_onnx(held.data_type) in INTEGERS:
                array = tensor_attribute_array(held, inside.output[0])
                inner.values[inside.output[0]] = small_integers(array)
        for made, given in zip(node.output, body.output, strict=True):
            if (value := inner.value(given.name)) is not None:
                facts.values[made] = value
        return [inner.shape(given.name) for given in body.output]

    def _loop(self, node: NodeProto, facts: ValueFacts) -> Sequence[Partial]:
        """Sizes of a loop's state that its body preserves, by induction over iterations."""
        body = attribute(node, "body")
        state: list[Partial] = [facts.shape(name) for name in node.input[2:]]
        for _ in range(_ROUNDS):
            inner = facts.inside()
            inner.declare(body.input)
            for tensor in body.initializer:
                inner.specs[tensor.name] = TensorSpec(
                    DType.from_onnx(tensor.data_type), tuple(tensor.dims)
                )
            for info, sizes in zip(body.input[2:], state, strict=True):
                inner.learn(info.name, info.type, sizes)
            for inside in body.node:
                self.visit(inside, inner)
            after = [inner.shape(v.name) for v in body.output[1 : 1 + len(state)]]
            kept = [_same(a, b) for a, b in zip(state, after, strict=True)]
            if kept == state:
                return kept
            state = kept
        return [None] * len(state)


def _same(a: Partial, b: Partial) -> Partial:
    """Sizes on which two shapes agree."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def _quick(node: NodeProto, facts: ValueFacts) -> bool:
    """Infer the only result of a common operator without onnx; False if that fails."""
    outputs = [name for name in node.output if name]
    spec = facts.specs.get(node.input[0]) if node.input else None
    if len(outputs) != 1 or spec is None or spec.dtype is None or spec.shape is None:
        return False
    if node.op_type in _UNARY:
        facts.specs[outputs[0]] = spec
        return True
    if node.op_type not in _TYPED:
        return False
    sizes = _try(RULES[node.op_type], node, facts)
    shape = tuple(size for size in sizes or () if size is not None)
    if sizes is None or len(shape) != len(sizes):
        return False
    facts.specs[outputs[0]] = TensorSpec(spec.dtype, shape)
    return True


def _try(
    rule: Callable[[NodeProto, ValueFacts], T], node: NodeProto, facts: ValueFacts
) -> T | None:
    """Apply a rule; None if the node's operands or attributes are invalid."""
    try:
        return rule(node, facts)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


LIKE_INPUT = frozenset({
    "BiasGelu", "FastGelu", "Gelu", "GroupNormalization", "LayerNormalization", "QuickGelu",
    "SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
})  # fmt: skip
"""Operators that ONNX Runtime supports in any opset, and whose first output is like their first
input.  The fourth output that two of them have, a sum, is like the first input too.
"""
