"""Graphs that hypothesis draws: nearly all are rewritten, and every one answers as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.running import Ran, run_many, write_steady

pytestmark = pytest.mark.compiler

REWRITTEN, UNSTEADY = 0.9, 0.1
"""The smallest share of models with a kernel; the largest that have no answer to be equal to."""


@pytest.mark.parametrize(
    ("count", "seeds"),
    [(220, (1,)), pytest.param(300, range(2, 22), marks=pytest.mark.slow)],
    ids=["sample", "many"],
)
def test_drawn_graphs_answer_as_before(count: int, seeds: tuple[int, ...], tmp_path: Path) -> None:
    ran: list[Ran] = []
    drawn = 0
    for seed in seeds:
        folder = tmp_path / str(seed)
        paths, unsteady = write_steady(folder / "in", count, seed)
        drawn += len(paths) + unsteady
        ran += run_many(paths, folder / "out")
    assert not {r.path.name: r.trouble for r in ran if r.trouble}
    assert drawn >= 0.9 * count * len(seeds) and len(ran) >= (1 - UNSTEADY) * drawn
    assert sum(r.rewritten for r in ran) >= REWRITTEN * len(ran)
