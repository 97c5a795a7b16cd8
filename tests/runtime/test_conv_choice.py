"""Either way by the size of an image: the bits of the way taken, at sizes that take each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runtime.conv_calls import conv
from runtime.conv_cases import same
from runtime.support import Case, run_cases

from tracea_graph.build import Library, build_library
from tracea_graph.hardware import profile_cpu
from tracea_graph.kernels.cpu import KERNELS_OF

LEVEL = profile_cpu().levels("bf16")[-1]
KINDS = {"float32, 2 x 2": (2, False), "float32, 4 x 4": (4, False), "bf16": (2, True)}
SIZES = {"directly": ((1, 1), (3, 3), (2, 5)), "transformed": ((16, 16), (28, 28), (17, 40))}


def ways(m: int, half: bool, size: tuple[int, int]) -> dict[str, Case]:
    """One convolution by either way, and by each."""

    def case(**more: int | bool) -> Case:
        return conv(64, 72, size, (3, 3), pad=same(3), half=half, batch=2, add=True, **more)

    return {
        "either": case(m=m, either=True), "directly": case(), "transformed": case(m=m)
    }  # fmt: skip


CASES = {
    (kind, size): ways(*how, size)
    for kind, how in KINDS.items()
    for sizes in SIZES.values()
    for size in sizes
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    cases = [case for found in CASES.values() for case in found.values()]
    types = sorted({case.type for case in cases}, key=lambda t: t.name)
    calls = {call.kernel for case in cases for call in case.program.calls}
    kernels = sorted({kernel for call in calls for kernel in KERNELS_OF[call]})
    out = tmp_path_factory.mktemp("library") / "choice.so"
    return build_library(types, kernels, (), [LEVEL], out, quick=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", SIZES)
def test_the_way_that_is_taken(kind: str, way: str, library: Library, tmp_path: Path) -> None:
    other = ({*SIZES} - {way}).pop()
    for size in SIZES[way]:
        cases = CASES[kind, size]
        found = run_cases(list(cases.values()), library.path, library.domain, tmp_path, LEVEL)
        got = {name: found[case.name][0] for name, case in cases.items()}
        np.testing.assert_array_equal(got["either"], got[way], err_msg=str(size))
        assert (got["either"] != got[other]).any(), size
