"""The model in double precision: what it computes where float32 itself is ill-conditioned.

Every float32 value becomes a double.  Operators that ONNX Runtime has for float32 only stand
between casts: what they round is all that is rounded.  InstanceNormalization, which cancels there
what should not be there at all (x · s − mean · s), is decomposed, and so is LayerNormalization.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

__all__ = ["doubled"]

_FLOAT, _DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with doubles in the place of float32 inputs, constants, values and outputs."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, opset = made.graph, next(o.version for o in model.opset_import if not o.domain)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == _FLOAT:
            value.type.tensor_type.elem_type = _DOUBLE
    floats = {v.name for v in graph.input if v.type.tensor_type.elem_type == _DOUBLE}
    for tensor in graph.initializer:
        if tensor.data_type == _FLOAT:
            floats.add(tensor.name)
            _widen(tensor)
    types = _types(model)
    del graph.node[:]
    for count, node in enumerate(model.graph.node):
        results = {v for v in node.output if types.get(v) == _FLOAT}
        graph.node.extend(_widened(node, floats, results, opset, count))
        floats |= results
    return made


def _types(model: onnx.ModelProto) -> Mapping[str, int]:
    typed = onnx.shape_inference.infer_shapes(model).graph
    found = {v.name: v.type.tensor_type.elem_type for v in (*typed.value_info, *typed.output)}
    for node in model.graph.node:  # of operators that onnx does not know
        for name in node.output:
            found.setdefault(name, _FLOAT)
    return found


def _widened(
    node: onnx.NodeProto, floats: set[str], results: set[str], opset: int, count: int
) -> list[onnx.NodeProto]:
    """The node for doubles, or as it is between casts; ``floats`` are doubles by now."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    if node.op_type == "Constant" and not node.domain:
        for attribute in made.attribute:
            if attribute.t.data_type == _FLOAT:
                _widen(attribute.t)
        return [made]
    if node.op_type == "Cast" and not node.domain:
        for attribute in made.attribute:
            if attribute.name == "to" and attribute.i == _FLOAT:
                attribute.i = _DOUBLE
        return [made]
    if node.op_type == "InstanceNormalization":
        return _instance_normalized(node, opset)
    if node.op_type == "LayerNormalization" and _over_last_axis(node):
        return _normalized(node, *node.input, node.output[0], opset)
    if node.op_type in ("If", "Loop"):  # what is drawn in bodies has doubles
        for body in (a.g for a in made.attribute if a.HasField("g")):
            for value in (*body.input, *body.output):
                if value.type.tensor_type.elem_type == _FLOAT:
                    value.type.tensor_type.elem_type = _DOUBLE
        return [made]
    if has_doubles(node.domain, node.op_type, opset):
        return [made]
    before, after = list[onnx.NodeProto](), list[onnx.NodeProto]()
    for i, name in enumerate(node.input):
        if name in floats:
            made.input[i] = f"{name}__single{count}_{i}"
            before.append(helper.make_node("Cast", [name], [made.input[i]], to=_FLOAT))
    for i, name in enumerate(node.output):
        if name in results:
            made.output[i] = f"{name}__single"
            after.append(helper.make_node("Cast", [made.output[i]], [name], to=_DOUBLE))
    return [*before, made, *after]


def _instance_normalized(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """An InstanceNormalization of doubles."""
    x, scale, bias = node.input
    own = f"{node.output[0]}__"
    before = f"""
        {own}flat = Constant <value = int64[3] {{0, 0, -1}}> ()
        {own}channels = Constant <value = int64[3] {{1, -1, 1}}> ()
        {own}size = Shape ({x})
        {own}rows = Reshape ({x}, {own}flat)
        {own}scale = Reshape ({scale}, {own}channels)
        {own}bias = Reshape ({bias}, {own}channels)"""
    last = helper.make_node("Reshape", [f"{own}moved", f"{own}size"], [node.output[0]])
    operands = (f"{own}rows", f"{own}scale", f"{own}bias", f"{own}moved")
    return [*_nodes(before), *_normalized(node, *operands, opset), last]


def _normalized(
    node: onnx.NodeProto, x: str, scale: str, bias: str, y: str, opset: int
) -> list[onnx.NodeProto]:
    """A normalization over the last axis, by a sum for the mean and one for the variance."""
    own = f"{node.output[0]}__"
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    mean, end = ("ReduceMean", f", {own}last") if opset >= 18 else ("ReduceMean <axes = [-1]>", "")
    return _nodes(f"""
        {own}last = Constant <value = int64[1] {{-1}}> ()
        {own}epsilon = Constant <value = double {{{epsilon!r}}}> ()
        {own}mean = {mean} ({x}{end})
        {own}off = Sub ({x}, {own}mean)
        {own}square = Mul ({own}off, {own}off)
        {own}variance = {mean} ({own}square{end})
        {own}more = Add ({own}variance, {own}epsilon)
        {own}root = Sqrt ({own}more)
        {own}normal = Div ({own}off, {own}root)
        {own}scaled = Mul ({own}normal, {scale})
        {y} = Add ({own}scaled, {bias})""")


def _over_last_axis(node: onnx.NodeProto) -> bool:
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    return axis == -1 and len(node.input) == 3 and len(node.output) == 1


def _nodes(text: str) -> list[onnx.NodeProto]:
    return list(parser.parse_graph(f"g () => () {{ {text} }}").node)


@cache
def has_doubles(domain: str, op: str, opset: int) -> bool:
    """True if ONNX Runtime has the operator for doubles, wherever it has it for floats."""
    kernels = [
        k for k in get_all_opkernel_def()
        if (k.domain, k.op_name, k.provider) == (domain, op, "CPUExecutionProvider")
        and k.version_range[0] <= opset <= k.version_range[1]
    ]  # fmt: skip
    return any("tensor(double)" in types for k in kernels for types in k.type_constraints.values())


def _widen(tensor: TensorProto) -> None:
    array = numpy_helper.to_array(tensor).astype("float64")
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
