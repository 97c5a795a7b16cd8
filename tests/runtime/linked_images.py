"""A net of convolutions whose calls all may be linked: windows, strides, halos and sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.runtime.blocked import NO_HALO, Halo, Pair, blocked, by_block, convolve, inside
from tests.runtime.cases import Array, random
from tests.runtime.support import Case, dense, spec
from tracea_graph.ir import DType, Expr
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.winograd import transform
from tracea_graph.kernels.program import Program, Temp, View

__all__ = ["linked_images"]

_RING: Halo = (1, 1, 1, 1)
_ANY = {"low": -np.inf, "high": np.inf}


class _Net:
    """Calls over temps, weights as further inputs, and what NumPy makes of them."""

    def __init__(self, x: Array) -> None:
        self.feeds = [blocked(x)]
        self.calls: list[Any] = []
        self.temps: list[tuple[int, int]] = []  # numbers, and the call that writes them
        self.last: dict[int, int] = {}

    def weights(self, array: Array) -> View:
        self.feeds.append(np.ascontiguousarray(array, np.float32))
        return dense("input", len(self.feeds) - 1, *array.shape)

    def temp(self, channels: int, size: Pair, halo: Halo) -> View:
        """Return the next call's result, with its halo."""
        (h, w), (top, left, bottom, right) = size, halo
        shape = (channels // 16, top + h + bottom, left + w + right, 16)
        self.temps.append((int(np.prod(shape)), len(self.calls)))
        return dense("temp", len(self.temps) - 1, "n", *shape)

    def call(self, op: str, **operands: Any) -> None:
        for value in operands.values():
            if isinstance(value, View) and value.buffer.kind == "temp":
                self.last[value.buffer.index] = len(self.calls)
        self.calls.append(CALLS.make(op, **operands))


def _within(view: View, channels: int, size: Pair, halo: Halo) -> View:
    return inside("temp", view.buffer.index, "n", channels // 16, size, halo)


def _conv(net: _Net, x: View, w: Array, y: View, **more: Any) -> None:
    attributes = {
        "strides": (1, 1), "dilations": (1, 1), "groups": 1, "oc_tail": 16, "ic_tail": 16,
        "zeros": NO_HALO, "halo": NO_HALO, "bias": None, "add": None, **_ANY,
    }  # fmt: skip
    net.call("conv", x=x, w=net.weights(by_block(w)), y=y, **{**attributes, **more})


def linked_images(size: Pair = (20, 14), channels: int = 32, wide: int = 64) -> Case:
    """Expand, depthwise, project, add; Winograd, add; sum a pool and a strided convolution."""
    half = ((size[0] + 1) // 2, (size[1] + 1) // 2)
    x = random(1, channels, *size)
    w = [
        random(o, i, k, k, seed=s) / np.sqrt(i * k * k)
        for s, (o, i, k) in enumerate(
            [(wide, channels, 1), (wide, 1, 3), (channels, wide, 1), (channels, channels, 3),
             (channels, channels, 1), (wide, channels, 3), (channels, wide, 1)], 1,
        )
    ]  # fmt: skip
    net = _Net(x)
    image = dense("input", 0, "n", channels // 16, *size, 16)
    wide_one = net.temp(wide, size, _RING)
    _conv(net, image, w[0], wide_one, halo=_RING, low=0.0, high=6.0)
    seen = net.temp(wide, size, NO_HALO)
    net.call(
        "depthwise", x=wide_one, w=net.weights(blocked(w[1].transpose(1, 0, 2, 3))[0]), bias=None,
        add=None, y=seen, strides=(1, 1), dilations=(1, 1), tail=16, columns=(0, 0),
        halo=NO_HALO, **_ANY,
    )  # fmt: skip
    narrow = net.temp(channels, size, _RING)
    _conv(net, seen, w[2], narrow, add=image, halo=_RING)
    turned = net.temp(channels, size, NO_HALO)
    net.call(
        "winograd", x=narrow, w=net.weights(transform(w[3], 2)), bias=None, add=None, y=turned,
        tile=2, oc_tail=16, ic_tail=16, halo=NO_HALO, **_ANY,
    )  # fmt: skip
    summed = net.temp(channels, size, _RING)
    _conv(net, turned, w[4], summed, add=_within(narrow, channels, size, _RING), halo=_RING)
    pooled = net.temp(channels, half, NO_HALO)
    net.call(
        "pool", x=_within(summed, channels, size, _RING), y=pooled, kind="max", kernel=(3, 3),
        strides=(2, 2), dilations=(1, 1), pads=_RING, halo=NO_HALO,
    )  # fmt: skip
    strided = net.temp(wide, half, NO_HALO)
    _conv(net, summed, w[5], strided, strides=(2, 2), zeros=_RING)
    out = dense("output", 0, "n", channels // 16, *half, 16)
    _conv(net, strided, w[6], out, add=pooled)
    program = Program(
        (spec("n", *net.feeds[0].shape[1:]), *(spec(*a.shape) for a in net.feeds[1:])),
        (spec("n", channels // 16, *half, 16),),
        {"n": (0, 0)},
        tuple(
            Temp(DType.F32, Expr("mul", ("n", count)), first, net.last[i])
            for i, (count, first) in enumerate(net.temps)
        ),
        tuple(net.calls),
    )
    y = blocked(_reference(x, w, half))
    return Case(f"linked_images_{size[0]}x{size[1]}", program, tuple(net.feeds), (y,))


def _reference(x: Array, w: list[Array], half: Pair) -> Array:
    def ring(a: Array, value: float = 0.0) -> Array:
        return np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=value)

    one = (1, 1)
    y = np.clip(convolve(x, w[0], one, one), 0, 6)
    y = convolve(ring(y), w[1], one, one, len(w[1]))
    y = narrow = convolve(y, w[2], one, one) + x
    y = convolve(ring(y), w[3], one, one)
    y = convolve(y, w[4], one, one) + narrow
    windows = np.lib.stride_tricks.sliding_window_view(ring(y, -np.inf), (3, 3), (2, 3))
    pooled = windows[:, :, ::2, ::2].max((-1, -2))[:, :, : half[0], : half[1]]
    return convolve(convolve(ring(y), w[5], (2, 2), one), w[6], one, one) + pooled
