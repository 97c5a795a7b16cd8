"""Models whose sums are taken in another order: what changes with them is ill-conditioned.

In float32 the order of a sum may move its result by ``u · Σ|terms|``, u being the unit roundoff,
and decides whether a partial sum overflows.  :func:`reordered` applies both bounds to a model in
double precision.  The ``Σ|terms|`` of a convolution, product or mean is the same operator on
absolute values.  Normalizations are decomposed there (:mod:`.doubling`): their means and variances
are sums like any other.
"""

from __future__ import annotations

import itertools

import onnx
from onnx import TensorProto, helper, parser

from tests.fuzz.doubling import doubled

__all__ = ["MAX_RANDOM_OPSET", "reordered"]

MAX_RANDOM_OPSET = 21
"""The newest opset of which ONNX Runtime has RandomUniformLike."""

_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
_SUMS = frozenset(("AveragePool", "CumSum", "GlobalAveragePool", "Mean", "ReduceL1", "ReduceMean",
                   "ReduceSum", "Sum"))  # fmt: skip
_VARIADIC = frozenset(("Mean", "Sum"))
_ROUNDING = 2.0**-23
"""Twice the unit roundoff of float32: a sum of many terms rounds more than once."""
_SCALE = 2.0**-32
"""What terms are scaled by before they are summed: no sum overflows, not even in float32."""


def reordered(model: onnx.ModelProto, seed: int, overflow: bool) -> onnx.ModelProto:
    """The model in double precision, every sum moved at random within its rounding bound.

    With ``overflow`` a sum is NaN if its absolute terms add up to more than the largest float32:
    partial sums of some order overflow.  Without, no sum does: some order may avoid it.
    """
    made = doubled(model)
    typed = onnx.shape_inference.infer_shapes(made).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*typed.value_info, *typed.output)}
    nodes, count = list(made.graph.node), itertools.count(seed * 1000)
    del made.graph.node[:]
    for node in nodes:
        type = types.get(node.output[0], TensorProto.DOUBLE)
        summing = node.op_type in _PRODUCTS | _SUMS and not node.domain
        if summing and type in (TensorProto.FLOAT, TensorProto.DOUBLE):
            made.graph.node.extend(_moved(node, type, next(count), overflow))
        else:
            made.graph.node.append(node)
    for domain in made.opset_import:
        if not domain.domain:
            domain.version = min(domain.version, MAX_RANDOM_OPSET)
    return made


def _moved(node: onnx.NodeProto, type: int, seed: int, overflow: bool) -> list[onnx.NodeProto]:
    """The sum of scaled terms, and of absolute ones: a random share of these is added.

    The result is a double, where the node's is a float32, too: what follows is a Cast to double.
    """
    name = node.output[0]
    own, dtype = f"{name}__", "float" if type == TensorProto.FLOAT else "double"
    exact, absolute = onnx.NodeProto(), onnx.NodeProto()
    for copy, result in ((exact, f"{own}scaled"), (absolute, f"{own}absolute")):
        copy.CopyFrom(node)
        copy.output[0], copy.name = result, result
    before = f"{own}scale = Constant <value = {dtype} {{{_SCALE!r}}}> ()"
    for i, operand in enumerate(node.input):
        if not operand or (i and node.op_type in _SUMS - _VARIADIC):
            continue  # axes
        if i != 1 or node.op_type not in _PRODUCTS:
            before += f" {own}term{i} = Mul ({operand}, {own}scale)"
            operand = exact.input[i] = f"{own}term{i}"
        absolute.input[i] = f"{own}magnitude{i}"
        before += f" {own}magnitude{i} = Abs ({operand})"
    bound = f"""
        {own}unscale = Constant <value = double {{{1 / _SCALE!r}}}> ()
        {own}wide = Cast <to = {TensorProto.DOUBLE}> ({own}scaled)
        {own}sum = Mul ({own}wide, {own}unscale)
        {own}large = Cast <to = {TensorProto.DOUBLE}> ({own}absolute)
        {own}bound = Mul ({own}large, {own}unscale)"""
    share = helper.make_node(
        "RandomUniformLike", [f"{own}bound"], [f"{own}share"],
        low=-_ROUNDING, high=_ROUNDING, seed=float(seed), dtype=TensorProto.DOUBLE,
    )  # fmt: skip
    moved = f"{own}moved" if overflow else name
    after = f"""
        {own}change = Mul ({own}bound, {own}share)
        {moved} = Add ({own}sum, {own}change)"""
    if overflow:  # no Where in old opsets: infinity · 0 is NaN
        after += f"""
            {own}zero = Constant <value = float {{0.0}}> ()
            {own}single = Cast <to = {TensorProto.FLOAT}> ({own}bound)
            {own}lost = Mul ({own}single, {own}zero)
            {own}nothing = Cast <to = {TensorProto.DOUBLE}> ({own}lost)
            {name} = Add ({moved}, {own}nothing)"""
    return [*_nodes(before), exact, absolute, *_nodes(bound), share, *_nodes(after)]


def _nodes(text: str) -> list[onnx.NodeProto]:
    return list(parser.parse_graph(f"g () => () {{ {text} }}").node)
