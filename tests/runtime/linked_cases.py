"""A block of a transformer whose calls all may be linked: products, attention and norms."""

from __future__ import annotations

import numpy as np

from tests.runtime.cases import layer_norm, pack, random, wide
from tests.runtime.support import Case, dense, spec
from tracea_graph.ir import DType, Expr
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.program import Buffer, Program, Temp, View

__all__ = ["linked_block"]


def _product(x: View, weight: int, n: int, k: int, y: View) -> object:
    w = dense("input", weight, n // 16, k, 16)
    return CALLS.make("gemm", x=x, w=w, y=y, layout="panels")


def linked_block(m: int = 128, heads: int = 4, d: int = 16) -> Case:
    """x·w, attention over its thirds, ·w, norm, ·w, norm in place, ·w: seven linked calls."""
    h = heads * d
    x = random(m, h)
    weights = [random(h, n, seed=i) / np.sqrt(h) for i, n in enumerate((3 * h, h, 4 * h), 1)]
    weights.append(random(4 * h, h, seed=4) / np.sqrt(h))
    g, b = random(h, seed=5), random(h, seed=6)
    wide_g, wide_b = random(4 * h, seed=7), random(4 * h, seed=8)
    rows = {n: Expr("mul", ("m", n)) for n in (h, 3 * h, 4 * h)}
    q, k, v = (
        View(Buffer("temp", 0), (1, heads, "m", d), (rows[3 * h], d, 3 * h, 1), i * h)
        for i in range(3)
    )
    attended = View(Buffer("temp", 1), (1, heads, "m", d), (rows[h], d, h, 1), 0)
    temp = [dense("temp", i, "m", n) for i, n in enumerate((3 * h, h, h, h, 4 * h))]
    gamma, beta = dense("input", 5, h), dense("input", 6, h)
    calls = (
        _product(dense("input", 0, "m", h), 1, 3 * h, h, temp[0]),
        CALLS.make(
            "attention", q=q, k=k, v=v, mask=None, tiles=None, y=attended, mask_kind="none",
            zero_rows="none", order="none", window_left=-1, window_right=0, global_keys=0,
            scale=0.25, fill=-np.inf, softcap=0.0, tile_kind="none", tile_grid=(0, 0, 0, 0),
            beyond=0.0,
        ),
        _product(temp[1], 2, h, h, temp[2]),
        CALLS.make(
            "norm", x=temp[2], gamma=gamma, beta=beta, y=temp[3], kind="layer", epsilon=1e-5
        ),
        _product(temp[3], 3, 4 * h, h, temp[4]),
        CALLS.make(
            "norm", x=temp[4], gamma=dense("input", 7, 4 * h), beta=dense("input", 8, 4 * h),
            y=temp[4], kind="layer", epsilon=1e-5,
        ),
        _product(temp[4], 4, h, 4 * h, dense("output", 0, "m", h)),
    )  # fmt: skip
    lives = ((3 * h, 0, 1), (h, 1, 2), (h, 2, 3), (h, 3, 4), (4 * h, 4, 6))
    packed = [pack(w) for w in weights]
    program = Program(
        (spec("m", h), *(spec(*array.shape) for array in (*packed, g, b, wide_g, wide_b))),
        (spec("m", h),),
        {"m": (0, 0)},
        tuple(Temp(DType.F32, rows[n], first, last) for n, first, last in lives),
        calls,
    )
    x64, w0, w1, w2, w3 = wide(x, *weights)
    heads_of = (x64 @ w0).reshape(m, 3, heads, d).transpose(1, 2, 0, 3)
    scores = np.exp(0.25 * heads_of[0] @ heads_of[1].swapaxes(1, 2))
    mixed = scores / scores.sum(-1, keepdims=True) @ heads_of[2]
    y = layer_norm(mixed.swapaxes(0, 1).reshape(m, h) @ w1, *wide(g, b)) @ w2
    y = layer_norm(y, *wide(wide_g, wide_b)) @ w3
    return Case("linked_block", program, (x, *packed, g, b, wide_g, wide_b), (y,))
