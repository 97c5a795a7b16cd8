"""Convolutions in bf16 at every level this machine has, against fp64 that rounds as they do."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from runtime.blocked import SILU
from runtime.conv_bf16_cases import CHAINS, all_bf16_cases
from runtime.conv_calls import conv, depthwise
from runtime.support import Case, model, mutate, run_cases, run_worker

from tracea_graph.build import Library, build_library
from tracea_graph.config import TOLERANCE
from tracea_graph.hardware import profile_cpu
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu import KERNELS_OF
from tracea_graph.kernels.plan import encode

LEVELS = profile_cpu().levels("bf16")
CASES = {case.name: case for case in all_bf16_cases()}
CALLS = ("conv_bf16", "depthwise_bf16", "winograd_bf16")
ROUNDED = 2.0**-8
"""A result in bf16 may fall to the other side of a number half way."""
TRANSFORMED = 2.0**-8
"""So may what Winograd's algorithm multiplies."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    types = sorted({case.type for case in CASES.values()}, key=lambda t: t.name)
    kernels = sorted({kernel for call in CALLS for kernel in KERNELS_OF[call]})
    out = tmp_path_factory.mktemp("library") / "conv_bf16.so"
    return build_library(types, kernels, CHAINS, LEVELS, out)


@pytest.fixture(scope="module")
def answers(
    library: Library, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], dict[str, Any]]:
    """Every case's outputs at one level and with some threads."""
    known: dict[tuple[str, int], dict[str, Any]] = {}

    def of(level: str, threads: int) -> dict[str, Any]:
        if (level, threads) not in known:
            folder = tmp_path_factory.mktemp(level)
            known[level, threads] = run_cases(
                list(CASES.values()), library.path, library.domain, folder, level, threads
            )
        return known[level, threads]

    return of


def numbers(got: np.ndarray) -> np.ndarray:
    """An output as float32; bf16 comes as bits."""
    if got.dtype == np.float32:
        return got
    return (got.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, level: str, answers: Callable[[str, int], dict[str, Any]]) -> None:
    answer, case = answers(level, 2)[name], CASES[name]
    assert isinstance(answer, tuple), answer
    (wanted,), got = case.expected, numbers(answer[0])
    assert got.shape == wanted.shape
    asked = ~np.isnan(wanted)
    tolerance = TOLERANCE.kernel_f32
    if case.program.outputs[0].dtype is DType.BF16:
        tolerance = ROUNDED
    elif name.startswith("winograd"):
        tolerance = TRANSFORMED
    limit = tolerance * max(np.abs(wanted[asked]).max(initial=0), 1e-3)
    assert np.abs(got[asked] - wanted[asked]).max(initial=0) <= limit
    assert (got[wanted == 0] == 0).all()  # halos


def test_one_thread_gives_the_bits_of_two(answers: Callable[[str, int], dict[str, Any]]) -> None:
    one, two = answers(LEVELS[-1], 1), answers(LEVELS[-1], 2)
    for name, case in CASES.items():
        asked = ~np.isnan(case.expected[0])
        np.testing.assert_array_equal(one[name][0][asked], two[name][0][asked], err_msg=name)


MUTATED = (
    conv(24, 33, (7, 7), (3, 3), pad=(1, 1, 1, 1), halo=(1, 1, 1, 1), add=True, half=True,
         stores=DType.BF16),
    conv(24, 33, (7, 7), (3, 3), pad=(1, 1, 1, 1), m=2, chain=SILU, half=True,
         stores=DType.BF16),
    depthwise(33, (7, 7), (3, 3), pad=(1, 1, 1, 1), chain=SILU, halo=(1, 1, 1, 1), half=True,
              stores=DType.BF16),
)  # fmt: skip


@pytest.mark.parametrize("case", MUTATED, ids=lambda case: case.name.split("_")[0])
def test_mutated_plans_never_crash(case: Case, library: Library, tmp_path: Path) -> None:
    chance, count = random.Random(case.name), 100
    for i in range(count):
        plan = mutate(encode(case.program), chance)
        onnx.save(model(case.program, library.domain, plan), tmp_path / f"{i:03}.onnx")
    np.savez(tmp_path / "feeds.npz", **{f"x{i}": x for i, x in enumerate(case.feeds)})
    job = {"task": "mutants", "library": str(library.path), "folder": str(tmp_path)}
    refused, ran = run_worker(job)
    assert refused + ran == count
    assert refused > count // 3
