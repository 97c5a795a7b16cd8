"""Searches replayed on stored measurements."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.samplers import TABLES, Stored, random, ranked, trials_needed, with_optuna
from models.tuning_bounds import bound
from tracea_graph.commands.tune import TunedModel
from tracea_graph.kernels.cpu.schedule import GEMM_SCHEDULES
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.tuning import Case, TuningResult
from tracea_graph.tuning.candidate_sampling import SEEDS, optuna_sampler

AXES = ["nr_panels", "mc", "nc", "prefetch"]
ROWS = [[panels, mc, nc, 1] for panels in (0, 1, 2) for mc in (32, 64, 96) for nc in range(8)]


def table(best: int) -> Stored:
    """Return a table of 72 candidates, of which one is twice as fast as the default."""
    us = [10.0 + i % 7 for i in range(len(ROWS))]
    us[best] = 5.0
    stored: dict[str, Any] = {
        "problem": "gemm 8x8", "rows": 128, "level": "avx512", "default": 10.0, "axes": AXES,
        "candidates": ROWS, "us": us,
    }  # fmt: skip
    return Stored.of(stored)


def test_trials_are_counted_until_the_best_is_measured() -> None:
    assert max(table(40).speed) == 2.0
    assert trials_needed(table(40), ranked, 0.02, 160, 0) == 41
    assert trials_needed(table(40), ranked, 0.02, 30, 0) == 30, "not found within the limit"
    assert trials_needed(table(3), random, 0.02, 160, 0) == 4, "the first are the cost model's"
    found = [trials_needed(table(40), random, 0.02, 160, seed) for seed in range(8)]
    assert len(set(found)) > 1 and all(SEEDS < n <= len(ROWS) for n in found)


def test_the_tuner_s_sampler_is_replayed() -> None:
    search = with_optuna(lambda table, seed: optuna_sampler(seed))
    assert trials_needed(table(2), search, 0.02, 160, 0) == 3
    assert SEEDS < trials_needed(table(40), search, 0.02, 72, 0) <= 72


def test_stored_tables_are_of_whole_spaces() -> None:
    tables = [Stored.of(stored) for stored in json.loads(TABLES.read_text())]
    assert len(tables) >= 5 and len({t.name for t in tables}) == len(tables)
    for stored in tables:
        assert len(set(stored.candidates)) == len(stored.candidates) > 64
        assert 0.9 < max(stored.speed) < 2.0 and min(stored.speed) > 0


def test_the_bound_is_of_recorded_calls() -> None:
    cases = [Case(GemmProblem(64, n), 128) for n in (64, 96)]
    tuned = [TuningResult(c, GEMM_SCHEDULES[2], 1.0, "measured", share=0.4) for c in cases]
    model = TunedModel(TABLES, tuple(tuned), dict.fromkeys(cases, 1))
    best = {(str(cases[0].problem), 128): 1.25}
    saved, share = bound(model, best)
    assert saved == pytest.approx(0.4 * 0.2) and share == 0.4
