"""Every host loop, under every instruction set this machine has, against NumPy in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.runtime.cases import all_cases
from tests.runtime.support import Case


@pytest.mark.parametrize("name", [case.name for case in all_cases()])
def test_case(
    name: str, isa: str, cases: dict[str, Case], answers: Callable[[str], dict[str, Any]]
) -> None:
    case, answer = cases[name], answers(isa)[name]
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
