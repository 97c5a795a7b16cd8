"""Write convolutions as ONNX operators on 8-bit integers, on request.

Conv(x, W)    ->    Conv(DequantizeLinear(QuantizeLinear(x)), DequantizeLinear(W))  x has a scale
Conv(x, W)    ->    ConvInteger(DynamicQuantizeLinear(x), W), rescaled              it has none
x + y         ->    DequantizeLinear(QuantizeLinear(x)) + y                         x is rounded

Every filter has a scale computed from its values.  Before opset 13, DequantizeLinear cannot have
that: the results of the convolution are multiplied by the scales instead.  The scale of x was
chosen by calibration, or is computed from the range of x whenever the model runs.  If a
convolution reads a value as 8-bit integers, sums read these integers too, and the value need not
be stored in float32.  The rules for quantized models then convert the operators.  Before the
opsets that have these operators, custom ops are written at once: their bodies need none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tracea_graph.ir import Array, Attr, DType, Node, TensorSpec, Weight
from tracea_graph.ops.chain import FULL, ROW, SCALAR, Chain, Step
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.dynamic_quantize import DynamicQuantizeParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.int8_matmul import MAX_DEPTH, IntegerOperand, round_columns
from tracea_graph.passes.convolution.conv import padded_attributes, zero_padding
from tracea_graph.passes.convolution.window_attributes import read_window
from tracea_graph.passes.decompose.onnx_builder import OnnxBuilder
from tracea_graph.passes.quantized.calibrated_rounding import UNCALIBRATED, CalibratedRounding
from tracea_graph.passes.quantized.conv import IntegerConv, between_transposes, conv_of_integers
from tracea_graph.passes.quantized.rescale import RescaleFactor, rescale_chain
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    is_f32,
    operand_producer,
)
from tracea_graph.reason_codes import not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Match, Miss, Proposal, Rewrite, Rule
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.region import region_of

__all__ = [
    "CONV_INT8",
    "READ_ROUNDED",
    "ConvInt8",
    "RoundedValue",
    "constant_conv_window",
    "unpadded",
    "why_no_integers",
]

CONV_INT8 = "conv-int8"
"""The rule's name."""
CONV_INT8_ERROR = 2.0**-8 / 6
"""Error of the outputs that a plan predicts for one convolution, relative to max|y|."""
_AXIS_SINCE = 13
"""First opset whose DequantizeLinear can have a scale for each filter."""
_INTEGERS_SINCE, _DYNAMIC_SINCE = 10, 11
"""First opsets that have QuantizeLinear and DequantizeLinear, and DynamicQuantizeLinear too."""
_SELECTS_SINCE = 9
"""First opset with Where, which function bodies need that round with a fixed scale."""
_RANKS = (3, 4)
_FEWEST, _MOST = 1e-16, 1e16
"""Bounds for the largest magnitude in a filter; between them its scale is an ordinary number."""


def why_no_integers(graph: TileGraph, region: Region) -> str | None:
    """Return why a float32 convolution cannot be computed in integers; None if it can."""
    x, w = unpadded(graph, region)[0], region.operands[1]
    bias = region.operands[2] if len(region.operands) > 2 else ""
    weight, spec = graph.weight(w), graph.spec(x)
    if weight is None:
        return not_constant_reason(w)
    if bias and graph.weight(bias) is None:
        return not_constant_reason(bias)
    if not is_f32(graph, *filter(None, (x, w, bias))) or graph.weight(x) is not None:
        return unsuited_reason("its operands are not a float32 value and float32 filters")
    shape, groups = spec.shape, int(str(attribute(region, "group", 1)))
    if shape is None or len(shape) not in _RANKS or len(shape) != len(weight.shape):
        return unsuited_reason("its input is not known to have one or two spatial axes")
    if 0 in weight.shape or shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        return "the number of input channels is not known, or does not fit the filters"
    if prod(weight.shape[1:]) > MAX_DEPTH:
        return "its sums may not fit 32 bits"
    if isinstance(window := constant_conv_window(graph, region), str):
        return window
    high = np.abs(np.asarray(weight.array(), np.float32)).reshape(len(weight.array()), -1).max(1)
    fits = (high == 0) | ((high > _FEWEST) & (high < _MOST))  # NaN is neither
    return None if fits.all() else "a filter has non-finite, very small or very large numbers"


def unpadded(graph: TileGraph, region: Region) -> tuple[str, Mapping[str, Attr]]:
    """Return the input and attributes of a convolution that includes the Pad before it, if any.

    Only a Pad with zeros is included; otherwise, the convolution's own input and attributes are
    returned.
    """
    x, attrs = region.operands[0], region.node.attrs
    pad = operand_producer(graph, x, "Pad")
    zeros = zero_padding(graph, pad) if pad is not None else ""
    if pad is None or isinstance(zeros, str):
        return x, attrs
    padded = padded_attributes(region, zeros)
    return (x, attrs) if padded is None else (pad.operands[0], padded)


def constant_conv_window(graph: TileGraph, region: Region) -> ConvWindow | str:
    """Return a convolution's window over the input that :func:`unpadded` returns, or why there
    is none.  The filters must be constant."""
    x, attrs = unpadded(graph, region)
    node = replace(region.node, attrs=attrs)
    kernel = graph.weights[region.operands[1]].shape[2:]
    return read_window(replace(region, nodes=(node,)), kernel, (graph.spec(x).shape or ())[2:])


@dataclass(frozen=True)
class ConvInt8:
    """Write convolutions with constant filters in integers, with the scales in ``calibrated``."""

    calibrated: Mapping[str, CalibratedRounding] = field(default_factory=lambda: UNCALIBRATED)
    custom_ops: bool = True
    """Whether custom ops may replace operators that the opset lacks."""
    name: str = CONV_INT8

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Conv" or region.fused or region.rule == self.name:
            return
        if (why := why_no_integers(graph, region)) is not None:
            yield Miss(self.name, region.id, why)
            return
        s, (x, attrs) = OnnxBuilder(graph, region, "_int8"), unpadded(graph, region)
        chosen, own = (
            self.calibrated.get(v, CalibratedRounding(0.0)) for v in (x, region.results[0])
        )
        if graph.opset < _SELECTS_SINCE:
            chosen = own = CalibratedRounding(0.0)
        since = _INTEGERS_SINCE if chosen.scale and not self.custom_ops else _DYNAMIC_SINCE
        if graph.opset < since:
            if not self.custom_ops:
                yield Miss(
                    self.name, region.id,
                    f"without custom ops, it needs operators that come with opset {since}",
                )  # fmt: skip
                return
            rounding = RoundedValue(x, graph.spec(x), region.node.label)
            yield _in_custom_ops(s, rounding, chosen, own)
            return
        rounding = RoundedValue(x, graph.spec(x), region.node.label)
        shared = rounding.fixed(chosen) if chosen.scale else rounding.dynamic()
        (_fixed if chosen.scale else _dynamic)(s, rounding, own, attrs)
        *before, last = (replace(r, rule=self.name) for r in s.regions())
        yield Proposal(
            self.name, (region,), (last, *before), s.specs | rounding.specs,
            s.weights | rounding.weights, CONV_INT8_ERROR, step=True, shared=shared,
        )  # fmt: skip


def _sum(op: Any, x: Any, y: Any) -> Any:
    return op.Add(x, y)


def _sum_check(m: Match) -> str | None:
    rounds = any(_rounded(m.graph, v) != v for v in m.root.operands)
    return (
        None
        if rounds
        else unsuited_reason("no convolution reads one of its operands in rounded form")
    )


def _read_rounded(m: Match) -> Rewrite:
    operands = tuple(_rounded(m.graph, v) for v in m.root.operands)
    node = replace(m.root.node, inputs=operands, source=None)
    return Rewrite((replace(m.root, operands=operands, nodes=(node,)),), step=True)


READ_ROUNDED = Rule("read-rounded", (_sum,), _read_rounded, _sum_check)
"""Let a sum read the rounded form of an operand that convolutions read rounded."""


def _rounded(graph: TileGraph, value: str) -> str:
    """Return the rounded form of a value; the value itself if nothing rounds it."""
    name = RoundedValue(value, graph.spec(value)).rounded
    source = graph.producer(name) if value else None
    return name if source is not None and source.rule == CONV_INT8 else value


@dataclass
class RoundedValue:
    """The operators that round a value to 8-bit integers; all readers of the value share them.

    They are called ``label``, as the first of these readers is.
    """

    value: str
    spec: TensorSpec
    label: str = ""
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    @property
    def numbers(self) -> str:
        return f"{self.value}_bytes"

    @property
    def rounded(self) -> str:
        return f"{self.value}_rounded"

    @property
    def scale(self) -> str:
        return f"{self.value}_bytes_scale"

    @property
    def zero(self) -> str:
        return f"{self.value}_bytes_zero"

    def fixed(self, chosen: CalibratedRounding) -> tuple[Region, ...]:
        """Return the regions that round the value with a fixed scale and dequantize it."""
        scale, zero = np.asarray(chosen.scale, np.float32), np.asarray(chosen.zero, np.uint8)
        self.weights[self.scale] = Weight(self.scale, DType.F32, (), lambda: scale)
        self.weights[self.zero] = Weight(self.zero, DType.U8, (), lambda: zero)
        self.specs[self.numbers] = TensorSpec(DType.U8, self.spec.shape)
        self.specs[self.rounded] = TensorSpec(DType.F32, self.spec.shape)
        beside = (self.scale, self.zero)
        return (
            self._region("QuantizeLinear", (self.value, *beside), (self.numbers,)),
            self._region("DequantizeLinear", (self.numbers, *beside), (self.rounded,)),
        )

    def dynamic(self) -> tuple[Region, ...]:
        """Return the regions that round with a scale computed from the value's range."""
        results = (self.numbers, self.scale, self.zero)
        types = (DType.U8, DType.F32, DType.U8)
        shapes = (self.spec.shape, (), ())
        self.specs |= {v: TensorSpec(t, s) for v, t, s in zip(results, types, shapes, strict=True)}
        return (self._region("DynamicQuantizeLinear", (self.value,), results),)

    def in_custom_ops(self, chosen: CalibratedRounding) -> Region:
        """Return the custom op that rounds the value, with the scale that was chosen, if any."""
        covered = self.dynamic()
        if not chosen.scale:
            params, results = DynamicQuantizeParams(), covered[0].results
            return fused_region(CONV_INT8, params, (self.value,), results, covered)
        self.specs = {self.numbers: self.specs[self.numbers]}
        steps = (
            Step("div", (0, float(chosen.scale))), Step("round", (1,)),
            Step("add", (2, float(chosen.zero))), Step("saturate", (3, 0.0, 255.0)),
        )  # fmt: skip
        rounds = ElementwiseParams(Chain((FULL,), steps, (4,), (), (DType.U8,)))
        return fused_region(CONV_INT8, rounds, (self.value,), (self.numbers,), covered)

    def _region(self, op: str, operands: tuple[str, ...], results: tuple[str, ...]) -> Region:
        made = region_of(Node(op, operands, results, name=self.label), 0)
        return replace(made, id=f"{CONV_INT8}:{results[0]}", rule=CONV_INT8)


def _filters(s: OnnxBuilder) -> tuple[str, str]:
    """Add the filters in int8 and a scale for each filter as constants; return their names."""
    weight = s.graph.weights[s.region.operands[1]]
    count = weight.shape[0]

    def fitted() -> tuple[Array, Array]:
        rows = np.asarray(weight.load(), np.float32).reshape(count, -1)
        whole, scales = round_columns(rows.T)
        return whole.T.reshape(weight.shape), np.where(scales > 0, scales, 1).astype(np.float32)

    return (
        s.entered(DType.I8, weight.shape, lambda: np.ascontiguousarray(fitted()[0])),
        s.entered(DType.F32, (count,), lambda: fitted()[1]),
    )


def _bias(s: OnnxBuilder, own: CalibratedRounding) -> Weight | None:
    """Return the sum of the bias and of the correction of rounding; None if there is neither."""
    name = s.operands[2]
    given, lost = s.graph.weight(name) if name else None, own.correction
    if given is None and lost is None:
        return None
    count = s.graph.weights[s.region.operands[1]].shape[0]

    def load() -> Array:
        total = np.zeros(count, np.float32) if lost is None else np.asarray(lost, np.float32)
        return total if given is None else total + np.asarray(given.load(), np.float32)

    return Weight("", DType.F32, (count,), load)


def _fixed(
    s: OnnxBuilder, x: RoundedValue, own: CalibratedRounding, attrs: Mapping[str, Any]
) -> None:
    matrix, scales = _filters(s)
    spec, weight = s.graph.spec(s.region.results[0]), s.weights[matrix]
    wide, bias = TensorSpec(DType.F32, weight.shape), _bias(s, own)
    if s.graph.opset < _AXIS_SINCE:
        factors = _by_channel(s, s.weights.pop(scales))
        one = s.entered(DType.F32, (), lambda: np.ones((), np.float32))
        w = s("DequantizeLinear", matrix, one, spec=wide)
        y = s("Conv", x.rounded, w, spec=spec, **attrs)
        _finished(s, s("Mul", y, factors, spec=spec), bias)
        return
    w = s("DequantizeLinear", matrix, scales, spec=wide, axis=0)
    added = () if bias is None else (s.entered(DType.F32, bias.shape, bias.load),)
    s("Conv", x.rounded, w, *added, spec=spec, **attrs)


def _by_channel(s: OnnxBuilder, weight: Weight) -> str:
    """Add one number for each filter as a constant that multiplies or adds to images."""
    rank = len(s.graph.weights[s.region.operands[1]].shape)
    return s.derived(weight, (1, *weight.shape, *(1,) * (rank - 2)))


def _finished(s: OnnxBuilder, y: str, bias: Weight | None) -> None:
    if bias is not None:
        s("Add", y, _by_channel(s, bias), spec=s.graph.spec(s.region.results[0]))


def _dynamic(
    s: OnnxBuilder, x: RoundedValue, own: CalibratedRounding, attrs: Mapping[str, Any]
) -> None:
    matrix, scales = _filters(s)
    spec = s.graph.spec(s.region.results[0])
    sums = s(
        "ConvInteger", x.numbers, matrix, x.zero, spec=TensorSpec(DType.I32, spec.shape),
        **attrs,
    )  # fmt: skip
    y = s("Cast", sums, spec=spec, to=DType.F32.onnx)
    y = s("Mul", y, x.scale, spec=spec)
    y = s("Mul", y, _by_channel(s, s.weights.pop(scales)), spec=spec)
    _finished(s, y, _bias(s, own))


def _in_custom_ops(
    s: OnnxBuilder, x: RoundedValue, chosen: CalibratedRounding, own: CalibratedRounding
) -> Proposal:
    """Propose a convolution of integers for an opset that lacks the operators for one."""
    graph, region, rounding = s.graph, s.region, x.in_custom_ops(chosen)
    window, groups = constant_conv_window(graph, region), attribute(region, "group", 1)
    assert not isinstance(window, str)
    matrix, scales = _filters(s)
    integers = IntegerOperand(DType.U8, int(chosen.zero) if chosen.scale else None)
    conv = conv_of_integers(
        s.weights[matrix], window, int(str(groups)), integers, (x.zero, ""), None
    )
    factors = [RescaleFactor(scales, ROW)]
    if chosen.scale:
        load, scale = s.weights[scales].load, np.float32(chosen.scale)
        shape = s.weights[scales].shape
        name = s.entered(DType.F32, shape, lambda: np.asarray(load(), np.float32) * scale)
        factors = [RescaleFactor(name, ROW)]
    else:
        factors.insert(0, RescaleFactor(x.scale, SCALAR))
    bias, added = _bias(s, own), None
    if bias is not None:
        added = RescaleFactor(s.entered(DType.F32, bias.shape, bias.load), ROW)
    params = replace(conv.params, epilogue=rescale_chain(factors, added))
    operands = (*conv.operands, *(f.name for f in (*factors, added) if f is not None))
    weights = {name: w for name, w in {**conv.weights, **s.weights}.items() if name in operands}
    spec = TensorSpec(DType.U8, x.spec.shape)
    found = between_transposes(
        CONV_INT8, graph, x.numbers, IntegerConv(params, operands, weights), region, (region,),
        integers=spec,
    )  # fmt: skip
    return replace(
        found, specs={**found.specs, **x.specs}, error=CONV_INT8_ERROR,
        shared=(*found.shared, rounding),
    )  # fmt: skip
