"""Steps of a draft: convolutions, their norms, and pools."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.fuzz.draft import Draft, Unfit, Value, fixed, symbolic
from tests.fuzz.pointwise import activation

__all__ = ["WINDOWS"]

CHANNELS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24)


def _window(
    d: Draft, x: Value, dilate: bool = True, far: bool = False
) -> tuple[list[int], dict[str, Any], list[int | str]]:
    """Kernel, attributes and the spatial dims of a window over an image.

    With ``far`` it may be padded until it finds room beside an image without pixels.
    """
    kernel, strides, pads, spread, dims = [], [], [], [], list[int | str]()
    same = d.often(15)
    for dim in x.dims[2:]:
        size = d.choose([1, 3, 2, 5, 4, 7])
        step = d.choose([1, 1, 2, 3])
        gap = d.choose([1, 1, 2]) if dilate and not same else 1
        reach = (size - 1) * gap + 1
        low, high = (0, 0) if same else (d.number(0, size // 2), d.number(0, size // 2))
        if far and not same and d.often(50):
            low, high = reach - reach // 2, reach // 2
        if isinstance(dim, str):
            out: int | str = f"({dim}:{reach}:{step}:{low + high}:{same})"
            if same and step == 1:
                out = dim
        elif same:
            out = -(-dim // step)
            if (out - 1) * step + reach < dim:  # ONNX Runtime wants no padding below zero
                raise Unfit
        else:
            out = (dim + low + high - reach) // step + 1
            if dim + low + high < reach:
                raise Unfit
        kernel.append(size)
        strides.append(step)
        spread.append(gap)
        pads.append((low, high))
        dims.append(out)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    if same:
        attributes["auto_pad"] = d.choose(["SAME_UPPER", "SAME_LOWER"])
    else:
        attributes["pads"] = [*(low for low, _ in pads), *(high for _, high in pads)]
        if any(gap > 1 for gap in spread):
            attributes["dilations"] = spread
    return kernel, attributes, dims


def _image(d: Draft) -> Value:
    return d.floats(rank=d.choose([4, 4, 4, 3]), where=lambda v: isinstance(v.dims[1], int))


def conv(d: Draft) -> None:
    """Plain, grouped or depthwise; then perhaps a norm, an activation and a shortcut."""
    x = _image(d)
    channels = fixed(x.dims[1])
    divisors = [g for g in range(1, channels + 1) if channels % g == 0]
    groups = d.choose([1, 1, 1, channels, *divisors])
    filters = groups * d.choose([1, 2, 4, 8, 3]) if groups > 1 else d.choose(CHANNELS)
    kernel, attributes, dims = _window(d, x, far=symbolic(x.dims[2:]) or d.often(20))
    fan = channels // groups * math.prod(kernel)
    w = d.weight(filters, channels // groups, *kernel, scale=fan**-0.5)
    bias = d.weight(filters) if d.often(60) else None
    if groups > 1:
        attributes["group"] = groups
    if d.often(20):
        del attributes["kernel_shape"]
    y = d.add("Conv", [x, w, bias], (x.dims[0], filters, *dims), **attributes)
    if d.often(30):
        y = batch_norm(d, y)
    if y.dims == x.dims and d.often(40):
        y = d.add("Add", [y, x] if d.often(50) else [x, y], x.dims)
    if d.often(50):
        activation(d, y)


def conv_transpose(d: Draft) -> None:
    x = d.floats(rank=4, where=lambda v: all(isinstance(dim, int) for dim in v.dims[1:]))
    channels, filters = fixed(x.dims[1]), d.choose(CHANNELS)
    size, step = d.choose([2, 3, 4]), d.choose([1, 2])
    pad = d.number(0, (size - 1) // 2)
    extra = d.number(0, step - 1)
    sides = [(fixed(dim) - 1) * step + size - 2 * pad + extra for dim in x.dims[2:]]
    if min(sides) < 1:
        raise Unfit
    w = d.weight(channels, filters, size, size, scale=(channels * size) ** -0.5)
    bias = d.weight(filters) if d.often(60) else None
    more: dict[str, Any] = {"output_padding": [extra] * 2} if extra else {}
    d.add(
        "ConvTranspose", [x, w, bias], (x.dims[0], filters, *sides),
        kernel_shape=[size] * 2, strides=[step] * 2, pads=[pad] * 4, **more,
    )  # fmt: skip


def batch_norm(d: Draft, x: Value | None = None) -> Value:
    x = x or d.floats(least=2, where=lambda v: isinstance(v.dims[1], int))
    count = fixed(x.dims[1])
    rng = np.random.default_rng(count)
    spread = d.const((rng.random(count) + 0.5).astype(np.float32))
    operands = [x, d.weight(count), d.weight(count), d.weight(count), spread]
    return d.add("BatchNormalization", operands, x.dims, epsilon=1e-5)


def pool(d: Draft) -> None:
    x = d.floats(rank=d.choose([4, 4, 3]))
    kind = d.choose(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
    if kind.startswith("Global"):
        y = d.add(kind, [x], (*x.dims[:2], *(1,) * (x.rank - 2)), exact=False)
        if d.often(50):
            d.add("Flatten", [y], y.dims[:2])
        return
    _, attributes, dims = _window(d, x, dilate=kind == "MaxPool" and d.opset >= 10)
    if kind == "AveragePool" and d.often(50):
        attributes["count_include_pad"] = 1
    if d.opset >= 10 and "pads" in attributes and d.often(25):
        rounded = [_rounded_up(dim, attributes, i) for i, dim in enumerate(x.dims[2:])]
        if None not in rounded:
            dims, attributes["ceil_mode"] = rounded, 1
    d.add(kind, [x], (*x.dims[:2], *dims), exact=x.exact and kind == "MaxPool", **attributes)


def _rounded_up(dim: int | str, attributes: dict[str, Any], axis: int) -> int | None:
    """The size under ``ceil_mode``; None where the last window would begin behind the image.

    ONNX Runtime leaves that window out, but counts it where it infers shapes: it refuses, or
    fails in, what comes after.
    """
    size, step = attributes["kernel_shape"][axis], attributes["strides"][axis]
    gap = attributes.get("dilations", [1] * 3)[axis]
    low, high = attributes["pads"][axis], attributes["pads"][axis + len(attributes["strides"])]
    reach = (size - 1) * gap + 1
    found = -(-(fixed(dim) + low + high - reach) // step) + 1
    return None if (found - 1) * step >= fixed(dim) + low else found


WINDOWS = (conv, conv, conv, conv_transpose, batch_norm, pool, pool)
