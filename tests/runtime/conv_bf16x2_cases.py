"""Programs of convolutions of sums of two numbers in bf16, and what NumPy makes of them."""

from __future__ import annotations

import itertools
from functools import cache

from tests.convolutions import ADD_RELU, CLIP_MUL, RELU, SILU_ADD, Case, conv, window
from tests.runtime.conv_int16_cases import run_of_case
from tests.runtime.support import Case as Run

__all__ = ["conv_bf16x2_cases"]


@cache
def conv_bf16x2_cases() -> tuple[Run, ...]:
    full = ("n", 40, "h", "w")
    same = window(3, pads=1)
    made: list[tuple[str, Case, dict[str, int], str]] = []

    def add(name: str, case: Case, h: int, w: int, n: int = 1, spoilt: str = "") -> None:
        made.append((f"bf16x2_{name}_{n}x{h}x{w}", case, {"n": n, "h": h, "w": w}, spoilt))

    for width in (*range(1, 18), 29, 33):
        add("line", conv(34, 40, window(1), "bf16x2"), 1, width)
    for i, o in itertools.product((1, 3, 16, 24, 33), (1, 7, 16, 33)):
        add(f"channels_{i}_{o}", conv(i, o, same, "bf16x2"), 5, 6)
    for k, s, d in itertools.product((1, 2, 3, 5, 7), (1, 2, 3), (1, 2)):
        add(f"window_{k}_{s}_{d}", conv(24, 33, window(k, s, d, k // 2), "bf16x2"), 11, 17)
    add("long", conv(700, 40, same, "bf16x2"), 7, 7)
    add("images", conv(40, 40, same, "bf16x2", 1, full, epilogue=ADD_RELU), 9, 15, 3)
    add("chain", conv(40, 40, same, "bf16x2", 1, full, epilogue=SILU_ADD), 8, 13, 2)
    scaled = (full, (40, 1, 1), (1,))
    add("scaled", conv(40, 40, same, "bf16x2", 1, *scaled, epilogue=CLIP_MUL), 6, 7, 2)
    add("wide", conv(64, 160, same, "bf16x2", epilogue=RELU), 40, 80)
    add("deep", conv(1030, 40, window(1), "bf16x2"), 7, 7, 2)
    add("groups", conv(64, 96, same, "bf16x2", 2), 5, 5, 3)
    add("nan", conv(24, 33, same, "bf16x2"), 6, 40, 2, "nan")
    add("none", conv(24, 33, same, "bf16x2"), 6, 7, 0)
    return tuple(run_of_case(*one) for one in made)
