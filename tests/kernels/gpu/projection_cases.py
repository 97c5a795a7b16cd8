"""Cases of attention and its projection in one launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.kernels.gpu.cases import TOLERANCE, Case, Expected, Made, Maker, some, wide
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.attention_projection import residual_norm
from tracea_graph.kernels.program import View

__all__ = ["CASES", "projected"]

_COLUMNS, _HEADS = 384, 12
_ROUNDED = 2
"""Roundings behind one another: of what attention computes, and of the result."""


def _heads(rows: View, first: int, batch: int) -> View:
    """Heads that lie in the rows' columns from ``first`` on."""
    (count, _), step = rows.dims, rows.strides[0]
    assert isinstance(count, int) and isinstance(step, int) and isinstance(rows.offset, int)
    length, head = count // batch, _COLUMNS // _HEADS
    strides = (length * step, head, step, 1)
    return View(rows.buffer, (batch, _HEADS, length, head), strides, rows.offset + first)


def _attended(parts: Array, mask: Array, scale: float) -> Array:
    """Attention of rows that hold queries, keys and values; a mask has a row for each sequence."""
    batch, length = mask.shape
    q, k, v = (
        np.moveaxis(p.reshape(batch, length, _HEADS, -1), 2, 1) for p in np.split(parts, 3, axis=1)
    )
    scores = scale * q @ np.swapaxes(k, 2, 3) + mask[:, None, None, :]
    scores = np.exp(scores - scores.max(3, keepdims=True))
    made = scores / scores.sum(3, keepdims=True) @ v
    return np.moveaxis(made, 1, 2).reshape(parts.shape[0], _COLUMNS)


def projected(dtype: DType, batch: int, length: int, masked: bool, pad: int = 0) -> Maker:
    """Rows of ``batch`` sequences; those of x and of the result are ``pad`` elements apart."""
    rows, n = batch * length, _COLUMNS

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        own, scale = NUMPY[dtype], 32**-0.5
        x = (some(rng, (rows, n), dtype) * 2 + 1).astype(own)
        parts = some(rng, (rows, 3 * n), dtype)
        w = (some(rng, (n, n), DType.F32) / n**0.5).astype(own)
        bias, gamma, beta = (some(rng, (n,), DType.F32) for _ in "bgb")
        mean = wide(x).mean(1, keepdims=True).astype(np.float32)
        inverse = (1 / wide(x).std(1, keepdims=True)).astype(np.float32)
        mask = np.where(rng.random((batch, length)) < 0.2, -1e4, 0).astype(np.float32) * masked
        merged, flat = memory.put(parts), memory.put(mask)
        attended = memory.empty((rows, n), own)
        y = memory.empty((rows, n), own, 0, pad)
        named: dict[str, Any] = {
            name: _heads(merged, i * n, batch) for i, name in enumerate("qkv")
        }
        shape = batch, _HEADS, length, length
        given = View(flat.buffer, shape, (flat.strides[0], 0, 0, 1), flat.offset)
        named["mask"] = given if masked else None
        call = CALLS.make(
            "attention_projection", dtype.short, **named,
            attended=_heads(attended, 0, batch), rows=attended, w=memory.put(w),
            bias=memory.put(bias), x=memory.put(x, 0, pad),
            mean=memory.put(mean).stretched((rows, n)),
            inverse=memory.put(inverse).stretched((rows, n)),
            gamma=memory.put(gamma).stretched((rows, n)),
            beta=memory.put(beta).stretched((rows, n)), y=y, part="projection", scale=scale,
            chain=residual_norm(dtype.short),
        )  # fmt: skip

        def expected() -> list[Expected]:
            between = wide(_attended(wide(parts), wide(mask), scale).astype(own))
            added = (wide(x) - wide(mean)) * wide(inverse) * gamma + beta
            value = between @ wide(w).T + bias + added
            return [Expected(y, value, _ROUNDED * TOLERANCE[dtype])]

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    for name, dtype, batch, length, masked, pad in (
        ("masked", DType.F16, 1, 37, True, 8),
        ("bf16", DType.BF16, 1, 17, False, 0),
        ("two sequences", DType.F16, 2, 9, True, 0),
        ("three warps", DType.F16, 1, 70, False, 0),
    ):
        made = projected(dtype, batch, length, masked, pad)
        yield Case(f"attention projection {name}", made, ("16x6",), ("wgmma",))


CASES = tuple(_cases())
