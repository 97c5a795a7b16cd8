"""Maxima over windows that hold NaN, at every level of instructions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.runtime.shapes import by_precision, named_errors
from tests.runtime.support import Case, normal, operator_case, spec
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.pool import PoolParams

WINDOWS = {
    "3x3": ConvWindow((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "3x3 by two": ConvWindow((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    "2x2": ConvWindow((2, 2), (2, 2), (1, 1), (0, 0, 0, 0)),
    "all": None,
}


def cases() -> Iterator[Case]:
    for name, window in WINDOWS.items():
        for channels, share in ((16, 0.1), (35, 0.9), (3, 1.0)):
            x = normal(2, channels, 9, 13, seed=channels)
            rng = np.random.default_rng(channels)
            x[rng.random(x.shape) < 0.1] = -np.inf
            x[rng.random(x.shape) < share] = np.nan
            yield operator_case(
                f"{name}_{channels}", "FusedPool", PoolParams("max", window),
                [spec("n", channels, "h", "w")], [x],
            )  # fmt: skip


def test_equals_reference(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = list(cases())
    assert sum(np.isnan(case.expected[0]).any() for case in made) >= len(WINDOWS)
    (answers, _) = by_precision(made, lambda case: False, tmp_path_factory, every_level=True)
    wrong = named_errors(answers, lambda case: 0.0)
    assert not wrong, "\n".join(wrong)
