"""The model with NaN where docs/verification.md says kernels have it and ONNX Runtime has not.

MaxPool passes NaN over, GlobalMaxPool and ReduceMax do so or give it for any, ReduceMin gives it,
and attention drops what a masked key scores where ONNX Runtime's operator adds to it.  A maximum
of nothing but -inf is -inf.  Groups of a convolution that fill blocks of 16 channels together are
one group with zeros between them.  Operators that a result leaves to ONNX Runtime are as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import product
from math import gcd, lcm

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

__all__ = ["deviating"]

Words = Callable[[onnx.NodeProto, str], list[onnx.NodeProto]]
_LEAST, _MOST = 9, 5
"""The first opset with IsNaN and Where, and what is drawn for older ones is the same there; how
many operators with several ways are looked at."""
_LOWEST, _HIDDEN = -3.4028234663852886e38, -1e4
_BLOCK, _FEW = 16, 4
"""Channels of a block; how many groups are taken together at most."""


def deviating(model: onnx.ModelProto, left: Collection[str] = ()) -> Iterator[onnx.ModelProto]:
    """The same with such operators in others' words, in all combinations of their ways.

    Those that write a value of ``left`` are as they are.
    """
    dims = {t.name: tuple(t.dims) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            dims[node.output[0]] = tuple(node.attribute[0].t.dims)
    masks = _added_masks(model)
    ways = [
        [] if node.output[0] in left else masks.get(node.output[0]) or _ways(node, dims)
        for node in model.graph.node
    ]
    if any(ways) and sum(len(found) > 1 for found in ways) <= _MOST:
        for chosen in product(*(found or [_as_it_is] for found in ways)):
            made = onnx.ModelProto()
            made.CopyFrom(model)
            del made.graph.node[:]
            for i, (node, respell) in enumerate(zip(model.graph.node, chosen, strict=True)):
                made.graph.node.extend(respell(node, f"deviating{i}_"))
            for opset in made.opset_import:
                opset.version = max(opset.version, 1 if opset.domain else _LEAST)
            yield made


def _ways(node: onnx.NodeProto, dims: Mapping[str, tuple[int, ...]]) -> list[Words]:
    if node.op_type == "Conv" and (count := _together(node, dims)) > 1:
        return [partial(_dense, count=count, dims=dims[node.input[1]]), _as_it_is]
    ways: dict[str, list[Words]] = {
        "Attention": [_as_it_is, _attention], "GlobalMaxPool": [_pooled, _any_lost],
        "MaxPool": [_pooled], "ReduceMax": [_any_lost, _pooled], "ReduceMin": [_any_lost],
    }  # fmt: skip
    return [] if node.domain else ways.get(node.op_type, [])


def _added_masks(model: onnx.ModelProto) -> dict[str, list[Words]]:
    """Sums of scores and a mask that is chosen, by their names: what is hidden may be dropped."""
    makers = {v: n for n in model.graph.node for v in n.output}
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in (n for n in model.graph.node if n.op_type == "Constant"):
        for attribute in (a for a in node.attribute if a.HasField("t")):
            held[node.output[0]] = numpy_helper.to_array(attribute.t)
    found: dict[str, list[Words]] = {}
    for node in (n for n in model.graph.node if n.op_type == "Add"):
        for mask, scores in (node.input[::-1], node.input):
            maker = makers.get(mask)
            if maker is None or maker.op_type != "Where":
                continue
            hidden = [i for i in (1, 2) if np.max(held.get(maker.input[i], 0)) <= _HIDDEN]
            if len(hidden) == 1:
                chosen = [*maker.input]
                chosen[3 - hidden[0]] = scores
                words = partial(_chosen, operands=", ".join(chosen))
                found[node.output[0]] = [_as_it_is, words]
    return found


def _chosen(node: onnx.NodeProto, own: str, operands: str) -> list[onnx.NodeProto]:
    """What hides a score in its place, not added to it."""
    return _nodes(f"{node.output[0]} = Where ({operands})")


def _groups(node: onnx.NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "group"), 1)


def _together(node: onnx.NodeProto, dims: Mapping[str, tuple[int, ...]]) -> int:
    """How many groups fill blocks together, if that is four at most; else 1."""
    groups, (filters, channels, *_) = _groups(node), dims.get(node.input[1], (0, 1))
    if groups == 1 or channels == 1:
        return 1
    each = filters // groups
    count = lcm(_BLOCK // gcd(_BLOCK, channels), _BLOCK // gcd(_BLOCK, each))
    return count if count <= _FEW and groups % count == 0 else 1


def _dense(
    node: onnx.NodeProto, own: str, count: int, dims: tuple[int, ...]
) -> list[onnx.NodeProto]:
    """As many groups as one."""
    filters, groups = dims[0], _groups(node)
    place = np.arange(filters) // (filters // groups) % count
    made, parts = list[onnx.NodeProto](), [f"{own}part{i}" for i in range(count)]
    for i, part in enumerate(parts):
        there = (place == i).astype(np.float32).reshape(-1, *[1] * (len(dims) - 1))
        held = numpy_helper.from_array(there)
        made += [helper.make_node("Constant", [], [f"{part}there"], value=held),
                 helper.make_node("Mul", [node.input[1], f"{part}there"], [part])]  # fmt: skip
    conv = onnx.NodeProto()
    conv.CopyFrom(node)
    conv.input[1] = f"{own}dense"
    next(a for a in conv.attribute if a.name == "group").i = groups // count
    return [*made, helper.make_node("Concat", parts, [f"{own}dense"], axis=1), conv]


def _as_it_is(node: onnx.NodeProto, own: str) -> list[onnx.NodeProto]:
    return [node]


def _nodes(text: str) -> list[onnx.NodeProto]:
    return list(parser.parse_graph(f"g () => () {{ {text} }}").node)


def _like(node: onnx.NodeProto, op: str, x: str, y: str) -> onnx.NodeProto:
    """An operator with the attributes and axes of another."""
    made = helper.make_node(op, [x, *node.input[1:]], [y])
    made.attribute.extend(node.attribute)
    return made


def _any_lost(node: onnx.NodeProto, own: str) -> list[onnx.NodeProto]:
    """NaN where there is any."""
    largest = "ReduceMax" if node.op_type == "ReduceMin" else node.op_type
    return [
        *_nodes(f"""
            {own}nan = IsNaN ({node.input[0]})
            {own}count = Cast <to = 1> ({own}nan)"""),
        _like(node, largest, f"{own}count", f"{own}most"),
        _like(node, node.op_type, node.input[0], f"{own}found"),
        *_raised(node, own),
        *_nodes(f"""
            {own}none = Constant <value = float {{nan}}> ()
            {own}lost = Cast <to = 9> ({own}most)
            {node.output[0]} = Where ({own}lost, {own}none, {own}best)"""),
    ]


def _raised(node: onnx.NodeProto, own: str) -> list[onnx.NodeProto]:
    """-inf where a pool of nothing else has the lowest number."""
    return _nodes(f"""
        {own}least = Constant <value = float {{{_LOWEST}}}> ()
        {own}lowest = Constant <value = float {{-inf}}> ()
        {own}above = Greater ({own}found, {own}least)
        {own}best = Where ({own}above, {own}found, {own}lowest)""")


def _pooled(node: onnx.NodeProto, own: str) -> list[onnx.NodeProto]:
    """NaN where there is nothing else."""
    return [
        *_nodes(f"""
            {own}nan = IsNaN ({node.input[0]})
            {own}low = Constant <value = float {{-inf}}> ()
            {own}numbers = Where ({own}nan, {own}low, {node.input[0]})
            {own}number = Not ({own}nan)
            {own}count = Cast <to = 1> ({own}number)"""),
        _like(node, node.op_type, f"{own}count", f"{own}most"),
        _like(node, node.op_type, f"{own}numbers", f"{own}found"),
        *_raised(node, own),
        *_nodes(f"""
            {own}none = Constant <value = float {{nan}}> ()
            {own}any = Cast <to = 9> ({own}most)
            {node.output[0]} = Where ({own}any, {own}best, {own}none)"""),
    ]


def _attention(node: onnx.NodeProto, own: str) -> list[onnx.NodeProto]:
    """−inf in the place of what a masked key scores: as drawn, with no row without keys."""
    heads = next(a.i for a in node.attribute if a.name == "q_num_heads")
    ordered = any(a.name == "is_causal" and a.i for a in node.attribute)
    mask = node.input[3] if len(node.input) > 3 else ""
    made = _nodes(f"""
        {own}low = Constant <value = float {{-inf}}> ()
        {own}split = Constant <value = int64[4] {{0, 0, {heads}, -1}}> ()
        {own}flat = Constant <value = int64[3] {{0, 0, -1}}> ()""")
    for x, perm, value in zip("qkv", ("0,2,1,3", "0,2,3,1", "0,2,1,3"), node.input, strict=False):
        made += _nodes(f"""
            {own}{x}rows = Reshape ({value}, {own}split)
            {own}{x} = Transpose <perm = [{perm}]> ({own}{x}rows)""")
    made += _nodes(f"""
        {own}size = Shape <start = 3> ({own}v)
        {own}width = Cast <to = 1> ({own}size)
        {own}root = Sqrt ({own}width)
        {own}scaled = Div ({own}q, {own}root)
        {own}scores = MatMul ({own}scaled, {own}k)""")
    scores = f"{own}scores"
    if mask:
        chosen = f"Where ({mask}, {scores}, {own}low)" if mask.startswith("keep") else ""
        made += _nodes(f"{own}masked = {chosen or f'Add ({scores}, {mask})'}")
        scores = f"{own}masked"
    if ordered:
        made += _nodes(f"""
            {own}sizes = Shape ({scores})
            {own}one = ConstantOfShape <value = int64[1] {{1}}> ({own}sizes)
            {own}lower = Trilu <upper = 0> ({own}one)
            {own}before = Cast <to = 9> ({own}lower)
            {own}ordered = Where ({own}before, {scores}, {own}low)""")
        scores = f"{own}ordered"
    return made + _nodes(f"""
        {own}shares = Softmax <axis = -1> ({scores})
        {own}heads = MatMul ({own}shares, {own}v)
        {own}rows = Transpose <perm = [0,2,1,3]> ({own}heads)
        {node.output[0]} = Reshape ({own}rows, {own}flat)""")
