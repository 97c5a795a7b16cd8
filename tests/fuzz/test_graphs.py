"""Graphs that hypothesis draws: nearly all are rewritten, and every one answers as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.running import run_many, write_steady

pytestmark = pytest.mark.compiler

REWRITTEN, UNSTEADY = 0.9, 0.1
"""The smallest share of models with a kernel; the largest that have no answer to be equal to."""


@pytest.mark.parametrize(
    ("count", "seed"),
    [(210, 1), *(pytest.param(300, seed, marks=pytest.mark.slow) for seed in range(2, 22))],
)
def test_drawn_graphs_answer_as_before(count: int, seed: int, tmp_path: Path) -> None:
    paths, unsteady = write_steady(tmp_path / "in", count, seed)
    ran = run_many(paths, tmp_path / "out")
    troubles = [f"{r.path.name}: {r.trouble}" for r in ran if r.trouble]
    assert not troubles, "\n".join(troubles)
    drawn = len(paths) + unsteady
    assert drawn >= 0.9 * count and len(ran) >= (1 - UNSTEADY) * drawn
    assert sum(r.rewritten for r in ran) >= REWRITTEN * len(ran)
