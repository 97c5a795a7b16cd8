"""Convert convolutions of dequantized operands into convolutions of integers, channels last.

Conv(DequantizeLinear(x), DequantizeLinear(W), bias)
    -> Transpose(FusedConvInteger(Transpose(x), W), channels first), rescaled, with the bias

Cast(ConvInteger(x, W, zero, zeros))
    -> Transpose(FusedConvInteger(Transpose(x), W, zero), channels first)

Conv(DequantizeLinear(QuantizeLinear(Pad(x))))
    -> Conv(DequantizeLinear(QuantizeLinear(x))) with more padding: zero becomes the zero point

W is constant, with one scale or one for each filter.  The bias may be a constant behind a
DequantizeLinear.  The transposes meet those of neighbours and cancel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Node, TensorSpec, Weight
from tracea_graph.ops.chain import ROW
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.int8_matmul import MAX_DEPTH, IntegerOperand
from tracea_graph.passes.convolution.conv import padded_attributes, zero_padding
from tracea_graph.passes.convolution.window_attributes import read_window
from tracea_graph.passes.quantized.integer_matrix import (
    BYTES,
    check_cast_to_float32,
    column_zeros,
    left_zero,
    signed_matrix,
    weight_of_array,
)
from tracea_graph.passes.quantized.rescale import (
    RescaleFactor,
    covered_with,
    dequantized_row,
    dequantized_sides,
    one_scale_each,
    rescale_chain,
    rescaling,
    why_not_dequantized,
)
from tracea_graph.passes.quantized.scale_checks import ordinary
from tracea_graph.passes.region_helpers import attribute, fused_region
from tracea_graph.reason_codes import Code, Reason, not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Match, Miss, Proposal, Rewrite, Rule
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "CONV_INTEGER",
    "QUANTIZED_PAD",
    "IntegerConv",
    "QuantizedConv",
    "between_transposes",
    "conv_of_integers",
]


@dataclass
class IntegerConv:
    """A convolution of integers: its parameters, its operands after x, and the weights to add."""

    params: ConvIntegerParams
    operands: tuple[str, ...]
    weights: dict[str, Weight] = field(default_factory=dict)


class QuantizedConv:
    """Convolve integers if a convolution's input and its constant filters are both dequantized."""

    name = "quantized-conv"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Conv" or region.fused:
            return
        if (sides := dequantized_sides(graph, region)) is None:
            why = unsuited_reason(
                "its input is not dequantized, or its filters are not dequantized from a constant"
            )
            yield Miss(self.name, region.id, why_not_dequantized(graph, region, why))
            return
        made = self._made(graph, region, *sides)
        if isinstance(made, str):
            yield Miss(self.name, region.id, made)
            return
        covered = covered_with(graph, region, sides)
        yield between_transposes(self.name, graph, sides[0].operands[0], made, region, covered)

    def _made(self, graph: TileGraph, region: Region, x: Region, w: Region) -> IntegerConv | str:
        (q, scale, zero), (m, scales, zeros) = ((*r.operands, "")[:3] for r in (x, w))
        made = integer_conv(graph, region, q, m, zero, zeros)
        if isinstance(made, str):
            return made
        if (why := one_scale_each(graph, w, scales, made.params.filters, 0)) is not None:
            return why
        factors = rescaling(graph, scale, scales, made.weights)
        if isinstance(factors, str):
            return factors
        bias = _bias(graph, region, made)
        if isinstance(bias, str):
            return bias
        params = dataclasses.replace(made.params, epilogue=rescale_chain(factors, bias))
        beside = (*factors, *([bias] if bias else []))
        return IntegerConv(params, (*made.operands, *(f.name for f in beside)), made.weights)


def _sums(op: Any, x: Any, w: Any) -> Any:
    return op.Cast(op.ConvInteger(x, w, ..., label="conv"))


def _sums_rewrite(m: Match) -> Rewrite | str:
    conv = m.labels["conv"]
    x, w, zero, zeros = (*conv.operands, "", "")[:4]
    made = integer_conv(m.graph, conv, x, w, zero, zeros)
    if isinstance(made, str):
        return made
    image = f"{m.root.results[0]}_image"
    p = between_transposes("conv-integer", m.graph, x, made, m.root, m.covered, image)
    new = (*p.shared, *p.new)
    return Rewrite(new, specs=p.specs, weights=p.weights, step=True)


CONV_INTEGER = Rule("conv-integer", (_sums,), _sums_rewrite, check_cast_to_float32)


def _of_padded(op: Any, x: Any) -> Any:
    pad = op.Pad(x, ..., label="pad")
    integers = op.QuantizeLinear(pad, ..., label="quantize")
    return op.Conv(op.DequantizeLinear(integers, ..., label="dequantize"), ...)


def _padded_check(m: Match) -> str | None:
    zeros = zero_padding(m.graph, m.labels["pad"])
    if isinstance(zeros, str):
        return zeros
    scales = [m.graph.weight(m.labels[name].operands[1]) for name in ("quantize", "dequantize")]
    if any(s is None or s.count != 1 or not ordinary(s) for s in scales):
        return "a scale after the Pad is not a single constant in the normal range"
    padded = padded_attributes(m.root, zeros)
    return "its padding depends on the size of its input" if padded is None else None


def _padded_rewrite(m: Match) -> Rewrite:
    zeros = zero_padding(m.graph, m.labels["pad"])
    assert not isinstance(zeros, str)
    x, new, specs = m.values["x"], list[Region](), dict[str, TensorSpec]()
    for name in ("quantize", "dequantize"):
        old = m.labels[name]
        result = f"{old.results[0]}_unpadded"
        node = dataclasses.replace(
            old.node, inputs=(x, *old.operands[1:]), outputs=(result,), source=None
        )
        new.append(Region(f"{old.id}.{result}", node.op, node.inputs, node.outputs, (node,)))
        specs[result] = TensorSpec(m.graph.spec(old.results[0]).dtype, m.spec("x").shape)
        x = result
    attrs = padded_attributes(m.root, zeros)
    assert attrs is not None
    inputs = (x, *m.root.operands[1:])
    node = dataclasses.replace(m.root.node, inputs=inputs, attrs=attrs, source=None)
    new.append(dataclasses.replace(m.root, operands=inputs, nodes=(node,)))
    return Rewrite(tuple(new), specs=specs, step=True)


QUANTIZED_PAD = Rule("quantized-pad", (_of_padded,), _padded_rewrite, _padded_check)


def integer_conv(
    graph: TileGraph, region: Region, x: str, w: str, zero: str, zeros: str
) -> IntegerConv | str:
    """Return the convolution of ``x − zero`` with filters ``W − zeros``, or why there is none.

    Strides, padding and groups are attributes of ``region``.  An empty ``zero`` or ``zeros``
    stands for 0.
    """
    spec, weight = graph.spec(x), graph.weight(w)
    if weight is None:
        return not_constant_reason(w)
    if spec.dtype not in BYTES or weight.dtype not in BYTES:
        return Reason("the operands are not 8-bit integers", Code.UNSUPPORTED_DTYPE)
    shape, groups = spec.shape, int(str(attribute(region, "group", 1)))
    if shape is None or len(shape) != len(weight.shape) or len(shape) not in (3, 4):
        return Reason("the operands do not have one or two spatial axes", Code.UNKNOWN_SHAPE)
    if 0 in weight.shape or shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        return "the number of input channels is not known, or does not fit the filters"
    window = read_window(region, weight.shape[2:], shape[2:])
    if isinstance(window, str):
        return window
    if (taps := prod(weight.shape[1:])) > MAX_DEPTH:
        return f"sums of {taps} products may not fit 32 bits"
    own = column_zeros(graph, weight, zeros, weight.shape[0])
    left = left_zero(graph, x, zero)
    for found in (own, left):
        if isinstance(found, str):
            return found
    assert not isinstance(own, str) and not isinstance(left, str)
    return conv_of_integers(
        weight, window, groups, IntegerOperand(spec.dtype, left), (zero, zeros), own
    )


def conv_of_integers(
    weight: Weight, window: ConvWindow, groups: int, integers: IntegerOperand,
    named: tuple[str, str], own: Array | None,
) -> IntegerConv:  # fmt: skip
    """Return the convolution of ``x − zero`` with a constant's filters.

    ``named`` are the zero points of x and of the filters, ``own`` those of the filters by value.
    """
    filters, depth = weight.shape[:2]
    signed = signed_matrix(weight)
    last = Weight(
        f"{signed.name}_last", DType.I8, (filters, prod(weight.shape[1:])),
        lambda: _channels_last(signed.load()),
    )  # fmt: skip
    weights, operands, added = {last.name: last}, [last.name], own is not None and own.any()
    if integers.zero is None:
        operands.append(named[0])
    if own is not None and added:
        name = f"{signed.name}_zeros_{named[1] or 128}"
        weights[name] = Weight(name, DType.I8, (filters,), weight_of_array(own))
        operands.append(name)
        integers = dataclasses.replace(integers, own_zeros=True)
    params = ConvIntegerParams(depth * groups, filters, window, integers, groups)
    return IntegerConv(params, tuple(operands), weights)


def _channels_last(filters: Array) -> Array:
    """Return filters ``[O, I, kernel…]`` as ``[O, taps · I]``."""
    return np.ascontiguousarray(np.moveaxis(filters, 1, -1)).reshape(len(filters), -1)


def _bias(graph: TileGraph, region: Region, made: IntegerConv) -> RescaleFactor | str | None:
    name = region.operands[2] if len(region.operands) > 2 else ""
    if not name:
        return None
    spec = graph.spec(name)
    if spec.dtype is not DType.F32 or spec.shape != (made.params.filters,):
        return "its bias is not one float32 number for each filter"
    return dequantized_row(graph, name, made.weights) or RescaleFactor(name, ROW)


def between_transposes(
    rule: str, graph: TileGraph, x: str, made: IntegerConv, root: Region,
    covered: Sequence[Region], image: str = "", integers: TensorSpec | None = None,
) -> Proposal:  # fmt: skip
    """Propose a convolution with channels last, a Transpose before it and one after it.

    ``image`` is the name for the transposed x; by default, it is one that all readers of x share.
    ``integers`` is the spec of x, if the graph does not have it yet.
    """
    result = root.results[0]
    rank = made.params.window.rank
    first, last = (0, rank + 1, *range(1, rank + 1)), (0, *range(2, rank + 2), 1)
    image, output = image or f"{x}_channels_last", f"{result}_channels_last"
    specs = {}
    for value, name in ((x, image), (result, output)):
        spec = (integers if value == x else None) or graph.spec(value)
        shape = spec.shape or ()
        specs[name] = TensorSpec(spec.dtype, tuple(shape[a] for a in last))
    conv = fused_region(rule, made.params, (image, *made.operands), (output,), covered)
    back = _transpose(root, output, result, first)
    return Proposal(
        rule, tuple(covered), (conv, back), specs, made.weights, step=True,
        shared=(_transpose(root, x, image, last),),
    )  # fmt: skip


def _transpose(root: Region, value: str, result: str, perm: tuple[int, ...]) -> Region:
    node = Node("Transpose", (value,), (result,), {"perm": perm}, "", root.node.label)
    return Region(f"{value}:{result}", "Transpose", node.inputs, node.outputs, (node,))
