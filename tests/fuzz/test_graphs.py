"""Graphs that hypothesis draws: nearly all are rewritten, and every one answers as before.

A third of them multiply integers, hold numbers in half precision or branch.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.fuzz.running import run_many, write_steady
from tests.fuzz.shares import FEWEST, KINDS, held_by, share

pytestmark = pytest.mark.compiler

FEW, MANY = 24, 250
"""Graphs of the default seed; of each slow one."""
REWRITTEN, UNSTEADY = 0.9, 0.25
"""The smallest share of models with a kernel; the largest that have no answer to be equal to."""


def test_drawn_graphs_answer_as_before(fuzz_seed: int, tmp_path: Path) -> None:
    count = MANY if fuzz_seed else FEW
    paths, unsteady = write_steady(tmp_path / "in", count, fuzz_seed)
    models = [onnx.load(path) for path in paths]
    assert share(models) >= FEWEST and set(KINDS) <= set().union(*map(held_by, models))
    ran = run_many(paths, tmp_path / "out", every_level=fuzz_seed > 0)
    troubles = [f"{r.path.name}: {r.trouble}" for r in ran if r.trouble]
    assert not troubles, "\n".join(troubles)
    assert len(ran) == count and unsteady <= UNSTEADY * (count + unsteady)
    assert sum(r.rewritten for r in ran) >= REWRITTEN * count
