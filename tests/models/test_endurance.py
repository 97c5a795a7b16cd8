"""What ``python -m models.endurance`` takes for a difference."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models.endurance import Checked
from models.versions_in_turn import TimedVersion

INPUTS = [{"x": np.zeros(2, np.float32)}, {"x": np.ones(2, np.float32)}]


def session(change: float) -> Any:
    """Return a session that adds to its input."""
    return SimpleNamespace(run=lambda _, feed: [feed["x"] + np.float32(change)])


@pytest.mark.parametrize(
    ("expected", "got", "differs"),
    [(1.0, 1.0, False), (1.0, 1.0000001, True), (0.0, -0.0, True), (np.nan, np.nan, False)],
)
def test_bits_are_compared_of_the_same_input(expected: float, got: float, differs: bool) -> None:
    """Zeros of other signs differ; equal NaNs do not."""
    values = [np.full(2, v, np.float32) for v in (5.0, expected)]
    model = Checked(TimedVersion("net", Path("net.onnx")), INPUTS, [[v] for v in values])
    same = SimpleNamespace(run=lambda _, feed: [np.full(2, got, np.float32)])
    assert model.differs(same, 1) is differs
    assert model.differs(session(4.0), 0), "zeros and four are no fives"
