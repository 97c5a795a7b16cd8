"""Rewrite one operator over volumes as operators over images, for ``conv3d-to-conv2d``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from tracea_graph.ir import Array, Attr, DType, Extent, Node, TensorSpec, Weight
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.elementwise_steps import UNARY
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.passes.convolution.window_attributes import live_taps, read_window
from tracea_graph.passes.region_helpers import attribute, fused_region, int_constant
from tracea_graph.ttg import Region, TileGraph

__all__ = ["DepthUnfolder", "unfold_region"]

_ALIKE = (*UNARY, "Clip", "BatchNormalization", "Identity")
"""Operators that treat images and volumes alike."""
_JOINING = ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")


@dataclass
class DepthUnfolder:
    """Converts 3-D operators to 2-D ones, one after another, and collects the new regions.

    A volume ``v [1, C, D, H, W]`` becomes D images, the value ``v_images [D, C, H, W]``.
    """

    graph: TileGraph
    regions: list[Region] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    def images(self, value: str) -> str:
        """Return the name of a volume's images."""
        name = f"{value}_images"
        _, c, d, h, w = self.graph.spec(value).shape or ()
        self.specs[name] = TensorSpec(DType.F32, (d, c, h, w))
        return name

    def add(self, op: str, inputs: Sequence[str], result: str, **attrs: Attr) -> str:
        node = Node(op, tuple(inputs), (result,), attrs, "", result)
        self.regions.append(
            Region(f"unfold-depth:{result}", op, node.inputs, node.outputs, (node,))
        )
        return result

    def value(self, name: str, shape: Sequence[Extent]) -> str:
        self.specs[name] = TensorSpec(DType.F32, tuple(shape))
        return name

    def ints(self, *numbers: int) -> str:
        weight = int_constant(numbers)
        self.weights[weight.name] = weight
        return weight.name

    def constant(self, name: str, shape: Sequence[int], load: Callable[[], Array]) -> str:
        self.weights[name] = Weight(name, DType.F32, tuple(shape), load)
        return name

    def take(self, other: DepthUnfolder) -> None:
        self.regions += other.regions
        self.specs |= other.specs
        self.weights |= other.weights

    def enter(self, value: str) -> None:
        """Convert a volume to images."""
        shape = self.graph.spec(value).shape or ()
        flat = self.value(f"{value}_item", shape[1:])
        self.add("Reshape", (value, self.ints(*map(int, map(str, shape[1:])))), flat)
        self.add("Transpose", (flat,), self.images(value), perm=(1, 0, 2, 3))

    def leave(self, value: str) -> None:
        """Convert the images of a volume back to the volume, for readers outside."""
        shape = self.graph.spec(value).shape or ()
        source = self.images(value)
        if shape[2] != 1:
            flat = self.value(f"{value}_left", shape[1:])
            source = self.add("Transpose", (source,), flat, perm=(1, 0, 2, 3))
        self.add("Reshape", (source, self.ints(*map(int, map(str, shape)))), value)


def unfold_region(graph: TileGraph, region: Region) -> DepthUnfolder | None:
    """Return the regions that compute an operator over images; None if it is not supported."""
    turn = _TURNS.get(region.op)
    if turn is None or region.captures or len(region.writes) != 1 or not region.operands:
        return None
    sizes = [graph.spec(v).shape or () for v in (region.operands[0], region.results[0])]
    if any(len(s) != 5 or s[0] != 1 or not all(isinstance(d, int) for d in s) for s in sizes):
        return None
    if any(graph.spec(v).dtype is not DType.F32 for v in (region.operands[0], *region.results)):
        return None
    turned = DepthUnfolder(graph)
    return turned if turn(turned, region) else None


def _sizes(turned: DepthUnfolder, value: str) -> tuple[int, ...]:
    return tuple(int(str(d)) for d in turned.graph.spec(value).shape or ())


# ---- convolutions ------------------------------------------------------------------------


def _conv(t: DepthUnfolder, region: Region) -> bool:
    x, w, *rest = region.operands
    weight, spatial = t.graph.weight(w), _sizes(t, x)[2:]
    if weight is None or any(t.graph.weight(b) is None for b in rest if b):
        return False
    window = read_window(region, weight.shape[2:], spatial)
    if isinstance(window, str):
        return False
    deep, (taps,) = live_taps(_axis(window, 0), spatial[:1])
    group = int(str(attribute(region, "group", 1)))
    if group > 1 and deep.kernel != (1,):
        return False
    source = t.images(x)
    if deep.kernel != (1,) or deep.strides != (1,) or deep.padded:
        ints = (*deep.kernel, *deep.strides, *deep.dilations, *deep.pads)
        move = LayoutParams("frames", ints)
        count, wide, *space = move.infer([t.specs[source]])[0].shape or ()
        framed = t.value(f"{region.results[0]}_frames", (count, wide, *space))
        t.regions.append(fused_region("conv3d-to-conv2d", move, (source,), (framed,), [region]))
        source = framed

    def load() -> Array:
        taken = np.asarray(weight.load())[:, :, taps]
        return np.ascontiguousarray(taken.swapaxes(1, 2)).reshape(shape)

    shape = (weight.shape[0], deep.kernel[0] * weight.shape[1], *weight.shape[3:])
    filters = t.constant(f"{w}_images_{taps.start}_{taps.stop}", shape, load)
    flat = _flat(window)
    t.add(
        "Conv", (source, filters, *rest), t.images(region.results[0]), group=group,
        kernel_shape=flat.kernel, strides=flat.strides, dilations=flat.dilations, pads=flat.pads,
    )  # fmt: skip
    return True


def _axis(window: ConvWindow, axis: int) -> ConvWindow:
    pick = slice(axis, axis + 1)
    return ConvWindow(
        window.kernel[pick], window.strides[pick], window.dilations[pick], window.pairs[axis]
    )


def _flat(window: ConvWindow) -> ConvWindow:
    """Return the window without its first axis."""
    befores, afters = window.pads[1 : window.rank], window.pads[window.rank + 1 :]
    return ConvWindow(
        window.kernel[1:], window.strides[1:], window.dilations[1:], (*befores, *afters)
    )


_USUAL: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "auto_pad": ("NOTSET", b"NOTSET"), "output_shape": ((),), "group": (1,),
        "output_padding": ((), (0, 0, 0)),
    }
)  # fmt: skip
"""Attributes of convertible transposed convolutions."""


def _transposed(t: DepthUnfolder, region: Region) -> bool:
    """Convert if windows do not overlap in depth: the depth taps of filters become channels."""
    x, w, *rest = region.operands
    weight = t.graph.weight(w)
    bias = t.graph.weight(rest[0]) if rest and rest[0] else None
    if weight is None or (rest and rest[0] and bias is None):
        return False
    if any(attribute(region, name, usual[0]) not in usual for name, usual in _USUAL.items()):
        return False
    window = read_window(region, weight.shape[2:], _sizes(t, x)[2:])
    if isinstance(window, str) or window.kernel[0] != window.strides[0]:
        return False
    if window.dilations[0] != 1 or window.pairs[0] != (0, 0):
        return False
    i, o, deep, *kernel = weight.shape
    depth, _, *space = t.specs[t.images(region.results[0])].shape or ()

    def load() -> Array:
        turned = np.asarray(weight.load()).swapaxes(1, 2)
        return np.ascontiguousarray(turned).reshape(i, deep * o, *kernel)

    filters = t.constant(f"{w}_images", (i, deep * o, *kernel), load)
    names = [t.images(x), filters]
    if bias is not None:
        name = f"{bias.name}_images_{deep}"
        names.append(t.constant(name, (deep * o,), lambda: np.tile(bias.load(), deep)))
    flat, result = _flat(window), region.results[0]
    wide = t.value(f"{result}_taps", (_sizes(t, x)[2], deep * o, *space))
    t.add(
        "ConvTranspose", names, wide, kernel_shape=flat.kernel, strides=flat.strides,
        dilations=flat.dilations, pads=flat.pads,
    )  # fmt: skip
    shape = t.ints(*(int(str(d)) for d in (depth, o, *space)))
    t.add("Reshape", (wide, shape), t.images(result))
    return True


# ---- pools -------------------------------------------------------------------------------


def _max_pool(t: DepthUnfolder, region: Region) -> bool:
    """Pool each image, then take the maximum over the images that one window covers in depth."""
    x, result = region.operands[0], region.results[0]
    kernel = attribute(region, "kernel_shape", ())
    spatial = _sizes(t, x)[2:]
    if not isinstance(kernel, tuple) or len(kernel) != 3 or attribute(region, "ceil_mode", 0):
        return False
    window = read_window(region, [int(str(k)) for k in kernel], spatial)
    if isinstance(window, str) or window.pairs[0] != (0, 0):
        return False
    flat, deep = _flat(window), _axis(window, 0)
    alone = deep.kernel == deep.strides == (1,)
    space = (t.specs[t.images(result)].shape or ())[1:]
    pooled = t.images(result) if alone else t.value(f"{result}_pooled", (spatial[0], *space))
    t.add(
        "MaxPool", (t.images(x),), pooled, kernel_shape=flat.kernel, strides=flat.strides,
        dilations=flat.dilations, pads=flat.pads,
    )  # fmt: skip
    if alone:
        return True
    count, parts = _sizes(t, result)[2], []
    for tap in range(deep.kernel[0]):
        at = tap * deep.dilations[0]
        end = at + (count - 1) * deep.strides[0] + 1
        part = t.value(f"{result}_tap{tap}", (count, *space))
        bounds = (t.ints(at), t.ints(end), t.ints(0), t.ints(*deep.strides))
        parts.append(t.add("Slice", (pooled, *bounds), part))
    t.add("Max", parts, t.images(result))
    return True


def _mean(t: DepthUnfolder, region: Region) -> bool:
    """Average over every image, then over all images."""
    if region.op == "ReduceMean":
        axes = attribute(region, "axes", None)
        if len(region.operands) > 1 and (stored := t.graph.weight(region.operands[1])):
            axes = tuple(int(a) for a in stored.load().reshape(-1))
        kept = attribute(region, "keepdims", 1)
        if not isinstance(axes, tuple) or {int(a) % 5 for a in axes} != {2, 3, 4} or not kept:
            return False
    x, result = region.operands[0], region.results[0]
    _, channels, depth, *_ = _sizes(t, x)
    each = t.value(f"{result}_each", (depth, channels, 1, 1))
    t.add("GlobalAveragePool", (t.images(x),), each)
    if t.graph.opset < 18:
        t.add("ReduceMean", (each,), t.images(result), axes=(0,), keepdims=1)
    else:
        t.add("ReduceMean", (each, t.ints(0)), t.images(result), keepdims=1)
    return True


# ---- by element --------------------------------------------------------------------------


def _alike(t: DepthUnfolder, region: Region) -> bool:
    x, *rest = region.operands
    if any(v and t.graph.weight(v) is None for v in rest):
        return False
    attrs = dict(region.node.attrs)
    t.add(region.op, (t.images(x), *rest), t.images(region.results[0]), **attrs)
    return True


def _joined(t: DepthUnfolder, region: Region) -> bool:
    """Convert an op whose operands are volumes, scalars or one number per channel."""
    names = []
    for value in region.operands:
        shape, weight = t.graph.spec(value).shape or (), t.graph.weight(value)
        if weight is None:
            if len(shape) != 5 or shape[0] != 1 or t.graph.spec(value).dtype is not DType.F32:
                return False
            names.append(t.images(value))
        elif len(shape) <= 1 and weight.count == 1:
            names.append(value)
        elif len(shape) in (4, 5) and weight.count == shape[-4] and weight.count > 1:
            names.append(_by_channel(t, weight))
        else:
            return False
    t.add(region.op, names, t.images(region.results[0]), **dict(region.node.attrs))
    return True


def _by_channel(t: DepthUnfolder, weight: Weight) -> str:
    shape = (1, weight.count, 1, 1)
    return t.constant(f"{weight.name}_images", shape, lambda: weight.load().reshape(shape))


def _concat(t: DepthUnfolder, region: Region) -> bool:
    if int(str(attribute(region, "axis", 0))) % 5 != 1:
        return False
    if any(t.graph.weight(v) is not None for v in region.operands):
        return False
    names = [t.images(v) for v in region.operands]
    t.add("Concat", names, t.images(region.results[0]), axis=1)
    return True


_TURNS: Mapping[str, Callable[[DepthUnfolder, Region], bool]] = MappingProxyType(
    {
        "Conv": _conv, "ConvTranspose": _transposed, "MaxPool": _max_pool, "Concat": _concat,
        "GlobalAveragePool": _mean, "ReduceMean": _mean,
        **dict.fromkeys(_ALIKE, _alike), **dict.fromkeys(_JOINING, _joined),
    }
)  # fmt: skip
