"""Either way by the size of an image: the bits of the way taken, at sizes that take each."""

from __future__ import annotations

import numpy as np
import pytest

from tests.convolutions import ADD_RELU, Case, conv, either, window
from tests.runtime.answers import Answers
from tests.runtime.conv_int16_cases import run_of_case
from tests.runtime.support import Case as Run
from tracea_graph.kernels.cpu.filters import LAYOUTS
from tracea_graph.kernels.cpu.isa_levels import host_levels

DIRECT = {name: layout.direct.name for name, layout in LAYOUTS.items() if layout.direct}
LEVEL = host_levels("int16")[-1]
SIZES = {
    "directly": ((1, 1), (3, 3), (2, 5)),
    "transformed": ((16, 16), (28, 28), (17, 40)),
}


def ways(layout: str, size: tuple[int, int]) -> dict[str, Run]:
    """One convolution by either way, and by each."""

    def case(kept: str) -> Case:
        return conv(64, 72, window(3, pads=1), kept, 1, ("n", 72, "h", "w"), epilogue=ADD_RELU)

    made = {"either": either(case(layout)), "transformed": case(layout),
            "directly": case(DIRECT[layout])}  # fmt: skip
    sizes = dict(zip("nhw", (2, *size), strict=True))
    return {way: run_of_case(f"{layout} {size} {way}", one, sizes) for way, one in made.items()}


CASES = {
    (layout, size): ways(layout, size)
    for layout in DIRECT
    for sizes in SIZES.values()
    for size in sizes
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    runs = [run for found in CASES.values() for run in found.values()]
    calls = {call.name for run in runs for call in run.program.calls}
    return Answers(runs, calls, (), [LEVEL], tmp_path_factory)


@pytest.mark.parametrize("layout", DIRECT)
@pytest.mark.parametrize("way", SIZES)
def test_the_way_taken(layout: str, way: str, answers: Answers) -> None:
    (other,) = SIZES.keys() - {way}
    for size in SIZES[way]:
        runs = CASES[layout, size]
        got, taken, left = (answers(LEVEL)[runs[name].name][0] for name in ("either", way, other))
        np.testing.assert_array_equal(got, taken, err_msg=f"{layout} {size}")
        assert (got != left).any(), size
