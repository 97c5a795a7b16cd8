"""What tests of many shapes share: levels of a list of cases, and which of them are off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.runtime.answers import Answers
from tests.runtime.support import Case
from tracea_graph.kernels.cpu.isa_levels import host_levels

__all__ = ["by_precision", "named_errors", "often"]


def often(precision: str) -> list[Any]:
    """This machine's levels for tests of few shapes: AVX2's and the highest, others in slow ones.

    Those compute numbers of few bits as AVX2 does, in vectors of other lengths.
    """
    found = host_levels(precision)
    kept = ("avx2", found[-1])
    return [pytest.param(n, marks=[pytest.mark.slow] * (n not in kept)) for n in found]


def by_precision(
    cases: Sequence[Case],
    is_low: Callable[[Case], bool],
    folders: pytest.TempPathFactory,
    *,
    every_level: bool = False,
) -> Iterator[Answers]:
    """The cases in float32, and those in bf16 and integers.

    They run at the highest level of their precision unless ``every_level`` is asked for: kernels
    have tests of fewer shapes at all levels.
    """
    low = [case for case in cases if is_low(case)]
    high = [case for case in cases if not is_low(case)]
    levels = host_levels(), host_levels("bf16")
    for some, of_them in zip((high, low), levels, strict=True):
        calls = {call.name for case in some for call in case.program.calls}
        asked = of_them if every_level else of_them[-1:]
        yield Answers(some, calls, (), asked, folders)


def named_errors(answers: Answers, limit: Callable[[Case], float]) -> list[str]:
    """Every result at every level that is off by more than its limit, of ``max|y|``."""
    wrong = []
    for level in answers.levels:
        found = answers(level)
        for name, case in answers.cases.items():
            got = found[name]
            if isinstance(got, str):
                wrong.append(f"{level} {name}: {got}")
                continue
            for y, wanted in zip(got, case.expected, strict=True):
                if y.shape != wanted.shape:
                    wrong.append(f"{level} {name}: {y.shape} instead of {wanted.shape}")
                    continue
                lost = np.isnan(wanted)
                if not np.array_equal(np.isnan(y), lost):
                    wrong.append(f"{level} {name}: NaN elsewhere")
                asked = ~lost & (y != wanted)  # infinities are equal or have no difference
                largest = max(np.abs(wanted[np.isfinite(wanted)]).max(initial=0), 1e-3)
                error = np.abs(y[asked] - wanted[asked]).max(initial=0) / largest
                if not error <= limit(case):
                    wrong.append(f"{level} {name}: {error:.1e}")
    return wrong
