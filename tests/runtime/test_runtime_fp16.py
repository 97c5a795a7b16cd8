"""Programs in fp16 at every level of Arm, against fp64; ``tests/deploy`` runs them under qemu.

Sums in fp16 are allowed the error of one rounding to bf16.
"""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.convolutions import ADD_RELU, CLIP_MUL, RELU, SILU_ADD, conv, window
from tests.runtime.answers import (
    Answers,
    assert_never_crashes,
    assert_threads_agree,
    assert_within,
)
from tests.runtime.conv_int16_cases import run_of_case
from tests.runtime.sparse_cases import SPARSE_CHAIN
from tests.runtime.support import Case, narrow_product, normal
from tracea_graph.hardware import profile_cpu
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.fp16_layouts import FP16_PANELS, pack_fp16
from tracea_graph.kernels.cpu.isa_levels import ARM, family_of, levels_of
from tracea_graph.kernels.cpu.phases.lower_precision import ROUNDING
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.gemm import GemmParams

HERE = profile_cpu()
pytestmark = pytest.mark.skipif(family_of(HERE) is not ARM, reason="only Arm has these kernels")
LEVELS = levels_of(HERE, "fp16") if family_of(HERE) is ARM else ("neonfp16",)
CALLS = (
    "gemm_f16", "round_f16", "conv_f16", "round_images_f16", "reorder_to_nchw16c",
    "reorder_to_nchw", "elementwise", "zero_pad",
)  # fmt: skip


def product(
    m: int, k: int, n: int, chain: Chain | None = None, parts: tuple[int, ...] = ()
) -> Case:
    params = GemmParams(k, n, FP16_PANELS, True, chain, splits=parts)
    weight = pack_fp16(normal(k, n, seed=1) * np.float32(k**-0.5))
    name = f"fp16_{m}x{k}x{n}" + "_chain" * bool(chain) + "_parts" * bool(parts)
    return narrow_product(name, m, params, weight, DType.F16)


@cache
def cases() -> tuple[Case, ...]:
    full, same = ("n", 40, "h", "w"), window(3, pads=1)
    sizes = ((1, 1, 1), (3, 7, 33), (16, 300, 48), (130, 515, 97), (70, 9001, 40))
    made = [product(*one) for one in sizes]
    made += [product(37, 131, 72, SPARSE_CHAIN), product(37, 24, 160, parts=(48, 16, 96))]

    def add(name: str, case: object, h: int, w: int, n: int = 1, spoilt: str = "") -> None:
        title = f"fp16_{name}_{n}x{h}x{w}"
        made.append(run_of_case(title, case, {"n": n, "h": h, "w": w}, spoilt))  # type: ignore[arg-type]

    for width in (*range(1, 14), 29):
        add("line", conv(34, 40, window(1), "f16"), 1, width)
    for i, o in itertools.product((1, 3, 16, 24, 33), (1, 7, 16, 33)):
        add(f"channels_{i}_{o}", conv(i, o, same, "f16"), 5, 6)
    for k, s, d in itertools.product((1, 2, 3, 5), (1, 2), (1, 2)):
        add(f"window_{k}_{s}_{d}", conv(24, 33, window(k, s, d, k // 2), "f16"), 11, 17)
    add("long", conv(700, 40, same, "f16"), 7, 7)
    add("images", conv(40, 40, same, "f16", 1, full, epilogue=ADD_RELU), 9, 15, 3)
    add("chain", conv(40, 40, same, "f16", 1, full, epilogue=SILU_ADD), 8, 13, 2)
    scaled = (full, (40, 1, 1), (1,))
    add("scaled", conv(40, 40, same, "f16", 1, *scaled, epilogue=CLIP_MUL), 6, 7, 2)
    add("wide", conv(64, 160, same, "f16", epilogue=RELU), 40, 80)
    add("deep", conv(1030, 40, window(1), "f16"), 7, 7, 2)
    add("groups", conv(64, 96, same, "f16", 2), 5, 5, 3)
    add("nan", conv(24, 33, same, "f16"), 6, 40, 2, "nan")
    add("none", conv(24, 33, same, "f16"), 6, 7, 0)
    return tuple(made)


CASES = {case.name: case for case in cases()}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(CASES.values(), CALLS, (), LEVELS, tmp_path_factory)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, level: str, answers: Answers) -> None:
    case = CASES[name]
    tolerance = ROUNDING if level == "neonfp16" else case.tolerance
    assert_within(case, answers(level)[name], tolerance)


def test_one_thread_gives_the_bits_of_two(answers: Answers) -> None:
    assert_threads_agree(answers)


def test_mutated_plans_never_crash(answers: Answers, tmp_path: Path) -> None:
    case = conv(40, 40, window(3, pads=1), "f16", 1, ("n", 40, "h", "w"), epilogue=SILU_ADD)
    one = run_of_case("fp16", case, {"n": 2, "h": 8, "w": 13})
    assert_never_crashes(one, answers.library, tmp_path)
