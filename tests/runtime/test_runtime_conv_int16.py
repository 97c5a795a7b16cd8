"""Convolutions in integers at every level of this machine, against fp64 that rounds as they do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.convolutions import SILU_ADD, conv, either, window
from tests.runtime.answers import Answers, assert_never_crashes, assert_threads_agree
from tests.runtime.conv_int16_cases import conv_int16_cases, run_of_case
from tests.runtime.shapes import often
from tracea_graph.kernels.cpu.isa_levels import host_levels

LEVELS = host_levels("int16")
CASES = {case.name: case for case in conv_int16_cases()}
CALLS = (
    "conv_int16", "winograd_int16", "conv_dispatch_int16", "round_images_int16",
    "reorder_to_nchw16c",
    "reorder_to_nchw", "elementwise", "zero_pad",
)  # fmt: skip
TRANSFORMED = 2.0**-9
"""Of max|y|: Winograd's transform of an image is rounded to a step four times as large."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(CASES.values(), CALLS, (), LEVELS, tmp_path_factory)


@pytest.mark.parametrize("level", often("int16"))
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, level: str, answers: Answers) -> None:
    answer, case = answers(level)[name], CASES[name]
    assert isinstance(answer, tuple), answer
    (wanted,), (got,) = case.expected, answer
    assert got.shape == wanted.shape
    spoilt = np.isnan(wanted)
    assert np.isnan(got[spoilt]).all()
    limit = TRANSFORMED if name.startswith("winograd") else case.tolerance
    for image, want in zip(
        got[~spoilt.any((1, 2, 3))], wanted[~spoilt.any((1, 2, 3))], strict=True
    ):
        assert np.abs(image - want).max(initial=0) <= limit * max(
            np.abs(want).max(initial=0), 1e-3
        )


def test_one_thread_gives_the_bits_of_two(answers: Answers) -> None:
    assert_threads_agree(answers)


@pytest.mark.parametrize("name", ["int16", "winograd2_int16", "either"])
def test_mutated_plans_never_crash(name: str, answers: Answers, tmp_path: Path) -> None:
    layout = "winograd2_int16" if name == "either" else name
    case = conv(40, 40, window(3, pads=1), layout, 1, ("n", 40, "h", "w"), epilogue=SILU_ADD)
    size = {"n": 2, "h": 3, "w": 4} if name == "either" else {"n": 2, "h": 8, "w": 13}
    one = run_of_case(name, either(case) if name == "either" else case, size)
    assert_never_crashes(one, answers.library, tmp_path)
