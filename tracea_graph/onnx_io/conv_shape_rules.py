"""Shape rules for convolutions, pools, resizing and padding.

Along each spatial axis, with window ``w = dilation · (kernel − 1) + 1`` (ONNX operator
specification):

    Conv, pools        ⌊(size + pads − w) / stride⌋ + 1        ceil_mode rounds up instead
    ConvTranspose      stride · (size − 1) + output_padding + w − pads
    auto_pad SAME      ⌈size / stride⌉                         transposed: size · stride
    Resize             ⌊size · scale⌋
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from onnx import NodeProto

from tracea_graph.ir import Extent
from tracea_graph.onnx_io import symbolic_arithmetic as sym
from tracea_graph.onnx_io.value_facts import Partial, Shape, ValueFacts, attribute, elements

__all__ = ["WINDOWS", "conv_sizes", "pool_sizes"]

_FINEST = 64
"""Largest denominator of a fractional scale that any runtime computes exactly."""


@dataclass(frozen=True)
class _Window:
    """One spatial axis of a sliding window; ``span`` is the dilated kernel."""

    span: Extent
    stride: int
    before: int
    after: int


def _windows(node: NodeProto, kernel: Sequence[Extent]) -> list[_Window]:
    """The window along each spatial axis; without padding if ``auto_pad`` decides it."""
    rank = len(kernel)
    strides = attribute(node, "strides") or [1] * rank
    dilations = attribute(node, "dilations") or [1] * rank
    pads = attribute(node, "pads") or [0] * (2 * rank)
    if _auto(node) != "NOTSET":
        pads = [0] * (2 * rank)
    spans = [sym.add(sym.mul(d, sym.sub(k, 1)), 1) for k, d in zip(kernel, dilations, strict=True)]
    ends = zip(spans, strides, pads[:rank], pads[rank:], strict=True)
    return [_Window(*end) for end in ends]


def _auto(node: NodeProto) -> str:
    return str(attribute(node, "auto_pad", b"NOTSET").decode() or "NOTSET")


def _kernel(node: NodeProto, weight: Shape | None) -> Sequence[Extent] | None:
    given = attribute(node, "kernel_shape")
    return given if given or weight is None else weight[2:]


def _positions(size: Extent, window: _Window, same: bool, up: bool) -> Extent | None:
    """Number of window positions along one axis."""
    if same:
        return sym.ceil_div(size, window.stride)
    room = sym.sub(sym.add(size, window.before + window.after), window.span)
    if not up:
        return sym.add(sym.div(room, window.stride), 1)
    # A window that starts in the trailing padding is dropped, which only numbers can decide.
    safe = sym.is_at_least(sym.sub(window.span, window.after + window.stride), 0)
    return sym.add(sym.ceil_div(room, window.stride), 1) if safe else None


def _conv(node: NodeProto, facts: ValueFacts) -> Partial:
    return conv_sizes(node, facts.shape(node.input[0]), facts.shape(node.input[1]))


def conv_sizes(node: NodeProto, data: Shape | None, weight: Shape | None) -> Partial:
    """Return the sizes ``[N, M, …]`` of a convolution of ``data`` ``[N, C, …]``."""
    kernel = _kernel(node, weight)
    if data is None or kernel is None:
        return None
    same = _auto(node).startswith("SAME")
    axes = zip(data[2:], _windows(node, kernel), strict=True)
    return [
        data[0],
        weight[0] if weight else None,
        *(_positions(d, w, same, False) for d, w in axes),
    ]


def _conv_transpose(node: NodeProto, facts: ValueFacts) -> Partial:
    data, weight = facts.shape(node.input[0]), facts.shape(node.input[1])
    kernel = _kernel(node, weight)
    if data is None or kernel is None:
        return None
    channels = sym.mul(weight[1], attribute(node, "group", 1)) if weight else None
    extra = attribute(node, "output_padding") or [0] * len(kernel)
    given, auto = attribute(node, "output_shape"), _auto(node)
    if given:
        return [data[0], channels, *given[-len(kernel) :]]
    sizes: list[Extent | None] = []
    for size, window, more in zip(data[2:], _windows(node, kernel), extra, strict=True):
        if auto.startswith("SAME"):
            sizes.append(sym.mul(size, window.stride))
            continue
        steps = sym.mul(sym.sub(size, 1), window.stride)
        sizes.append(sym.add(steps, sym.add(window.span, more - window.before - window.after)))
    return [data[0], channels, *sizes]


def _pool(node: NodeProto, facts: ValueFacts) -> Partial:
    return pool_sizes(node, facts.shape(node.input[0]))


def pool_sizes(node: NodeProto, data: Shape | None) -> Partial:
    """Return the sizes ``[N, C, …]`` of a pooling operator on ``data`` ``[N, C, …]``."""
    kernel = attribute(node, "kernel_shape")
    if data is None or not kernel:
        return None
    up, auto = bool(attribute(node, "ceil_mode", 0)), _auto(node)
    if up and auto != "NOTSET":
        return [*data[:2], *(None for _ in kernel)]
    axes = zip(data[2:], _windows(node, kernel), strict=True)
    return [*data[:2], *(_positions(d, w, auto.startswith("SAME"), up) for d, w in axes)]


def _unpool(node: NodeProto, facts: ValueFacts) -> Partial:
    if len(node.input) > 2 and node.input[2]:
        return _by_operand(node, facts, 2)
    data, kernel = facts.shape(node.input[0]), attribute(node, "kernel_shape")
    if data is None or not kernel:
        return None
    return [
        *data[:2],
        *(
            sym.add(sym.mul(sym.sub(d, 1), w.stride), sym.sub(w.span, w.before + w.after))
            for d, w in zip(data[2:], _windows(node, kernel), strict=True)
        ),
    ]


def _by_operand(node: NodeProto, facts: ValueFacts, operand: int) -> Partial:
    told = facts.value(node.input[operand])
    return None if told is None else elements(told)


def _pad(node: NodeProto, facts: ValueFacts) -> Partial:
    data, given = facts.shape(node.input[0]), attribute(node, "pads")
    told = facts.value(node.input[1]) if len(node.input) > 1 else None
    pads = given if given else None if told is None else elements(told)
    axes: Sequence[int] | None = range(len(data or ()))
    if len(node.input) > 3 and node.input[3]:
        axes = facts.numbers(node.input[3])
    if data is None or pads is None or axes is None or len(pads) != 2 * len(axes):
        return None
    out: list[Extent | None] = list(data)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        known = before is not None and after is not None
        out[axis] = sym.add(data[axis], sym.add(before, after)) if known else None
    return out


def _resize(node: NodeProto, facts: ValueFacts) -> Partial:
    data = facts.shape(node.input[0])
    mode = attribute(node, "coordinate_transformation_mode", b"half_pixel")
    policy = attribute(node, "keep_aspect_ratio_policy", b"stretch")
    if data is None or mode == b"tf_crop_and_resize" or policy != b"stretch":
        return None
    axes = [a % len(data) for a in attribute(node, "axes") or range(len(data))]
    out: list[Extent | None] = list(data)
    told = facts.value(node.input[3]) if len(node.input) > 3 and node.input[3] else None
    sizes = elements(told) if told is not None else _scaled(node, facts, [data[a] for a in axes])
    if sizes is None or len(sizes) != len(axes):
        return None
    for axis, size in zip(axes, sizes, strict=True):
        out[axis] = size
    return out


def _scaled(
    node: NodeProto, facts: ValueFacts, data: Sequence[Extent]
) -> Sequence[Extent | None] | None:
    """``⌊size · scale⌋`` for constant scales."""
    scales = attribute(node, "scales")
    if scales is None:
        at = 1 if node.op_type == "Upsample" or len(node.input) < 3 else 2
        scales = facts.reals(node.input[at])
    if scales is None or len(scales) != len(data):
        return None
    return [_times(size, Fraction(scale)) for size, scale in zip(data, scales, strict=True)]


def _times(size: Extent, scale: Fraction) -> Extent | None:
    if scale.denominator > _FINEST or scale <= 0:
        return None
    return sym.div(sym.mul(size, scale.numerator), scale.denominator)


def _depth_to_space(node: NodeProto, facts: ValueFacts) -> Partial:
    data, block = facts.shape(node.input[0]), attribute(node, "blocksize")
    if data is None or not block:
        return None
    n, c, h, w = data
    return [n, sym.div(c, block * block), sym.mul(h, block), sym.mul(w, block)]


def _space_to_depth(node: NodeProto, facts: ValueFacts) -> Partial:
    data, block = facts.shape(node.input[0]), attribute(node, "blocksize")
    if data is None or not block:
        return None
    n, c, h, w = data
    return [n, sym.mul(c, block * block), sym.div(h, block), sym.div(w, block)]


def _stft(node: NodeProto, facts: ValueFacts) -> Partial:
    """``[batch, frames, bins, 2]`` of a real or complex signal ``[batch, length, 1 or 2]``."""
    signal, step = facts.shape(node.input[0]), facts.numbers(node.input[1])
    window = facts.shape(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    told = facts.numbers(node.input[3]) if len(node.input) > 3 and node.input[3] else None
    length: Extent | None = told[0] if told else window[0] if window else None
    if signal is None or not step or length is None:
        return None
    frames = sym.add(sym.div(sym.sub(signal[1], length), step[0]), 1)
    bins = sym.add(sym.div(length, 2), 1) if attribute(node, "onesided", 1) else length
    return [signal[0], frames, bins, 2]


WINDOWS: Mapping[str, Callable[[NodeProto, ValueFacts], Partial]] = MappingProxyType(
    {
        "AveragePool": _pool,
        "Conv": _conv,
        "ConvInteger": _conv,
        "ConvTranspose": _conv_transpose,
        "DepthToSpace": _depth_to_space,
        "LpPool": _pool,
        "MaxPool": _pool,
        "MaxUnpool": _unpool,
        "Pad": _pad,
        "QLinearConv": lambda node, facts: _conv(_plain(node), facts),
        "Resize": _resize,
        "STFT": _stft,
        "SpaceToDepth": _space_to_depth,
        "Upsample": _resize,
    }
)


def _plain(node: NodeProto) -> NodeProto:
    """A quantized convolution with its operands in the order of Conv."""
    plain = NodeProto()
    plain.CopyFrom(node)
    plain.input[:] = [node.input[0], node.input[3]]
    return plain
