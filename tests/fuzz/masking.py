"""How scores are masked, as exporters write it; some masks hide all keys of some rows.

    scores + mask · scores + (1 − keep)·c · Where(keep, scores, c) · scores + Where(keep, 0, c)

Masks are constants or inputs: ``mask…`` are added, ``keep_mask…`` are true or 1 where a key is
seen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fuzz.draft import Dims, Draft, Unfit, Value, broadcast

__all__ = ["HIDDEN", "masked"]

HIDDEN = (float("-inf"), -1e9, float(np.finfo(np.float32).min), -1e4)
"""What exporters add to a score that must not count, or put in its place."""


def masked(d: Draft, scores: Value) -> Value:
    """Scores of dims (batch, heads, rows, keys) under a mask, or as they are."""
    return d.choose(_WAYS)(d, scores)


def _none(d: Draft, scores: Value) -> Value:
    return scores


def _scaled(d: Draft, scores: Value) -> Value:
    """An input that is no mask, though it stands where one would."""
    mask = d.input(4, "f", (scores.dims[0], 1, 1, scores.dims[-1]))
    penalty = d.add("Mul", [mask, d.const(np.float32(-3.0))], mask.dims)
    return d.add("Add", [scores, penalty], scores.dims)


def _added(d: Draft, scores: Value) -> Value:
    if d.often(40):
        mask = d.input(4, "f", _dims(d, scores), "mask")
    else:
        keep = _triangle(d, scores)
        mask = d.const(np.where(keep, np.float32(0), np.float32(_hidden(d))))
    y = d.add("Add", [scores, mask] if d.often(70) else [mask, scores], scores.dims)
    if d.often(15):
        y = d.add("Max", [y, d.const(np.finfo(np.float32).min)], y.dims)
    return y


def _flipped(d: Draft, scores: Value) -> Value:
    """(1 − keep)·c of integers, booleans or floats."""
    kind = d.choose(["i", "f", "b"])
    keep = d.input(4, kind, _dims(d, scores), "keep_mask")
    if kind != "f":
        keep = d.add("Cast", [keep], keep.dims, exact=True, to=1)
    left = d.add("Sub", [d.const(np.float32(1.0)), keep], keep.dims, exact=True)
    number = d.const(np.float32(d.choose(HIDDEN[1:])))
    mask = d.add("Mul", [left, number], left.dims, exact=True)
    return d.add("Add", [scores, mask], scores.dims)


def _chosen(d: Draft, scores: Value) -> Value:
    """Where, of scores or of what is added to them."""
    keep, seen = _keep(d, scores)
    number = _hidden(d)
    other = d.const(np.float32(number))
    added = d.often(40)
    if added and np.isfinite(number):
        d.traits.append("absorbs")
    if not added and d.often(25):  # the mask has the scores' dims
        keep = _expanded(d, keep, scores)
    best = d.const(np.float32(0.0)) if added else scores
    dims = keep.dims if added else broadcast(keep.dims, scores.dims)
    y = d.add("Where", [keep, best, other] if seen else [keep, other, best], dims)
    return d.add("Add", [scores, y], scores.dims) if added else y


def _keep(d: Draft, scores: Value) -> tuple[Value, bool]:
    """A truth value per key, and whether it is true of keys that are seen."""
    d.need(9)
    if d.often(50):
        return d.const(_triangle(d, scores)), True
    if d.often(50):
        keep = d.input(4, "b", _dims(d, scores), "keep_mask")
    else:
        number = d.input(4, d.choose(["i", "f"]), _dims(d, scores), "keep_mask")
        if number.type == "i" and d.opset >= 11 and d.often(60):
            zero = d.const(np.int64(0))
            return d.add("Equal", [number, zero], number.dims, "b", True), False
        keep = d.add("Cast", [number], number.dims, "b", True, to=9)
    if d.often(30):
        return d.add("Not", [keep], keep.dims, "b", True), False
    length = scores.dims[-1]
    if isinstance(length, int) and d.often(30):
        causal = d.const(np.tril(np.ones((length, length), np.bool_)))
        dims = broadcast(keep.dims, causal.dims)
        return d.add("And", [keep, causal], dims, "b", True), True
    return keep, True


def _expanded(d: Draft, keep: Value, scores: Value) -> Value:
    if any(isinstance(dim, str) for dim in scores.dims):
        raise Unfit
    return d.add("Expand", [keep, d.ints(*map(int, scores.dims))], scores.dims, "b", True)


def _dims(d: Draft, scores: Value) -> Dims:
    batch, _, rows, keys = scores.dims
    return d.choose([(batch, 1, 1, keys), (batch, 1, rows, keys), (1, 1, rows, keys)])


def _hidden(d: Draft) -> float:
    return d.choose(HIDDEN)


def _triangle(d: Draft, scores: Value) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """A constant mask: each row sees keys up to itself, or, in some masks, strictly before."""
    length = scores.dims[-1]
    if not isinstance(length, int):
        raise Unfit
    ends = 0
    if d.often(50):
        ends = -d.choose([1, 2])
        d.traits.append("masks")
    return np.tril(np.ones((length, length), np.bool_), ends)


_WAYS: tuple[Callable[[Draft, Value], Value], ...] = (
    _added, _chosen, _flipped, _chosen, _none, _scaled
)  # fmt: skip
