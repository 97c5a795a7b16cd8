"""Every host loop, under the highest instruction set this machine has, against NumPy in fp64.

Lower levels run in slow tests: their kernels have tests of their own.  Those that have none run
here at every level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.runtime.cases import all_cases
from tests.runtime.support import Case
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.isa_levels import host_levels

UNTESTED = frozenset(("recurrent",))
"""Kernels that no other test calls."""


def cases_of_levels() -> Iterator[Any]:
    *lower, highest = host_levels()
    for case in all_cases():
        yield pytest.param(highest, case.name)
        called = {kernel for call in case.program.calls for kernel in CALLS[call.name].needs}
        marks = [] if called & UNTESTED else [pytest.mark.slow]
        yield from (pytest.param(level, case.name, marks=marks) for level in lower)


@pytest.mark.parametrize(("level", "name"), list(cases_of_levels()))
def test_case(
    level: str, name: str, cases: dict[str, Case], answers: Callable[[str], dict[str, Any]]
) -> None:
    case, answer = cases[name], answers(level)[name]
    if case.error:
        assert case.error in answer
        return
    assert isinstance(answer, tuple), answer
    for got, wanted in zip(answer, case.expected, strict=True):
        assert got.shape == wanted.shape
        if wanted.dtype.name == "bfloat16":
            got, wanted = got.view(wanted.dtype).astype(np.float32), wanted.astype(np.float32)
        if wanted.dtype == np.bool_:
            np.testing.assert_array_equal(got, wanted)
            continue
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(got[~finite], wanted[~finite])
        got, wanted = got[finite], wanted[finite]
        limit = case.tolerance * max(np.abs(wanted).max(initial=0), 1e-3)
        assert np.abs(got - wanted).max(initial=0) <= limit
