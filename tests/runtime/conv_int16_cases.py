"""Programs of convolutions in 16-bit integers, and what NumPy makes of the rounded operands."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np

from tests.convolutions import ADD_RELU, CLIP_MUL, RELU, SILU_ADD, Case, conv, either, window
from tests.runtime.support import Case as Run
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.ttg import Region, TileGraph

__all__ = ["conv_int16_cases", "run_of_case"]


def run_of_case(name: str, case: Case, sizes: dict[str, int], spoilt: str = "") -> Run:
    """The program the passes write; ``spoilt``: the last image has a NaN, or is all zero."""
    arrays = case.arrays(sizes)
    if spoilt == "nan":
        arrays[0][-1, 0, 0, 0] = np.nan
    elif spoilt == "zero":
        arrays[0][-1] = 0
    names = tuple(f"o{i}" for i in range(len(arrays)))
    region = Region("region", "FusedConv", names, ("y",), (), case.params)
    specs = dict(zip(names, case.specs, strict=True))
    program = lower(TileGraph([region], list(names), ("y",), {}, specs), region)
    with np.errstate(invalid="ignore"):
        (wanted,) = case.params.reference([np.asarray(a, np.float64) for a in arrays])
    return Run(name, program, tuple(arrays), (wanted,))


@cache
def conv_int16_cases() -> tuple[Run, ...]:
    full = ("n", 40, "h", "w")
    same = window(3, pads=1)
    made: list[tuple[str, Case, dict[str, int], str]] = []

    def add(name: str, case: Case, h: int, w: int, n: int = 1, spoilt: str = "") -> None:
        title = f"{case.params.layout.name}_{name}_{n}x{h}x{w}"
        made.append((title, case, {"n": n, "h": h, "w": w}, spoilt))

    for width in (*range(1, 18), 29):
        add("line", conv(34, 40, window(1), "int16"), 1, width)
    for i, o in itertools.product((1, 3, 16, 24, 33), (1, 7, 16, 33)):
        add(f"channels_{i}_{o}", conv(i, o, same, "int16"), 5, 6)
        add(f"channels_{i}_{o}", conv(i, o, same, "winograd2_int16"), 5, 6)
    for k, s, d in itertools.product((1, 2, 3, 5), (1, 2, 3), (1, 2)):
        add(f"window_{k}_{s}_{d}", conv(24, 33, window(k, s, d, k // 2), "int16"), 11, 17)
    for layout in ("int16", "winograd2_int16"):
        over: Any = same
        add("long", conv(700, 40, over, layout), 7, 7)
        add("images", conv(40, 40, over, layout, 1, full, epilogue=ADD_RELU), 9, 15, 3)
        add("chain", conv(40, 40, over, layout, 1, full, epilogue=SILU_ADD), 8, 13, 2)
        scaled = (full, (40, 1, 1), (1,))
        add("scaled", conv(40, 40, over, layout, 1, *scaled, epilogue=CLIP_MUL), 6, 7, 2)
        add("wide", conv(64, 160, over, layout, epilogue=RELU), 40, 80)
        for spoilt in ("nan", "zero"):
            add(spoilt, conv(24, 33, over, layout), 6, 7, 2, spoilt)
    for h, w in ((1, 1), (2, 7), (6, 6), (9, 17), (20, 31)):
        one = either(conv(24, 40, same, "winograd2_int16", 1, full, epilogue=ADD_RELU))
        add("either", one, h, w, 2)
        add("either_nan", one, h, w, 2, "nan")
    add("deep", conv(1030, 40, window(1), "int16"), 7, 7, 2)
    add("groups", conv(64, 96, same, "int16", 2), 5, 5, 3)
    return tuple(run_of_case(*one) for one in made)
