"""Convolutions of sums of two numbers in bf16 at every level of this machine, against fp64."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.convolutions import SILU_ADD, conv, window
from tests.runtime.answers import (
    Answers,
    assert_never_crashes,
    assert_threads_agree,
    assert_within,
)
from tests.runtime.conv_bf16x2_cases import conv_bf16x2_cases
from tests.runtime.conv_int16_cases import run_of_case
from tests.runtime.shapes import often
from tracea_graph.kernels.cpu.isa_levels import host_levels

LEVELS = host_levels("bf16")
CASES = {case.name: case for case in conv_bf16x2_cases()}
CALLS = (
    "conv_bf16x2",
    "round_images_bf16x2",
    "reorder_to_nchw16c",
    "reorder_to_nchw",
    "elementwise",
    "zero_pad",
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(CASES.values(), CALLS, (), LEVELS, tmp_path_factory)


@pytest.mark.parametrize("level", often("bf16"))
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, level: str, answers: Answers) -> None:
    """A number that is not one reaches the windows it is in, and no others."""
    case = CASES[name]
    assert_within(case, answers(level)[name], case.tolerance)


def test_one_thread_gives_the_bits_of_two(answers: Answers) -> None:
    assert_threads_agree(answers)


def test_mutated_plans_never_crash(answers: Answers, tmp_path: Path) -> None:
    case = conv(40, 40, window(3, pads=1), "bf16x2", 1, ("n", 40, "h", "w"), epilogue=SILU_ADD)
    one = run_of_case("bf16x2", case, {"n": 2, "h": 8, "w": 13})
    assert_never_crashes(one, answers.library, tmp_path)
