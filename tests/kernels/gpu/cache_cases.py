"""Attention to caches of keys and values that get new rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.kernels.gpu.cases import (
    TOLERANCE,
    Case,
    Expected,
    Made,
    Maker,
    repeated,
    some,
    wide,
)
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.kv_append_rotated import BEYOND

__all__ = ["CASES", "EPSILON", "cached", "looked_up", "rms_norm"]


EPSILON = 1e-2


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    """Heads whose halves are rotated; x is ``[B, H, S, D]``."""
    a, b = np.split(x, 2, -1)
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([a * c - b * s, a * s + b * c], -1)


def rms_norm(rows: Array) -> Array:
    """Rows over the root of their mean square, with ``EPSILON``."""
    return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + EPSILON)


def cached(
    dtype: DType, cache: DType, heads: tuple[int, int], rows: int, past: int, head: int = 64,
    slots: int = 0, batch: int = 2, rotates: bool = True, softcap: float = 0.0, late: int = 0,
    in_place: bool = False, behind: int = 0, outside: int = 0, normed: bool = False,
) -> Maker:  # fmt: skip
    """``slots`` more rows of a cache; ``behind``: by how much positions lie below ``past``.

    Positions lie ``outside`` of the caches by so much, which counts as their first row.
    ``normed``: heads of q and of new keys are normalised.
    """
    count, kept = heads
    group = count // kept

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        room = past + rows + slots
        q = some(rng, (batch, rows, count, head), dtype)
        new = [some(rng, (batch, rows, kept, head), dtype) for _ in "kv"]
        length = room if in_place else past
        held = [some(rng, (batch, kept, length, head), cache) for _ in "kv"]
        positions = np.maximum(past - behind - np.arange(batch) * behind, 0)
        angles = rng.uniform(-3, 3, (batch, rows, head // 2))
        tables = [f(angles).astype(NUMPY[dtype]) for f in (np.cos, np.sin)]
        views: dict[str, Any] = {"q": memory.put(q.swapaxes(1, 2), late, order=(0, 2, 1, 3))}
        for side, fresh, old in zip("kv", new, held, strict=True):
            views[f"new_{side}"] = memory.put(fresh.swapaxes(1, 2), late, order=(0, 2, 1, 3))
            views[f"past_{side}"] = memory.put(old)
            views[side] = views[f"past_{side}"] if in_place else memory.empty(
                (batch, kept, room, head), NUMPY[cache])  # fmt: skip
        if rotates:
            views |= dict(zip(("cos", "sin"), map(memory.put, tables), strict=True))
        else:
            views |= {"cos": None, "sin": None}
        gammas = [rng.uniform(0.5, 1.5, head).astype(np.float32) for _ in "qk"]
        norms: dict[str, Any] = {"q_gamma": None, "k_gamma": None, "epsilon": 0.0}
        if normed:
            both = map(memory.put, gammas)
            norms = {**dict(zip(("q_gamma", "k_gamma"), both, strict=True)), "epsilon": EPSILON}
        y = memory.empty((batch, count, rows, head), NUMPY[dtype], order=(0, 2, 1, 3))
        queries = max(n for n in (1, 2, 4) if n <= group * rows)
        call = CALLS.make(
            "attention_cached", dtype.short, **views, y=y, scale=head**-0.5, softcap=softcap,
            positions=memory.put(positions - outside), cache_type=cache.short, queries=queries,
            zero_rows="none" if softcap else "lowest", **norms,
        )  # fmt: skip

        def expected() -> list[Expected]:
            asked = [wide(one).swapaxes(1, 2) for one in (q, *new)]
            if normed:
                asked[:2] = [rms_norm(one) * g for one, g in zip(asked[:2], gammas, strict=True)]
            if rotates:
                asked[:2] = [_rotated(one, *map(wide, tables)) for one in asked[:2]]
            caches = []
            for fresh, old in zip(asked[1:], held, strict=True):
                whole = np.zeros((batch, kept, room, head))
                for b, place in enumerate(positions):
                    whole[b, :, :place] = wide(old)[b, :, :place]
                    whole[b, :, place : place + rows] = fresh[b]
                    if in_place:
                        whole[b, :, place + rows :] = wide(old)[b, :, place + rows :]
                caches.append(whole)
            keys, values = (np.repeat(one, group, 1) for one in caches)
            scores = asked[0] @ keys.swapaxes(2, 3) * head**-0.5
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            last = positions[:, None] + np.arange(rows)
            seen = np.arange(room) <= last[:, None, :, None]
            weights = np.exp(scores - scores.max(-1, keepdims=True, where=seen, initial=-1e30))
            weights = np.where(seen, weights, 0)
            made = weights / weights.sum(-1, keepdims=True) @ values
            share = TOLERANCE[cache] or 1e-6
            return [
                Expected(y, made, max(TOLERANCE[dtype], 1e-5)),
                Expected(views["k"], caches[0], max(share, TOLERANCE[dtype])),
                Expected(views["v"], caches[1], max(share, TOLERANCE[dtype])),
            ]

        return call, expected

    return make


def appended(
    dtype: DType, cache: DType, heads: tuple[int, int], rows: int, past: int, head: int = 64,
    slots: int = 0, behind: int = 0, late: int = 0, in_place: bool = False, rotates: bool = True,
    normed: bool = False, asks: bool = True, batch: int = 2,
) -> Maker:  # fmt: skip
    """What attention by tensor cores reads; see :func:`cached` for these words."""
    count, kept = heads

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        room = past + rows + slots
        fresh = [some(rng, (batch, rows, n, head), dtype) for n in (count, kept, kept)]
        length = room if in_place else past
        held = [some(rng, (batch, kept, length, head), cache) for _ in "kv"]
        positions = np.maximum(past - behind - np.arange(batch) * behind, 0)
        angles = rng.uniform(-3, 3, (batch, rows, head // 2))
        tables = [f(angles).astype(NUMPY[dtype]) for f in (np.cos, np.sin)]
        gammas = [rng.uniform(0.5, 1.5, head).astype(np.float32) for _ in "qk"]
        named: dict[str, Any] = {
            one: memory.put(x.swapaxes(1, 2), late, order=(0, 2, 1, 3))
            for one, x in zip(("q", "new_k", "new_v"), fresh, strict=True) if one != "q" or asks
        }  # fmt: skip
        for side, old in zip("kv", held, strict=True):
            named[f"past_{side}"] = memory.put(old, late)
            named[side] = named[f"past_{side}"] if in_place else memory.empty(
                (batch, kept, room, head), NUMPY[cache], late)  # fmt: skip
            if cache is not dtype:
                named[f"near_{side}"] = memory.empty((batch, kept, room, head), NUMPY[dtype])
        if rotates:
            named |= dict(zip(("cos", "sin"), map(memory.put, tables), strict=True))
        if normed:
            both = map(memory.put, gammas)
            named |= {**dict(zip(("q_gamma", "k_gamma"), both, strict=True)), "epsilon": EPSILON}
        if asks:
            named["turned"] = memory.empty((batch, count, rows, head), NUMPY[dtype])
        call = CALLS.make("kv_append_rotated", dtype.short, **named, cache_type=cache.short,
                          positions=memory.put(positions))  # fmt: skip

        def expected() -> list[Expected]:
            asked = [wide(one).swapaxes(1, 2) for one in fresh]
            if normed:
                asked[:2] = [rms_norm(one) * g for one, g in zip(asked[:2], gammas, strict=True)]
            if rotates:
                asked[:2] = [_rotated(one, *map(wide, tables)) for one in asked[:2]]
            found = [Expected(named["turned"], asked[0], TOLERANCE[dtype])] if asks else []
            for side, new, old in zip("kv", asked[1:], held, strict=True):
                whole = np.zeros((batch, kept, room, head))
                for b, place in enumerate(positions):
                    whole[b, :, :place] = wide(old)[b, :, :place]
                    whole[b, :, place : place + rows] = new[b]
                    if in_place and place + rows + BEYOND < room:
                        rest = slice(place + rows + BEYOND, None)
                        whole[b, :, rest] = wide(old)[b, :, rest]
                found.append(Expected(named[side], whole, TOLERANCE[cache]))
                if cache is not dtype:
                    found.append(Expected(named[f"near_{side}"], whole, TOLERANCE[dtype]))
            return found

        return call, expected

    return make


def kept_keys(
    dtype: DType, heads: tuple[int, int], queries: int, keys: int, head: int, late: int = 0,
    softcap: float = 0.0,
) -> Maker:  # fmt: skip
    """Few queries that see all keys, to which nothing is appended."""
    count, kept = heads
    group = count // kept

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        q = some(rng, (2, count, queries, head), dtype)
        k, v = (some(rng, (2, kept, keys, head), dtype) for _ in "kv")
        y = memory.empty((2, count, queries, head), NUMPY[dtype], late, order=(0, 2, 1, 3))
        call = CALLS.make(
            "attention_cached", dtype.short, q=memory.put(q, late, late), y=y,
            past_k=memory.put(k, late, late), past_v=memory.put(v, late, late),
            scale=head**-0.5, softcap=softcap, cache_type=dtype.short, zero_rows="none",
            queries=max(n for n in (1, 2, 4) if n <= group * queries),
        )  # fmt: skip

        def expected() -> list[Expected]:
            keys, values = (np.repeat(wide(one), group, 1) for one in (k, v))
            scores = wide(q) @ keys.swapaxes(2, 3) * head**-0.5
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            made = weights / weights.sum(-1, keepdims=True) @ values
            return [Expected(y, made, max(TOLERANCE[dtype], 1e-5))]

        return call, expected

    return make


def looked_up(
    dtype: DType, cache: DType, heads: tuple[int, int], queries: int, pages: tuple[int, int],
    head: int = 64, mask: str = "bool", low: float = -np.inf, index: DType = DType.I32,
    zero_rows: str = "none", lengths: tuple[int, ...] = (0, 1), each: bool = False,
    heads_first: bool = False, late: int = 0, apart: bool = False,
) -> Maker:  # fmt: skip
    """Few queries, to keys that a table of pages names: ``pages`` of an item, of so many rows.

    Pages are repeated, out of order and named from the end, too; or items are ``apart``, whose
    pages are named once.  With one page the caches have no table.  What is masked has the score
    ``low``, or ``low`` added: rows of an item behind its length, and with ``each`` other ones of
    every head.  ``lengths`` of items are tenths of all keys; the first counts for one more item.
    """
    (count, kept), (listed, size) = heads, pages
    group, batch, held = count // kept, len(lengths) + 1, listed * size

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        q = some(rng, (batch, count, queries, head), dtype)
        pool = batch if listed == 1 else batch * listed + 3
        k, v = (some(rng, (pool, kept, size, head), cache) for _ in "kv")
        order = (0, 1, 2, 3) if heads_first else (0, 2, 1, 3)
        named: dict[str, Any] = {"q": memory.put(q, late, late)}
        for side, one in zip("kv", (k, v), strict=True):
            named[f"past_{side}"] = memory.put(one, late, late, order)
        table = np.arange(batch)[:, None]
        if listed > 1:
            table = rng.integers(-pool, pool, (batch, listed))
            table = rng.permutation(pool)[: table.size].reshape(table.shape) if apart else table
            table = table.astype(NUMPY[index])
            named |= {"table": memory.put(table), "page_size": size, "index_type": index.short}
        seen = np.ones((batch, count if each else 1, queries, held), np.bool_)
        for b, tenths in enumerate((*lengths, lengths[0])):
            seen[b, ..., held * tenths // 10 :] = False
        if each:
            seen &= rng.random(seen.shape) < 0.7
        added = np.where(seen, rng.standard_normal(seen.shape), low).astype(np.float32)
        if mask != "none":
            whole = (batch, count, queries, held)
            named["mask"] = repeated(memory.put(seen if mask == "bool" else added), whole)
        y = memory.empty((batch, count, queries, head), NUMPY[dtype], late, order=(0, 2, 1, 3))
        call = CALLS.make(
            "attention_cached", dtype.short, **named, y=y, mask_kind=mask, fill=low,
            scale=head**-0.5, softcap=0.0, cache_type=cache.short, zero_rows=zero_rows,
            queries=max(n for n in (1, 2, 4) if n <= group * queries),
        )  # fmt: skip

        def expected() -> list[Expected]:
            rows = [wide(x)[table].swapaxes(1, 2).reshape(batch, kept, held, head) for x in (k, v)]
            keys, values = (np.repeat(one, group, 1) for one in rows)
            scores = wide(q) @ keys.swapaxes(2, 3) * head**-0.5
            if mask == "bool":
                scores = np.where(seen, scores, low)
            if mask == "add":  # as float32 has it: nothing is left of a score
                with np.errstate(over="ignore"):
                    scores = wide(scores.astype(np.float32) + added)
            with np.errstate(invalid="ignore"):
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                shares = weights / weights.sum(-1, keepdims=True)
            if zero_rows != "none":
                shares = np.where(seen.any(-1, keepdims=True), shares, 0)
            return [Expected(y, shares @ values, max(TOLERANCE[dtype], 1e-5))]

        return call, expected

    return make


_TILES = ("256x1", "256x8")
_GROUPED = (*_TILES, "16x128x8")
"""And the kernel that uses tensor cores, where queries and caches have the same 16 bits."""


def _grouped() -> Iterator[Case]:
    """Attention by tensor cores alone: other sizes of heads, groups and pages."""
    f16, bf16, own = DType.F16, DType.BF16, ("16x256x8", "16x128x8", "16x128x2")
    yield Case("grouped", kept_keys(f16, (16, 1), 1, 1100, 128), own)
    yield Case("grouped wide", kept_keys(bf16, (6, 2), 3, 333, 96), own, ("bf16",))
    yield Case("grouped capped", kept_keys(f16, (2, 2), 9, 70, 256, softcap=3.0), own[1:])
    made = cached(f16, f16, (24, 2), 2, 140, 80, slots=3, behind=9, normed=True)
    yield Case("grouped normed", made, own)
    made = cached(bf16, bf16, (4, 4), 3, 530, 64, in_place=True, slots=20)
    yield Case("grouped in place", made, own, ("bf16",))
    made = looked_up(f16, f16, (12, 2), 1, (40, 32), 128, each=True, lengths=(5, 10, 1))
    yield Case("grouped pages", made, own)
    made = looked_up(bf16, bf16, (2, 1), 3, (9, 16), 32, "add", index=DType.I64,
                     lengths=(9, 2, 0), zero_rows="masked", heads_first=True)  # fmt: skip
    yield Case("grouped pages added", made, own, ("bf16",))


def _looked_up() -> Iterator[Case]:
    f16, f32, bf16, lowest = DType.F16, DType.F32, DType.BF16, float(np.finfo(np.float32).min)
    made = looked_up(f16, f16, (8, 2), 1, (5, 16), lengths=(7, 10, 3))
    yield Case("looked up", made, _GROUPED)
    made = looked_up(f16, f32, (4, 4), 1, (9, 24), 128, "add", lowest, DType.I64, lengths=(9, 2),
                     heads_first=True)  # fmt: skip
    yield Case("looked up added", made, _TILES)
    made = looked_up(bf16, bf16, (4, 1), 2, (3, 33), 32, "none", lengths=(10,))
    yield Case("looked up all", made, _TILES, ("bf16",))
    made = looked_up(f32, f32, (2, 1), 3, (40, 16), 64, each=True, lengths=(5, 10, 1))
    yield Case("looked up each", made, _TILES)
    for zero_rows, low in (("none", -1e9), ("guarded", -np.inf), ("masked", lowest)):
        made = looked_up(f16, f16, (4, 2), 1, (4, 16), low=low, zero_rows=zero_rows)
        yield Case(f"looked up nothing {zero_rows}", made, _GROUPED)
    made = looked_up(f32, f32, (2, 2), 1, (3, 20), 32, "add", zero_rows="infinite", late=1)
    yield Case("looked up late", made, _TILES[:1])
    made = looked_up(f16, f16, (8, 2), 1, (1, 300), each=True, lengths=(6, 10))
    yield Case("kept keys masked", made, _GROUPED)
    made = looked_up(f32, f32, (2, 1), 4, (1, 2600), 64, "add", lengths=(8, 10),
                     zero_rows="masked")  # fmt: skip
    yield Case("kept keys added", made, _TILES)


def _cases() -> Iterator[Case]:
    f16, f32, bf16 = DType.F16, DType.F32, DType.BF16
    yield Case("cached one row", cached(f16, f16, (8, 2), 1, 75), _GROUPED)
    yield Case("cached wide rows", cached(f16, f32, (4, 2), 3, 70, 128, slots=5, behind=7), _TILES)
    yield Case(
        "cached in place", cached(f16, f16, (3, 1), 1, 40, in_place=True, slots=9), _GROUPED
    )
    yield Case("cached normed", cached(f16, f32, (4, 2), 1, 37, 128, normed=True), _TILES)
    yield Case("cached normed rows", cached(f16, f16, (6, 2), 3, 20, 32, slots=2, behind=5,
                                            normed=True), _GROUPED)  # fmt: skip
    yield Case("cached plain", cached(f16, f16, (2, 2), 2, 20, 32, rotates=False), _GROUPED)
    yield Case("cached capped", cached(f32, f32, (4, 4), 1, 33, softcap=5.0, late=1), _TILES[:1])
    yield Case(
        "cached bf16", cached(bf16, bf16, (2, 1), 1, 9, 256, batch=1), (_TILES[0], "16x128x8")
    )
    yield Case("cached outside", cached(f16, f16, (2, 1), 2, 0, 32, outside=7), _GROUPED)
    yield Case("kept keys", kept_keys(f16, (4, 4), 1, 700, 64), _GROUPED)
    yield Case("kept keys shared", kept_keys(bf16, (8, 2), 1, 129, 128), _GROUPED)
    yield Case("kept keys f32", kept_keys(f32, (2, 1), 3, 45, 32), _TILES)
    yield Case("kept keys late", kept_keys(f16, (2, 2), 2, 70, 64, 1, 3.0), _TILES[:1])
    long = cached(f16, f32, (4, 1), 1, 600, 256, batch=1, in_place=True, slots=3)
    yield Case("cached long", long, _TILES)
    yield Case("cached first", cached(f16, f16, (4, 1), 6, 0, 64), _GROUPED)
    yield from _looked_up()
    yield from _grouped()
    own = ("256",)
    yield Case("appended", appended(f16, f16, (4, 2), 5, 20, slots=3, behind=4), own)
    yield Case("appended f32", appended(f16, f32, (4, 2), 7, 9, 128, slots=2, normed=True), own)
    made = appended(f16, f16, (3, 1), 3, 20, 32, slots=BEYOND + 9, in_place=True, late=1)
    yield Case("appended in place", made, own)
    yield Case("appended first", appended(bf16, f32, (2, 2), 33, 0, rotates=False, asks=False),
               own, ("bf16",))  # fmt: skip
    yield Case("appended unturned", appended(bf16, bf16, (2, 1), 4, 3, normed=True, behind=2,
                                             rotates=False), own, ("bf16",))  # fmt: skip


CASES = tuple(_cases())
