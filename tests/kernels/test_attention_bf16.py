"""Attention whose products are in bf16: operands rounded, softmax and sums in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.conformance import (
    EMPTY,
    KEPT,
    Array,
    AttentionTile,
    Output,
    address,
    guarded,
    kernel,
    levels,
    scores_around,
    scratch_size,
)
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.ops.attention import ZERO_ROWS
from tracea_graph.ops.bf16 import round_bf16

LEVELS = levels("bf16")
WEIGHTS = 2.0**-8
"""Of max|v|: the softmax's weights are rounded once, to half of this, relatively."""


def attend(
    level: str,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    fill: float = -np.inf,
    zero_rows: str = "none",
) -> Array:
    """One head of float32 numbers that are bf16."""
    unit, (name, size_name, _) = (
        emit_unit("attention_bf16", level),
        symbols("attention_bf16", level),
    )
    (queries, head), (keys, head_v) = q.shape, v.shape
    size = scratch_size(unit, size_name, keys, head // 2, head_v)
    memory = np.full(size + 128, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64
    q, k, v = (guarded(x.astype(ml_dtypes.bfloat16).view(np.uint16)) for x in (q, k, v))
    out = Output(queries, head_v)
    tile = AttentionTile(
        queries=queries, keys=keys, head=head // 2, head_v=head_v, heads=1, seen_step=1,
        q=address(q), q_stride=head // 2, k=address(k), k_stride=head // 2, k_col=1,
        v=address(v), v_stride=head_v // 2, scale=head**-0.5,
        scratch=memory.ctypes.data + start, y=out.address, y_stride=out.stride, y_size=4,
        window_left=-1, fill=fill, zero_rows=ZERO_ROWS.index(zero_rows),
    )  # fmt: skip
    if mask is not None:
        mask = guarded(mask)
        tile.mask, tile.mask_kind = address(mask), 2 if mask.dtype == bool else 1
        tile.mask_row, tile.mask_col = mask.shape[1], 1
    kernel(unit, name)(tile)
    out.check_canaries()
    assert (memory[:start] == 0xA5).all() and (memory[start + size :] == 0xA5).all()
    return out.view.copy()


def reference(
    q: Array, k: Array, v: Array, mask: Array | None = None, fill: float = -np.inf
) -> Array:
    scores = q.astype(np.float64) @ k.T * q.shape[1] ** -0.5
    if mask is not None:
        scores = np.where(mask, scores, fill) if mask.dtype == bool else scores + mask
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True) @ v)


def inputs(queries: int, keys: int, head: int, head_v: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(keys)
    shapes = ((queries, head), (keys, head), (keys, head_v))
    q, k, v = (
        rng.standard_normal(s).astype(ml_dtypes.bfloat16).astype(np.float32) for s in shapes
    )
    return q, k, v


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("keys", [1, 2, 15, 16, 17, 129, 300])
def test_equals_reference(level: str, keys: int) -> None:
    for queries, head, head_v in ((1, 32, 32), (25, 64, 64), (7, 2, 46), (3, 80, 16), (2, 74, 8)):
        q, k, v = inputs(queries, keys, head, head_v)
        error = np.abs(attend(level, q, k, v) - reference(q, k, v)).max()
        assert error <= WEIGHTS * np.abs(v).max()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize("keys", [31, 300])
def test_masks(level: str, boolean: bool, keys: int) -> None:
    q, k, v = inputs(29, keys, 16, 24)
    keep = np.random.default_rng(0).random((29, keys)) < 0.6
    keep[:, 0] = True
    keep[:, keys * 2 // 3 :] = False
    mask = keep if boolean else np.where(keep, 0, np.finfo(np.float32).min).astype(np.float32)
    error = np.abs(attend(level, q, k, v, mask) - reference(q, k, v, mask)).max()
    assert error <= WEIGHTS * np.abs(v).max()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("zero_rows", ZERO_ROWS)
@pytest.mark.parametrize("kind", EMPTY)
def test_rows_without_keys(level: str, kind: str, zero_rows: str) -> None:
    q, k, v = inputs(30, 300, 16, 24)
    low, rows = EMPTY[kind]
    keep = np.random.default_rng(7).random((30, 300)) < 0.5
    empty = np.arange(30) % 3 == 0
    keep[1::3], keep[empty] = True, False
    mask = keep if kind.startswith("bool") else np.where(keep, np.float32(0), np.float32(low))
    got = attend(level, q, k, v, mask, low, zero_rows)
    wanted = {"NaN": np.nan, "0": 0.0, "mean": v.astype(np.float64).mean(0)}[rows[zero_rows]]
    np.testing.assert_allclose(got[empty], np.broadcast_to(wanted, got[empty].shape), atol=1e-5)
    error = np.abs(got[~empty] - reference(q[~empty], k, v, keep[~empty])).max()
    assert error <= WEIGHTS * np.abs(v).max()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("fill", [-3.0, -9984.0, -999292928.0])
def test_a_boolean_mask_puts_its_number_in_the_place_of_scores(
    level: str, fill: float, name: str
) -> None:
    """Numbers of bf16, which scores lie above and below of."""
    q, k, v = (round_bf16(x) for x in scores_around(fill))
    keep = np.broadcast_to(KEPT[name], (60, 300))
    error = np.abs(attend(level, q, k, v, keep, fill) - reference(q, k, v, keep, fill)).max()
    assert error <= WEIGHTS * np.abs(v).max()


@pytest.mark.parametrize("level", LEVELS)
def test_rows_do_not_depend_on_how_queries_are_split(level: str) -> None:
    q, k, v = inputs(53, 150, 40, 24)
    whole = attend(level, q, k, v)
    for start, end in ((0, 1), (1, 8), (8, 53)):
        np.testing.assert_array_equal(attend(level, q[start:end], k, v), whole[start:end])


@pytest.mark.parametrize("level", LEVELS)
def test_nan_stays_in_its_row(level: str) -> None:
    q, k, v = inputs(9, 40, 16, 16)
    q[4, 3] = np.nan
    got = attend(level, q, k, v)
    assert np.isnan(got[4]).all() and np.isfinite(np.delete(got, 4, 0)).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("odd", [0, 5])
def test_rows_whose_first_keys_say_little(level: str, odd: int) -> None:
    """Their first panel scores far less than the rest (or is masked): they are summed once more
    with running maxima, and no other row is."""
    q, k, v = inputs(31, 300, 16, 24)
    q[odd::7] *= 32
    k[:16] /= 128
    mask = np.zeros((31, 300), np.float32)
    mask[odd::9, :16] = -np.inf
    mask[odd::9, :32] = np.finfo(np.float32).min
    got, exact = attend(level, q, k, v, mask), reference(q, k, v, mask)
    assert np.abs(got - exact).max() <= WEIGHTS * np.abs(v).max()
    for start, end in ((0, 2), (2, 26), (26, 31)):
        part = attend(level, q[start:end], k, v, mask[start:end])
        np.testing.assert_array_equal(part, got[start:end])


@pytest.mark.parametrize("level", LEVELS)
def test_infinite_scores_stay_in_their_row(level: str) -> None:
    q, k, v = inputs(9, 40, 16, 16)
    q[4] = 3e38
    got = attend(level, q, k, v)
    assert np.isnan(got[4]).all() and np.isfinite(np.delete(got, 4, 0)).all()
