"""Scaled dot-product attention of one head."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_void_p
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tests.graphs import session
from tests.kernels.attention_tile import attend, attention_inputs, attention_reference
from tests.kernels.conformance import (
    EMPTY,
    KEPT,
    Array,
    AttentionTile,
    Output,
    address,
    close,
    function,
    guarded,
    scores_around,
)
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.ops.attention import LOWEST, ZERO_ROWS


@pytest.mark.parametrize("keys", [1, 15, 16, 17, 63, 127, 128, 129, 300])
def test_equals_reference(isa: str, keys: int) -> None:
    for queries in (1, 2, 5, 23, 24, 25, 53):
        q, k, v = attention_inputs(queries, keys, 32, 32)
        close(attend(isa, q, k, v), attention_reference(q, k, v))


@pytest.mark.parametrize("head", [1, 3, 15, 16, 17, 64, 80, 97, 256])
def test_head_sizes(isa: str, head: int) -> None:
    for head_v in {head, 1, 47, 128}:
        q, k, v = attention_inputs(7, 37, head, head_v)
        close(attend(isa, q, k, v), attention_reference(q, k, v))


def _masks(queries: int, keys: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    keep = rng.random((queries, keys)) < 0.7
    keep[:, 0] = True
    keep[1] = False  # a row with nothing left
    padding = np.arange(keys)[None] < keys * 2 // 3
    causal = np.tril(np.ones((queries, keys), bool), keys - queries)
    mixed = np.where(keep, 0, LOWEST).astype(np.float32)
    mixed[1, ::2] = -np.inf
    hard = {
        f"{value:.0e}": np.where(keep, 0, value).astype(np.float32)
        for value in (-1e4, -1e9, LOWEST, -np.inf)
    }
    return {
        **hard,
        "mixed": mixed,
        "bool": keep,
        "padding": np.where(padding, 0, LOWEST).astype(np.float32),
        "bool-padding": padding,
        "causal": causal,
        "all": np.zeros((1, keys), bool),
        "per-row": rng.standard_normal((queries, 1), np.float32),
        "bool-per-row": keep[:, :1],
        "bias": rng.standard_normal((queries, keys), np.float32) * 5,
    }


@pytest.mark.parametrize("name", _masks(3, 3))
@pytest.mark.parametrize("queries,keys", [(5, 17), (29, 150), (24, 128)])
def test_masks(isa: str, queries: int, keys: int, name: str) -> None:
    mask = _masks(queries, keys)[name]
    q, k, v = attention_inputs(queries, keys, 32, 48)
    close(attend(isa, q, k, v, mask), attention_reference(q, k, v, mask), _mask_tolerance(mask))


def _mask_tolerance(mask: Array) -> float:
    """Scores near -1e4 have steps of 1e-3 in fp32: one may round to its neighbour."""
    return 1e-3 if mask.dtype != bool and (mask == -1e4).any() else 1e-5


def test_minus_1e4_rounds_scores_as_onnxruntime_does(isa: str) -> None:
    # Scores that are exact in fp32 before and after the mask is added leave no room for doubt.
    q = np.full((1, 4), 0.5, np.float32)
    k = (np.arange(40, dtype=np.float32)[:, None] / 64).repeat(4, 1)
    v = np.random.default_rng(3).standard_normal((40, 8), np.float32)
    mask = np.full((1, 40), -1e4, np.float32)
    close(attend(isa, q, k, v, mask), attention_reference(q, k, v, mask), 1e-6)


@pytest.mark.parametrize("value", [-1e4, -1e9, LOWEST])
def test_rows_masked_throughout_equal_onnxruntime(isa: str, value: float) -> None:
    q, k, v = attention_inputs(3, 50, 16, 24)
    q = np.round(q * 8) / 8  # scores that any order of summation rounds alike
    k = np.round(k * 8) / 8
    mask = np.zeros((3, 50), np.float32)
    mask[0], mask[1, 7:] = value, value
    close(attend(isa, q, k, v, mask), _onnxruntime(q, k, v, mask), 1e-6)


def _onnxruntime(q: Array, k: Array, v: Array, mask: Array) -> Array:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[S,D] q, float[D,T] k, float[T,E] v, float[S,T] m) => (float[S,E] y)
        <float scale = {{{q.shape[1] ** -0.5}}}> {{
            s = MatMul(q, k)
            scaled = Mul(s, scale)
            masked = Add(scaled, m)
            p = Softmax<axis = -1>(masked)
            y = MatMul(p, v)
        }}"""
    feeds = {"q": q, "k": np.ascontiguousarray(k.T), "v": v, "m": mask}
    return np.asarray(session(onnx.parser.parse_model(text), optimized=True).run(None, feeds)[0])


def test_no_keys(isa: str) -> None:
    q, k, v = attention_inputs(3, 0, 8, 8)
    assert (attend(isa, q, k, v) == 0).all()


def test_nan_stays_in_its_row(isa: str) -> None:
    q, k, v = attention_inputs(9, 40, 16, 16)
    q[4, 3] = np.nan
    got, want = attend(isa, q, k, v), attention_reference(q, k, v)
    assert np.isnan(got[4]).all()
    close(np.delete(got, 4, 0), np.delete(want, 4, 0))


def test_rows_do_not_depend_on_how_queries_are_split(isa: str) -> None:
    q, k, v = attention_inputs(53, 150, 40, 24)
    mask: Any = _masks(53, 150)["bias"]
    whole = attend(isa, q, k, v, mask).copy()
    for start, end in ((0, 1), (1, 8), (8, 53)):
        part = attend(isa, q[start:end], k, v, mask[start:end])
        np.testing.assert_array_equal(part, whole[start:end])


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("attention_avx512.cpp", emit_unit("attention", "avx512").text)


@pytest.mark.parametrize("zero_rows", ZERO_ROWS)
@pytest.mark.parametrize("kind", EMPTY)
@pytest.mark.parametrize("queries,direct", [(30, 0), (4, 1)])
def test_rows_without_keys(isa: str, queries: int, direct: int, kind: str, zero_rows: str) -> None:
    q, k, v = attention_inputs(queries, 300, 16, 24)
    low, rows = EMPTY[kind]
    keep = np.random.default_rng(7).random((queries, 300)) < 0.5
    empty = np.arange(queries) % 3 == 0
    keep[1::3], keep[empty] = True, False
    mask = keep if kind.startswith("bool") else np.where(keep, np.float32(0), np.float32(low))
    got = attend(isa, q, k, v, mask, zero_rows=zero_rows, fill=low, direct=direct)
    wanted = {"NaN": np.nan, "0": 0.0, "mean": v.astype(np.float64).mean(0)}[rows[zero_rows]]
    np.testing.assert_allclose(got[empty], np.broadcast_to(wanted, got[empty].shape), atol=1e-5)
    close(got[~empty], attention_reference(q, k, v, mask)[~empty])


@pytest.mark.parametrize("zero_rows", ZERO_ROWS)
def test_only_a_guard_hides_scores_that_are_no_numbers(isa: str, zero_rows: str) -> None:
    q, k, v = attention_inputs(30, 40, 16, 24)
    q[3, 2], q[20] = np.nan, 0.0
    q[20, 0], k[7, 0] = np.inf, 1.0
    got = attend(isa, q, k, v, zero_rows=zero_rows)
    lost = got[[3, 20]]
    assert not lost.any() if zero_rows == "guarded" else np.isnan(lost).all()
    close(np.delete(got, [3, 20], 0), np.delete(attention_reference(q, k, v), [3, 20], 0))


def test_masks_decide_whose_weights_are_zeros_not_scores(isa: str) -> None:
    q, k, v = attention_inputs(9, 40, 16, 24)
    q[:], k[:, 0], mask = 1.0, -np.inf, np.zeros((9, 40), np.float32)
    mask[4] = -np.inf
    got = attend(isa, q, k, v, mask, zero_rows="masked")
    assert not got[4].any() and np.isnan(np.delete(got, 4, 0)).all()
    assert not attend(isa, q, k, v, mask, zero_rows="lowest").any()


def test_weights_of_zero_do_not_hide_values_that_are_no_numbers(isa: str) -> None:
    q, k, v = attention_inputs(9, 40, 16, 24)
    v[7, 5] = np.nan
    mask = np.zeros((9, 40), bool)
    for zero_rows in ZERO_ROWS[1:]:
        got = attend(isa, q, k, v, mask, zero_rows=zero_rows)
        assert np.isnan(got[:, 5]).all() and not np.delete(got, 5, 1).any()


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("fill", [-3.0, -1e4, -1e9, -1e38, 5.0])
@pytest.mark.parametrize("more", [{}, {"direct": 1}, {"causal": 1, "seen": 241}])
def test_a_boolean_mask_puts_its_number_in_the_place_of_scores(
    isa: str, more: dict[str, Any], fill: float, name: str
) -> None:
    """A key that is seen may score less than one that is not."""
    q, k, v = scores_around(fill)
    keep: Any = KEPT[name]
    got = attend(isa, q, k, v, keep, fill=fill, **more)
    seen = more.get("seen", 300)
    close(got, _ordered(q, k, v, seen, fill, keep))
    if fill == -3.0:
        got = attend(isa, q, k, v, keep, fill=fill, softcap=9.0, **more)
        close(got, _ordered(q, k, v, seen, fill, keep, softcap=9.0))


# ---- order, cap, layouts, what is skipped ------------------------------------------------


def _ordered(
    q: Array,
    k: Array,
    v: Array,
    seen: int,
    fill: float,
    mask: Array | None = None,
    softcap: float = 0.0,
) -> Array:
    """Row i sees ``seen + i`` keys; fp64 but where scores and masks meet."""
    scores = q.astype(np.float64) @ k.T * q.shape[1] ** -0.5
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    with np.errstate(over="ignore"):
        scores = scores.astype(np.float32)
    keep = np.arange(len(k)) < seen + np.arange(len(q))[:, None]
    scores = np.where(keep, scores, np.float32(fill))
    with np.errstate(over="ignore"):
        if mask is not None and mask.dtype == bool:
            scores = np.where(mask, scores, np.float32(fill))
        elif mask is not None:
            scores = scores + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True) @ v)


@pytest.mark.parametrize("fill", [-1e4, LOWEST, -np.inf])
@pytest.mark.parametrize("queries,keys", [(1, 1), (5, 17), (53, 53), (30, 300), (70, 40)])
def test_order(isa: str, queries: int, keys: int, fill: float) -> None:
    q, k, v = attention_inputs(queries, keys, 32, 48)
    for seen in {1, 1 + max(0, keys - queries), 1 + keys - queries}:
        if seen < 1 and fill == -np.inf:
            continue
        got = attend(isa, q, k, v, causal=1, seen=seen, fill=fill)
        close(got, _ordered(q, k, v, seen, fill))


@pytest.mark.parametrize("low", [-1e4, LOWEST])
def test_order_and_padding_give_lost_rows_their_meaning(isa: str, low: float) -> None:
    # Padding on the left: the first queries see masked keys only, and others outweigh them.
    q, k, v = attention_inputs(60, 300, 16, 24)
    q, k = np.round(q * 8) / 8, np.round(k * 8) / 8
    mask = np.zeros((1, 300), np.float32)
    mask[0, :20] = low
    for added in (mask, mask.repeat(60, 0)):
        got = attend(isa, q, k, v, added, causal=1, seen=1, fill=low)
        close(got, _ordered(q, k, v, 1, low, added), 1e-6 if low < -1e5 else 1e-3)
    keep = mask == 0
    got = attend(isa, q, k, v, keep, causal=1, seen=1, fill=LOWEST)
    close(got, _ordered(q, k, v, 1, LOWEST, keep))


@pytest.mark.parametrize("direct", [0, 1])
def test_cap(isa: str, direct: int) -> None:
    q, k, v = attention_inputs(4, 90, 24, 32)
    mask: Any = _masks(4, 90)["bias"]
    got = attend(isa, q, k, v, mask, softcap=1.5, causal=1, seen=60, fill=LOWEST, direct=direct)
    close(got, _ordered(q, k, v, 60, LOWEST, mask, 1.5))


@pytest.mark.parametrize(
    "head,head_v", [(64, 64), (20, 32), (17, 5), (1, 16), (96, 144), (256, 256)]
)
def test_keys_read_in_place(isa: str, head: int, head_v: int) -> None:
    for queries in (1, 3, 8):
        for keys in (1, 31, 300):
            q, k, v = attention_inputs(queries, keys, head, head_v)
            close(attend(isa, q, k, v, direct=1), attention_reference(q, k, v))
            for mask in (_masks(max(queries, 2), keys)[n][:queries] for n in ("bias", "bool")):
                mask = mask if queries > 1 else mask[:1]
                got = attend(isa, q, k, v, mask, direct=1)
                close(got, attention_reference(q, k, v, mask))


def test_turned_keys(isa: str) -> None:
    for keys in (1, 16, 37, 300):
        q, k, v = attention_inputs(9, keys, 20, 32)
        close(attend(isa, q, k, v, turned=True), attention_reference(q, k, v))


def test_heads_share_keys(isa: str) -> None:
    q, k, v = attention_inputs(30, 50, 16, 16)
    mask: Any = _masks(30, 50)["bias"]
    # Three heads of ten queries; the mask moves from head to head.
    got = attend(
        isa, q, k, v, mask, queries=10, heads=3, q_head=160, mask_head=500,
        y_head=10 * _stride(16),
    )  # fmt: skip
    close(got, attention_reference(q, k, v, mask))


def _stride(columns: int) -> int:
    """Floats from row to row of an :class:`Output`."""
    return Output(1, columns).stride


HIDDEN = {
    "padding on the right": np.arange(300)[None] < 100,
    "padding on the left": np.arange(300)[None] >= 200,
    "a window": (np.arange(300)[None] >= 64) & (np.arange(300)[None] < 128),
    "a band": abs(np.arange(300)[None] - 4 * np.arange(60)[:, None]) < 20,
    "nothing left": np.arange(300)[None] + np.arange(60)[:, None] < 20,
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("kind", ["bool", "add", "-inf"])
def test_keys_nobody_sees_change_nothing(isa: str, name: str, kind: str) -> None:
    keep: Any = HIDDEN[name]
    q, k, v = attention_inputs(60, 300, 32, 32)
    low = np.float32(-np.inf if kind == "-inf" else LOWEST)
    mask = keep if kind == "bool" else np.where(keep, np.float32(0), low)
    want = attention_reference(q, k, v, np.broadcast_to(mask, (60, 300)))
    lost = ~np.broadcast_to(keep, (60, 300)).any(1)
    if kind == "add":
        want[lost] = v.astype(np.float64).mean(0)
    close(attend(isa, q, k, v, mask), want)


def test_what_is_not_finite_shows_through_keys_nobody_sees(isa: str) -> None:
    keep = np.arange(300)[None] < 100
    mask = np.where(keep, np.float32(0), LOWEST)
    q, k, v = attention_inputs(30, 300, 32, 32)
    hot = v.copy()
    hot[250, 3] = np.inf  # 0 · ∞
    got = attend(isa, q, k, hot, mask)
    assert np.isnan(got[:, 3]).all() and np.isfinite(np.delete(got, 3, 1)).all()
    lost = k.copy()
    lost[250, 3] = np.nan
    assert np.isnan(attend(isa, q, lost, v, mask)).all()


def _near(queries: int, keys: int, before: int, after: int, global_keys: int) -> Array:
    """True where a key is in a query's window; the last query stands at the last key."""
    place, key = np.arange(queries)[:, None] + keys - queries, np.arange(keys)
    near = (place - before <= key) & (key <= place + after)
    return near | (key < global_keys) | (place < global_keys)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (20, 0), (7, 40), (300, 300), (5000, 1)])
@pytest.mark.parametrize("global_keys", [0, 1, 50])
def test_queries_see_the_keys_near_them(
    isa: str, before: int, after: int, global_keys: int
) -> None:
    rng = np.random.default_rng([before, after])
    for queries, keys in ((1, 40), (30, 30), (100, 700), (620, 620)):
        q, k, v = (rng.standard_normal((n, 20), np.float32) for n in (queries, keys, keys))
        near = _near(queries, keys, before, after, global_keys)
        window = {"window_left": before, "window_right": after, "global_keys": global_keys}
        place = {"seen": keys - queries + 1, **window}
        close(attend(isa, q, k, v, **place), attention_reference(q, k, v, near))
        add = np.where(rng.random((queries, keys)) < 0.3, LOWEST, 0).astype(np.float32)
        add[near.any(1), near.argmax(1)[near.any(1)]] = 0.5
        both = np.where(near, add, -np.inf).astype(np.float32)
        close(attend(isa, q, k, v, add, **place), attention_reference(q, k, v, both))


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("fill", [-3.0, -1e9])
def test_a_boolean_mask_leaves_out_what_is_outside_the_window(
    isa: str, fill: float, name: str
) -> None:
    """Only keys in the window score what the mask puts in their place, or what later ones do."""
    q, k, v = scores_around(fill)
    keep: Any = KEPT[name]
    for global_keys, later in ((0, False), (40, False), (40, True)):
        order = {"causal": 1, "window_right": 0} if later else {"window_right": 30}
        seen = np.arange(300) <= np.arange(60)[:, None] + (240 if later else 300)
        scores = np.where(keep & seen, q.astype(np.float64) @ k.T / 2, fill)
        scores[~_near(60, 300, 90, order["window_right"], global_keys)] = -np.inf
        weights = np.exp(scores - scores.max(1, keepdims=True))
        place = {"seen": 241, "window_left": 90, "global_keys": global_keys, "fill": fill}
        got = attend(isa, q, k, v, keep, **place, **order)
        close(got, weights / weights.sum(1, keepdims=True) @ v)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_value_outside_every_window_still_counts_if_it_is_no_number(
    isa: str, odd: float
) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((300, 16), np.float32) for _ in range(3))
    v[299, 2] = odd
    y = attend(isa, q, k, v, window_left=10, window_right=10, seen=1)
    assert np.isnan(y[:280, 2]).all() and np.isfinite(y[:, [0, 1, 3]]).all()


@pytest.mark.parametrize("order", [{}, {"causal": 1, "seen": 1, "fill": -np.inf}])
def test_ranges_found_before_are_those_each_head_finds(isa: str, order: dict[str, Any]) -> None:
    """An additive band: what is computed from ranges handed in is bit for bit the same."""
    q, k, v = attention_inputs(101, 700, 16, 16)
    i, j = np.ogrid[:101, :700]
    mask = np.where(abs(4 * i - j) < 60, 0, LOWEST).astype(np.float32)
    unit, name = emit_unit("attention", isa), symbols("attention", isa)[2]
    held = guarded(mask)
    tile = AttentionTile(
        queries=101, keys=700, mask=address(held), mask_kind=1, mask_row=700, mask_col=1,
        window_left=-1, seen_step=1, **order,
    )  # fmt: skip
    found = np.full((5, 3), -1, np.int64)
    run = function(unit, name, None, c_void_p, c_void_p)
    run(ctypes.addressof(tile), found.ctypes.data)
    if not order:
        for block, (low, high, _) in enumerate(found):
            seen = np.flatnonzero((mask[24 * block : 24 * block + 24] == 0).any(0))
            assert low == seen[0] // 16 * 16 and high == -(-(seen[-1] + 1) // 16) * 16
    alone = attend(isa, q, k, v, mask, **order)
    together = attend(isa, q, k, v, mask, ranges=found.ctypes.data, **order)
    np.testing.assert_array_equal(alone, together)
