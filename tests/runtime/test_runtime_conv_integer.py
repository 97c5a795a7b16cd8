"""Convolutions of bytes at every level of this machine give the bits of exact sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.interpreter import check_lifetimes, run
from tests.runtime.answers import Answers, assert_never_crashes, assert_threads_agree
from tests.runtime.conv_integer_cases import conv_integer_cases
from tests.runtime.shapes import often
from tracea_graph.kernels.cpu.isa_levels import host_levels

LEVELS = host_levels("int8")
CASES = {case.name: case for case in conv_integer_cases()}
CALLS = ("conv_nhwc_int8", "gemm_int8", "sum_rows", "pool_nhwc_int8")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(CASES.values(), CALLS, (), LEVELS, tmp_path_factory)


@pytest.mark.parametrize("level", often("int8"))
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, level: str, answers: Answers) -> None:
    answer, case = answers(level)[name], CASES[name]
    assert isinstance(answer, tuple), answer
    for wanted, got in zip(case.expected, answer, strict=True):
        np.testing.assert_array_equal(got, wanted.astype(got.dtype))


@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_agrees(name: str) -> None:
    case = CASES[name]
    check_lifetimes(case.program)
    half = bool(case.program.calls[-1].chain)  # it rounds other sums, in float64
    for wanted, got in zip(case.expected, run(case.program, case.feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1.01 * half)


def test_one_thread_gives_the_bits_of_two(answers: Answers) -> None:
    assert_threads_agree(answers)


@pytest.mark.parametrize("name", ["conv_strided", "conv_groups_zeros", "pool_u8"])
def test_mutated_plans_never_crash(name: str, answers: Answers, tmp_path: Path) -> None:
    assert_never_crashes(CASES[name], answers.library, tmp_path)
