"""Cases of a 1×1 convolution and the depthwise one behind it in one launch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.gpu.cases import (
    RESNET,
    TOLERANCE,
    Case,
    Expected,
    Made,
    Maker,
    convolved,
    some,
    wide,
)
from tests.kernels.gpu.machine import NUMPY, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.expanded_depthwise import chain_of_part
from tracea_graph.ops.chain import Chain

__all__ = ["CASES", "expanded"]

_ROUNDED = 3
"""Roundings behind one another: of expanded pixels, which windows add up, and of the result."""


def expanded(
    dtype: DType, image: tuple[int, int, int, int], channels: int, taps: int, stride: int,
    activation: str, chain: Chain | None = None, pads: int | None = None, biased: bool = True,
) -> Maker:  # fmt: skip
    """``image`` is that of x; windows keep its size unless there are other ``pads``."""
    n, h, w, depth = image
    before = taps // 2 if pads is None else pads
    out = [(side + 2 * before - taps) // stride + 1 for side in (h, w)]

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        own = NUMPY[dtype]
        x = some(rng, image, dtype)
        w1 = (some(rng, (channels, 1, 1, depth), DType.F32) * 2 / depth**0.5).astype(own)
        filters = (some(rng, (taps, taps, channels), DType.F32) / taps).astype(own)
        biases = [rng.standard_normal(channels).astype(np.float32) * biased for _ in "ab"]
        shape = (n, *out, channels)
        more = [some(rng, shape, dtype)] if chain else []
        y = memory.empty(shape, own)
        bias1, bias = (memory.put(one) if biased else None for one in biases)
        call = CALLS.make(
            "expanded_depthwise", dtype.short, x=memory.put(x), w1=memory.put(w1), bias1=bias1,
            w=memory.put(filters), bias=bias, inputs=[memory.put(one) for one in more],
            expanded=memory.empty((n, h, w, channels), own), y=[y], part="depthwise",
            activation=activation, strides=(stride, stride), pads=(before, before), chain=chain,
        )  # fmt: skip

        def expected() -> list[Expected]:
            between = chain_of_part("expansion", activation, dtype.short).reference(
                [wide(x) @ wide(w1)[:, 0, 0].T + biases[0]]
            )[0]
            between = wide(between.astype(own))
            each = [convolved(between[..., i : i + 1], wide(filters)[None, ..., i : i + 1],
                              (stride, stride), (1, 1), (before, before), (out[0], out[1]))
                    for i in range(channels)]  # fmt: skip
            sums = np.concatenate(each, -1) + biases[1]
            value = chain.reference([sums, *map(wide, more)])[0] if chain else sums
            return [Expected(y, value, _ROUNDED * TOLERANCE[dtype])]

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    for name, dtype, image, channels, taps, stride, activation, more in (
        ("relu6", DType.F16, (2, 9, 13, 24), 72, 3, 1, "relu6", {}),
        ("strided", DType.F16, (1, 14, 15, 16), 40, 3, 2, "relu6", {"chain": RESNET}),
        ("bf16", DType.BF16, (1, 7, 7, 160), 96, 3, 1, "silu", {}),
        ("5x5", DType.F16, (2, 12, 10, 40), 48, 5, 2, "silu", {"pads": 1}),
        ("5x5 bf16", DType.BF16, (1, 6, 28, 8), 16, 5, 1, "relu", {"biased": False}),
        ("wide", DType.F16, (1, 21, 112, 16), 32, 3, 2, "none", {"pads": 0}),
    ):  # fmt: skip
        made = expanded(dtype, image, channels, taps, stride, activation, **more)  # type: ignore[arg-type]
        needs = ("bf16",) if dtype is DType.BF16 else ()
        yield Case(f"expanded depthwise {name}", made, ("2x32",), needs)


CASES = tuple(_cases())
