"""The convolutions in bf16 the runtime is tested with: results in float32 and in bf16."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

from tests.runtime.blocked import EPILOGUES, NO_HALO, SCALED, SILU
from tests.runtime.conv_calls import conv, depthwise, stem
from tests.runtime.conv_cases import CUTS, same
from tests.runtime.conv_moves import pool
from tests.runtime.support import Case
from tracea_graph.ir import DType

__all__ = ["CHAINS", "all_bf16_cases"]

CHAINS = tuple(replace(chain, stores=(t,)) for chain in EPILOGUES for t in (DType.F32, DType.BF16))


def _dense(**more: Any) -> list[Case]:
    counts = (2, 16, 24, 34)
    cases = [conv(34, 40, (1, w), **more) for w in (*range(1, 18), 19, 29)]
    cases += [
        conv(i, o, (5, 6), (3, 3), pad=same(3), halo=(1, 1, 1, 1), **more)
        for i, o in itertools.product(counts, (1, 7, 16, 24, 33))
    ]
    cases += [conv(16, 16, (13, 12), (k, k), pad=same(k), **more) for k in range(1, 12)]
    cases += [
        conv(24, 33, (11, 17), (k, k), (s, s), (d, d), pad=same(k, d), halo=(0, 1, 2, 3), **more)
        for k, s, d in itertools.product((1, 2, 3), (1, 2, 3), (1, 2, 3))
    ]
    cases += [
        conv(24, 40, size, (3, 3), (1, 1), (d, d), pad=same(3, d), **more)
        for size, d in itertools.product(((1, 1), (2, 5), (8, 1)), (1, 6))
    ]
    cases += [
        conv(64, 64, (5, 5), (3, 3), pad=same(3), groups=4, batch=3, **more),
        conv(700, 40, (7, 7), (3, 3), pad=same(3), add=True, halo=(0, 0, 1, 2), **more),
        conv(34, 40, (9, 15), batch=2, add=True, clamp=(0, 1), **more),
        conv(64, 160, (40, 80), batch=2, chain=SILU, **more),
        conv(70, 40, (7, 6), (3, 3), pad=same(3), batch=2, schedules=CUTS[:1], **more),
        conv(64, 130, (9, 15), batch=2, add=True, chain=SILU, schedules=CUTS[1:2], **more),
    ]
    for chain, halo in itertools.product(EPILOGUES, (NO_HALO, (1, 0, 2, 1))):
        cases.append(conv(24, 33, (5, 9), batch=2, chain=chain, halo=halo, **more))
        cases.append(
            conv(24, 33, (6, 7), (3, 3), pad=same(3), chain=chain, halo=halo, add=True, **more)
        )
    return cases


def _transformed(**more: Any) -> list[Case]:
    sizes = ((1, 1), (2, 5), (4, 4), (7, 7), (13, 9), (17, 16), (5, 130))
    cases = [conv(24, 33, size, (3, 3), pad=same(3), m=2, **more) for size in sizes]
    cases += [
        conv(34, 48, (8, 61), (3, 3), pad=same(3), m=2, batch=2, add=True, clamp=(0, 6),
             chain=SCALED, halo=(1, 1, 1, 1), **more),
        *(conv(24, 40, size, (3, 3), pad=same(3), m=2, either=True, add=True, chain=SILU, **more)
          for size in ((1, 1), (2, 7), (9, 17), (20, 31))),
        conv(32, 32, (60, 60), (3, 3), pad=same(3), m=2, chain=SILU, **more),
    ]  # fmt: skip
    return cases


def _other(**more: Any) -> list[Case]:
    cases = [
        depthwise(24, (9, w), (k, k), (s, s), pad=same(k), halo=(1, 1, 0, 0), **more)
        for k, s, w in itertools.product((1, 3, 5, 7), (1, 2, 3), (1, 4, 6, 8, 15, 31, 61))
        if w >= s
    ]
    cases += [
        depthwise(16, (4, 17), (3, k), (s, s), pad=(1, k - 1, 1, 2), stored=stored, **more)
        for k, s, stored in itertools.product((3, 5, 7), (1, 2), (0, 1))
    ]
    cases += [depthwise(c, (6, 7), (3, 3), dilation=(2, 3), pad=(2, 3, 2, 3), **more)
              for c in (1, 3, 7, 33)]  # fmt: skip
    cases += [
        depthwise(33, (7, 61), (3, 3), pad=same(3), chain=chain, batch=2, add=True, clamp=(0, 6),
                  **more)
        for chain in EPILOGUES
    ]  # fmt: skip
    cases += [
        depthwise(18, (9, 31), (k, k), (s, s), pad=same(k), **{kind: True}, **more)
        for k, s, kind in itertools.product((3, 5, 7), (1, 2), ("finer", "spoilt"))
    ]
    cases += [
        stem(3, o, (10, 31), (k, k), (s, s), pad=same(k), halo=(1, 1, 1, 1), **more)
        for o, k, s in itertools.product((24, 33), (1, 3, 7), (1, 2))
    ]
    cases += [
        stem(3, 40, (9, 40), (5, 5), pad=same(5), chain=SCALED, add=True, batch=2, **more),
        stem(3, 40, (27, 83), (5, 5), (2, 2), pad=same(5), batch=2, nhwc=True, **more),
        stem(3, 24, (19, 83), (6, 3), (2, 1), (2, 1), pad=(0, 4, 9, 0), spoilt=True, **more),
    ]
    cases += [
        stem(c, 33, (40, 41), (4, 7), (3, 2), pad=(1, 3, 2, 3), chain=SILU, add=True, **more)
        for c in (1, 2, 4, 5)
    ]
    return cases


def _broad() -> list[Case]:
    """What lies in blocks of 32: read, added, written, one without the other."""
    rounds: dict[str, Any] = {"half": True, "stores": DType.BF16}
    cases = [conv(64, 64, (1, w), broad="xy", **rounds) for w in (*range(1, 18), 29, 61)]
    cases += [
        conv(i, o, (5, 6), (3, 3), pad=same(3), halo=(1, 1, 1, 1), broad=broad, **rounds)
        for i, o in itertools.product((32, 96), (32, 160))
        for broad in ("x", "y", "xy")
    ]
    cases += [
        conv(32, 32, (11, 17), (k, k), (s, s), (d, d), pad=same(k, d), broad="xy", **rounds)
        for k, s, d in itertools.product((1, 2, 3, 5), (1, 2), (1, 3))
    ]
    cases += [
        conv(32, 96, (9, 15), batch=2, add=True, clamp=(0, 1), broad=broad, **rounds)
        for broad in ("x", "y", "a", "xa", "ya", "xya")
    ]
    cases += [
        conv(34, 64, (9, 15), (3, 3), pad=same(3), batch=2, add=True, broad="ya", **rounds),
        conv(64, 40, (9, 15), batch=2, add=True, broad="x", half=True),
        conv(704, 64, (7, 7), (3, 3), pad=same(3), add=True, broad="xya", halo=(0, 0, 1, 2),
             **rounds),
        conv(64, 160, (40, 80), batch=2, chain=SILU, broad="xy", **rounds),
        conv(96, 64, (7, 6), (3, 3), pad=same(3), schedules=CUTS[:1], broad="xy", **rounds),
        conv(96, 128, (9, 15), batch=2, add=True, chain=SILU, schedules=CUTS[1:2], broad="xya",
             **rounds),
    ]  # fmt: skip
    for chain, halo in itertools.product(EPILOGUES, (NO_HALO, (1, 0, 2, 1))):
        cases.append(
            conv(32, 64, (6, 7), (3, 3), pad=same(3), chain=chain, halo=halo, add=True,
                 broad="xya", **rounds)
        )  # fmt: skip
    return cases


def _pools() -> list[Case]:
    """Maxima, which are numbers in bf16 as those they are over."""
    return [
        pool(
            0,
            c,
            (h, w),
            (k, k),
            (s, s),
            pad=same(k),
            halo=(1, 1, 1, 1),
            batch=2,
            half=True,
            broad=c == 64,
        )
        for c, (h, w), k, s in itertools.product((7, 33, 64), ((1, 1), (7, 13)), (2, 3, 5), (1, 2))
        if max(h, w) + 2 * (k // 2) >= k
    ]


@cache
def all_bf16_cases() -> tuple[Case, ...]:
    kinds: tuple[dict[str, Any], ...] = ({"stores": DType.F32}, {"stores": DType.BF16})
    made = [make(half=True, **more) for more in kinds for make in (_dense, _transformed, _other)]
    made += [_pools(), _broad()]
    return tuple({case.name: case for cases in made for case in cases}.values())
