"""Derive how a stripped weight is regenerated, from the node that uses it.

    normal MEAN STD      even MEAN STD      uniform LOW HIGH

Weights of products, convolutions and recurrences preserve variance, those of queries and keys
raise it, scales are 1 ± 0.1, variances of batch norms lie in [0.5, 1.5).  ``even`` is normal with
exactly MEAN over the input channels of each filter, so that an offset common to all channels
cancels; otherwise deep convolutional networks lose their input.  ``balance.py`` corrects
deviations that activations, gates and skip connections would let drift.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx

__all__ = ["Gains", "WeightRule", "rules", "strip"]

_KEEP, _EVEN, _BIAS = 64, 8, 0.02
_THROUGH = ("Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Expand", "Slice")
_SHARP = re.compile(r"[/.](query|key|[qk]_lin|[qk]_proj)[/.]")
_NORMS = ("LayerNormalization", "GroupNormalization", "InstanceNormalization")

Gains = Sequence[tuple[str, float]]
"""(word, factor): multiply the deviation of weights with this word in their path."""


class WeightRule(NamedTuple):
    """Distribution: ``kind`` normal or even (mean, standard deviation), or uniform (low, high)."""

    kind: str
    a: float
    b: float

    def __str__(self) -> str:
        return f"{self.kind} {self.a:g} {self.b:.6g}"


def strip(model: onnx.ModelProto, gains: Gains = ()) -> onnx.ModelProto:
    """Replace large float weights by their rule and drop names of the local machine."""
    rule = rules(model.graph, gains)
    for tensor in model.graph.initializer:
        if tensor.name in rule:
            bare = onnx.TensorProto(
                name=tensor.name,
                data_type=tensor.data_type,
                dims=tensor.dims,
                doc_string=str(rule[tensor.name]),
            )
            tensor.CopyFrom(bare)
    model.doc_string = ""
    model.graph.doc_string = ""
    del model.graph.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        del value.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    return model


def rules(graph: onnx.GraphProto, gains: Gains = ()) -> dict[str, WeightRule]:
    """Return the rule of each large float weight, from the first node that uses it."""
    large = {t.name: tuple(t.dims) for t in graph.initializer if _weighs(t)}
    found: dict[str, WeightRule] = {}
    origin = {name: (name, dims) for name, dims in large.items()}
    for node in graph.node:
        for slot, name in enumerate(node.input):
            if name not in origin:
                continue
            source, dims = origin[name]
            if node.op_type in _THROUGH and slot == 0:
                flip = node.op_type == "Transpose"
                origin[node.output[0]] = (source, dims[::-1] if flip else dims)
            elif source not in found:
                rule = _rule(node, slot, dims)
                path = f"{source} {node.output[0]}"
                found[source] = rule._replace(b=rule.b * _gain(path, rule, gains))
    return {name: found.get(name, WeightRule("normal", 0.0, _BIAS)) for name in large}


def _weighs(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor is large, float and no table: random weights rarely repeat."""
    if tensor.data_type != onnx.TensorProto.FLOAT or math.prod(tensor.dims) <= _KEEP:
        return False
    sample = onnx.numpy_helper.to_array(tensor).ravel()[:4096]
    return len(np.unique(sample)) > sample.size // 2


def _gain(path: str, rule: WeightRule, gains: Gains) -> float:
    """Return a factor: sharper queries and keys make attention neither flat nor one-hot."""
    sharp = 1.0
    if _SHARP.search(path) and rule.a == 0.0:
        sharp = 1.5 if rule.b > _BIAS else 10.0
    return sharp * math.prod(factor for word, factor in gains if word in path)


def _rule(node: onnx.NodeProto, slot: int, dims: tuple[int, ...]) -> WeightRule:
    """Return the rule of a weight of shape ``dims`` in input ``slot`` of ``node``."""
    op = node.op_type
    if op in ("MatMul", "Gemm") and slot < 2:
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        return _spread(1.0, dims[-1 if transposed else -2])
    if op in ("LSTM", "GRU", "RNN"):
        return _spread(1.0, dims[-1]) if slot < 3 else WeightRule("normal", 0.0, 0.1)
    if op in ("Conv", "ConvTranspose"):
        if slot == 2:
            return WeightRule("normal", 0.0, 0.1)
        if op == "ConvTranspose":
            strides = next((a.ints for a in node.attribute if a.name == "strides"), (1,))
            return _spread(2.0, dims[0] * math.prod(dims[2:]) / math.prod(strides))
        rule = _spread(2.0, math.prod(dims[1:]))
        return rule._replace(kind="even") if dims[1] >= _EVEN else rule
    if op == "Gather":
        return WeightRule("normal", 0.0, 0.05)
    if op == "BatchNormalization":
        return (
            WeightRule("normal", 1.0, 0.1),
            WeightRule("normal", 0.0, 0.1),
            WeightRule("normal", 0.0, 0.1),
            WeightRule("uniform", 0.5, 1.5),
        )[slot - 1]
    scale = op == "Mul" or (op in (*_NORMS, "RMSNormalization") and slot == 1)
    return WeightRule("normal", 1.0, 0.1) if scale else WeightRule("normal", 0.0, _BIAS)


def _spread(variance: float, summed: float) -> WeightRule:
    return WeightRule("normal", 0.0, math.sqrt(variance / summed))
