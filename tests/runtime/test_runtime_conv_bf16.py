"""Convolutions in bf16 at every level this machine has, against fp64 that rounds as they do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.runtime.answers import Answers, assert_never_crashes, assert_threads_agree
from tests.runtime.blocked import SILU
from tests.runtime.conv_bf16_cases import CHAINS, all_bf16_cases
from tests.runtime.conv_calls import conv, depthwise
from tests.runtime.shapes import often
from tests.runtime.support import Case
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.isa_levels import host_levels

LEVELS = host_levels("bf16")
CASES = {case.name: case for case in all_bf16_cases()}
CALLS = (
    "conv_bf16", "depthwise_bf16", "winograd_bf16", "conv_dispatch_bf16", "pool_bf16",
)  # fmt: skip
ROUNDED = 2.0**-8
"""A result in bf16 may fall to the other side of a number half way; so may a filter."""
TRANSFORMED = 2.0**-8
"""So may what Winograd's algorithm multiplies."""
EITHER = 2.0**-6
"""Against direct summation, where the size of an image chooses."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(CASES.values(), CALLS, CHAINS, LEVELS, tmp_path_factory)


def numbers(got: np.ndarray) -> np.ndarray:
    """An output as float32; bf16 comes as bits."""
    if got.dtype == np.float32:
        return got
    return (got.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("level", often("bf16"))
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, level: str, answers: Answers) -> None:
    answer, case = answers(level)[name], CASES[name]
    assert isinstance(answer, tuple), answer
    (wanted,), got = case.expected, numbers(answer[0])
    assert got.shape == wanted.shape
    asked = ~np.isnan(wanted)
    tolerance = case.tolerance
    if case.program.outputs[0].dtype is DType.BF16 or "finer" in name:
        tolerance = ROUNDED
    elif name.startswith("winograd"):
        tolerance = TRANSFORMED
    if name.startswith("either"):
        tolerance = EITHER
    limit = tolerance * max(np.abs(wanted[asked]).max(initial=0), 1e-3)
    assert np.abs(got[asked] - wanted[asked]).max(initial=0) <= limit
    assert (got[wanted == 0] == 0).all()  # halos


def test_one_thread_gives_the_bits_of_two(answers: Answers) -> None:
    assert_threads_agree(answers)


MUTATED = (
    conv(24, 33, (7, 7), (3, 3), pad=(1, 1, 1, 1), halo=(1, 1, 1, 1), add=True, half=True,
         stores=DType.BF16),
    conv(24, 33, (7, 7), (3, 3), pad=(1, 1, 1, 1), m=2, chain=SILU, half=True,
         stores=DType.BF16),
    conv(24, 33, (7, 7), (3, 3), pad=(1, 1, 1, 1), m=2, either=True, half=True),
    depthwise(33, (7, 7), (3, 3), pad=(1, 1, 1, 1), chain=SILU, halo=(1, 1, 1, 1), half=True,
              stores=DType.BF16),
)  # fmt: skip


@pytest.mark.parametrize("case", MUTATED, ids=lambda case: case.name.split("_")[0])
def test_mutated_plans_never_crash(case: Case, answers: Answers, tmp_path: Path) -> None:
    assert_never_crashes(case, answers.library, tmp_path)
