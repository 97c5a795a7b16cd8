"""One head of attention: run a kernel on it, and what NumPy makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kernels.conformance import (
    Array,
    AttentionTile,
    Output,
    address,
    guarded,
    kernel,
    scratch_size,
)
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.ops.attention import ZERO_ROWS

__all__ = ["attend", "attention_inputs", "attention_reference"]


def attend(
    isa: str,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    zero_rows: str = "none",
    turned: bool = False,
    of: str = "attention",
    **more: Any,
) -> Array:
    """One head; the mask is ``[S|1, T|1]``, float32 or boolean; ``turned`` stores k as ``[D,T]``;
    ``of`` names the kernel; ``more`` are fields of the tile."""
    unit, (name, size_name, *_) = emit_unit(of, isa), symbols(of, isa)
    (queries, head), (keys, head_v) = q.shape, v.shape
    size = scratch_size(unit, size_name, keys, head, head_v)
    assert size % 64 == 0
    memory = np.full(size + 128, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64
    q, k, v = guarded(q), guarded(k), guarded(v)
    tile = AttentionTile(
        queries=queries, keys=keys, head=head, head_v=head_v, q=address(q), q_stride=head,
        k=address(k), k_stride=head, v=address(v), v_stride=head_v, scale=head**-0.5,
        scratch=memory.ctypes.data + start, zero_rows=ZERO_ROWS.index(zero_rows), heads=1,
        k_col=1, seen_step=1, window_left=-1, y_size=4, fill=-np.inf,
    )  # fmt: skip
    if turned:
        k = guarded(np.ascontiguousarray(k.T))
        tile.k, tile.k_stride, tile.k_col = address(k), 1, keys
    for field, value in more.items():
        setattr(tile, field, value)
    if mask is not None:
        mask = guarded(mask)
        tile.mask, tile.mask_kind = address(mask), 2 if mask.dtype == bool else 1
        tile.mask_row, tile.mask_col = (
            int(mask.shape[0] > 1) * mask.shape[1],
            int(mask.shape[1] > 1),
        )
    out = Output(queries, head_v)
    tile.y, tile.y_stride = out.address, out.stride
    kernel(unit, name)(tile)
    out.check_canaries()
    assert (memory[:start] == 0xA5).all() and (memory[start + size :] == 0xA5).all()
    return out.view


def attention_reference(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """ONNX Runtime's steps; scores and mask meet in fp32, the rest is fp64.

    A row with no key left is NaN.
    """
    scores = (q.astype(np.float64) @ k.T * q.shape[1] ** -0.5).astype(np.float32)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True) @ v)


def attention_inputs(
    queries: int, keys: int, head: int, head_v: int
) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(queries * 1000 + keys)
    return (
        rng.standard_normal((queries, head), np.float32),
        rng.standard_normal((keys, head), np.float32),
        rng.standard_normal((keys, head_v), np.float32),
    )
