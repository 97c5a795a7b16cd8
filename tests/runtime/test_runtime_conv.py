"""Convolutions and pooling under every instruction set this machine has, against NumPy in fp64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.runtime.answers import Answers, assert_never_crashes, assert_threads_agree
from tests.runtime.conv_cases import (
    CHAINS,
    all_conv_cases,
    channel_shuffle,
    conv,
    depthwise,
    plain,
    pool,
    resize,
    stem,
    turn,
)
from tests.runtime.support import Case, model, run_cases, run_worker
from tracea_graph.config import TOLERANCE
from tracea_graph.errors import GraphError
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.plan_encoding import decode, encode
from tracea_graph.kernels.program import View
from tracea_graph.toolchain import Library

CASES = {case.name: case for case in all_conv_cases()}
CALLS = (
    "conv",
    "depthwise",
    "winograd",
    "conv_dispatch",
    "pool",
    "resize",
    "channel_shuffle",
    "reorder_to_nchw16c",
    "conv_plain",
)
FAST_MATH = 5e-5
"""Tolerance of Winograd's F(4 x 4, 3 x 3), as a share of max|y|."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(CASES.values(), CALLS, CHAINS, host_levels(), tmp_path_factory)


@pytest.fixture(scope="module")
def library(answers: Answers) -> Library:
    return answers.library


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, isa: str, answers: Answers) -> None:
    answer, (wanted,) = answers(isa)[name], CASES[name].expected
    assert isinstance(answer, tuple), answer
    (got,) = answer
    assert got.shape == wanted.shape
    tolerance = FAST_MATH if name.startswith(("winograd4", "either4")) else TOLERANCE.kernel_f32
    asked = ~np.isnan(wanted)  # NaN stands for anything
    limit = tolerance * max(np.abs(wanted[asked]).max(initial=0), 1e-3)
    assert np.abs(got[asked] - wanted[asked]).max(initial=0) <= limit
    assert (got[wanted == 0] == 0).all()  # halos


def test_one_thread_gives_the_bits_of_two(answers: Answers) -> None:
    assert_threads_agree(answers)


def empty(case: Case) -> Case:
    """The case with no image."""
    n = case.feeds[0].shape[0]
    feeds = tuple(x[:0] if x.shape[0] == n and i != 1 else x for i, x in enumerate(case.feeds))
    kept = tuple(
        y if spec.shape and spec.shape[0] == "n" else x
        for x, y, spec in zip(case.feeds, feeds, case.program.inputs, strict=True)
    )
    return replace(case, name="empty", feeds=kept, expected=(case.expected[0][:0],))


def test_no_image_is_no_work(library: Library, tmp_path: Path) -> None:
    case = empty(conv(24, 33, (6, 7), (3, 3), pad=(1, 1, 1, 1), chain=CHAINS[0]))
    found = run_cases([case], library.path, library.domain, tmp_path, host_levels()[-1])
    assert found["empty"][0].shape == case.expected[0].shape


CONV = conv(40, 33, (6, 7), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), halo=(1, 1, 1, 1), add=True)

EITHER = conv(24, 40, (6, 6), (3, 3), pad=(1, 1, 1, 1), m=4, either=True, add=True)


def changed(
    case: Case, view: int, attributes: dict[str, Any] | None = None, **view_change: Any
) -> Case:
    """The case with one view of its call, or some attributes, replaced."""
    (call,) = case.program.calls
    views = list(call.views)
    old = views[view]
    assert isinstance(old, View)
    views[view] = replace(old, **view_change)
    call = replace(call, views=tuple(views)).having(**(attributes or {}))
    return replace(case, program=replace(case.program, calls=(call,)))


POOL, RESIZE = pool(0, 16, (6, 6), (3, 3)), resize("asymmetric", 16, (6, 6), (3, 9))
DEAL, DEPTHWISE = channel_shuffle((20, 12), 2, (0, 16), (5, 7)), depthwise(16, (6, 6), (3, 3))
DO_NOT_FIT = (
    (changed(CONV, 0, dims=("n", 3, 7, 9, 16)), "do not fit"),  # too few rows for the kernel
    (changed(CONV, 0, dims=("n", 3, 9, 9, 16)), "reaches outside its buffer"),
    (changed(CONV, 0, dims=("n", 2, 8, 9, 16)), "do not fit"),  # blocks of x and w
    (changed(CONV, 0, strides=(3456, 1152, 144, 8, 1)), "do not fit"),
    (changed(CONV, 3, dims=("n", 3, 6, 6, 16)), "do not fit"),  # the residual
    (changed(CONV, 0, {"halo": (8, 1, 8, 1)}), "do not fit"),  # a halo larger than the result
    (changed(CONV, 0, {"strides": (2, 1)}), "do not fit"),
    (changed(CONV, 0, {"groups": 2}), "do not fit"),  # they do not divide the blocks
    (changed(CONV, 2, dims=(47,)), "do not fit"),  # the bias
    (changed(EITHER, 0, dims=(3, 2, 3, 2, 16, 16)), "do not fit"),
    (changed(EITHER, 1, dims=("n", 2, 7, 8, 16)), "do not fit"),
    (changed(EITHER, 3, dims=(40,)), "do not fit"),
    (changed(DEPTHWISE, 0, {"dilations": (3, 1)}), "do not fit"),
    (changed(RESIZE, 0, dims=("n", 2, 6, 6, 16)), "outside"),
    (changed(DEAL, 0, {"groups": 3}), "do not fit"),
    (changed(DEAL, 0, {"first": 17}), "do not fit"),
    (changed(DEAL, 0, {"part_channels": (20, 30)}), "do not fit"),
    (changed(stem(3, 16, (6, 6), (3, 3)), 0, dims=("n", 2, 6, 6)), "do not fit"),
    (changed(plain(4, 6, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1)), 1, dims=(6, 4, 2, 3)), "fit"),
)

OUT_OF_RANGE = (
    (CONV, {"strides": (2, 1)}, 0),
    (CONV, {"ic_tail": 7}, 17),
    (conv(16, 16, (6, 6), (3, 3), pad=(1, 1, 1, 1), m=2), {"tile": 4}, 3),
    (pool(1, 16, (6, 6), (3, 3)), {"kind": "max"}, 3),
    (RESIZE, {"coordinates": "half_pixel"}, 5),
    (DEAL, {"halo": (1, 0, 0, 0)}, -1),
    (DEAL, {"part_channels": (4, 12)}, 0),
)
"""A case, another value of one of its attributes, and a number the attribute cannot be."""


@pytest.mark.parametrize(("case", "other", "number"), OUT_OF_RANGE)
def test_attributes_out_of_range_are_refused(
    case: Case, other: dict[str, Any], number: int, library: Library, tmp_path: Path
) -> None:
    """Neither is such a plan written, nor does the library take it."""
    plan = list(encode(case.program))
    changes = zip(plan, encode(changed(case, 0, other).program), strict=True)
    (at,) = (i for i, (a, b) in enumerate(changes) if a != b)
    plan[at] = number
    with pytest.raises(GraphError):
        decode(plan)
    onnx.save(model(case.program, library.domain, plan), tmp_path / "model.onnx")
    np.savez(tmp_path / "feeds.npz", **{f"x{i}": x for i, x in enumerate(case.feeds)})
    (text,) = run_worker({"task": "run", "library": str(library.path), "jobs": [str(tmp_path)]})
    assert "out of range" in text or "winograd" in text


def test_calls_that_do_not_fit_are_refused(library: Library, tmp_path: Path) -> None:
    cases = [replace(case, name=f"{i}") for i, (case, _) in enumerate(DO_NOT_FIT)]
    found = run_cases(cases, library.path, library.domain, tmp_path, host_levels()[-1])
    for i, (_, words) in enumerate(DO_NOT_FIT):
        assert words in found[f"{i}"], i


MUTATED = (
    CONV,
    conv(24, 33, (7, 7), (3, 3), pad=(1, 1, 1, 1), m=2, chain=CHAINS[2]),
    EITHER,
    depthwise(33, (7, 7), (3, 3), pad=(1, 1, 1, 1), chain=CHAINS[3], halo=(1, 1, 1, 1)),
    stem(3, 24, (9, 9), (3, 3), (2, 2), pad=(1, 1, 1, 1)),
    pool(1, 24, (7, 9), (3, 3), (2, 2), pad=(1, 1, 1, 1), halo=(1, 1, 1, 1)),
    resize("half_pixel", 24, (7, 9), scales=(2.0, 1.5), halo=(1, 1, 1, 1)),
    channel_shuffle((20, 12), 2, (3, 29), (5, 7), halo=(1, 2, 3, 1)),
    turn(24, (3, 17), nhwc=False, back=True, halo=(1, 2, 3, 1)),
    plain(4, 6, (5, 9), (3, 2), (1, 2), (1, 1), (1, 1), groups=2),
)


@pytest.mark.parametrize("case", MUTATED, ids=lambda case: case.name.split("_")[0])
def test_mutated_plans_never_crash(case: Case, library: Library, tmp_path: Path) -> None:
    assert_never_crashes(case, library, tmp_path)
