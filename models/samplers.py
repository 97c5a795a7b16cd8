"""Compare samplers on stored measurements: ``python -m models.samplers [TABLES.json]``.

Replays searches on the tables of ``models.tuning_tables`` and prints, for each table and sampler,
the trials until a candidate within ``--close`` of the best was measured: medians over ``--seeds``
seeds, at most ``--trials``.  Every sampler begins with the same candidates of the cost model.

* ``ranked``: the order of the cost model
* ``random``: any candidate that was not measured yet
* ``tpe``: the tuner's sampler, optuna's tree-structured Parzen estimator
* ``gp-ucb``: a Gaussian process with upper confidence bounds; needs scikit-learn
* ``optuna-gp``: optuna's Gaussian process with log expected improvement; needs scipy and torch
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from rich.console import Console
from rich.table import Table

from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.program import Schedule
from tracea_graph.tuning.candidate_sampling import (
    SEEDS,
    optuna_params,
    optuna_sampler,
    optuna_space,
    sample_candidates,
)

TABLES = Path(__file__).with_name("tuning_tables.json")
_LIMITS = {True: {"max_rows": 1 << 30}, False: {"max_images": 1 << 30}}


@dataclass(frozen=True)
class Stored:
    """One table: the speed of every candidate over the default's, in the cost model's order."""

    name: str
    candidates: tuple[Schedule, ...]
    speed: tuple[float, ...]

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Stored:
        """Read a table of ``models.tuning_tables``."""
        limits = _LIMITS["nr_panels" in table["axes"]]
        rows = (dict(zip(table["axes"], values, strict=True)) for values in table["candidates"])
        found = tuple(SCHEDULE_SPACE.schedule_from_json({**limits, **row}) for row in rows)
        name = f"{table['problem']}, {table['rows']}"
        return cls(name, found, tuple(table["default"] / us for us in table["us"]))

    def near(self, close: float) -> set[Schedule]:
        """Return the candidates whose time is within a share of the best one's."""
        enough = max(self.speed) * (1 - close)
        pairs = zip(self.candidates, self.speed, strict=True)
        return {schedule for schedule, speed in pairs if speed >= enough}


Search = Callable[[Stored, int, int, Callable[[Schedule], float | None]], None]
"""``search(table, trials, seed, score)`` measures candidates until a score is None."""


def ranked(table: Stored, trials: int, seed: int, score: Callable[[Schedule], Any]) -> None:
    """Measure in the order of the cost model."""
    for schedule in table.candidates[:trials]:
        if score(schedule) is None:
            return


def random(table: Stored, trials: int, seed: int, score: Callable[[Schedule], Any]) -> None:
    """Measure the first candidates, then others at random."""
    rest = list(table.candidates[SEEDS:])
    np.random.default_rng(seed).shuffle(rest)
    for schedule in [*table.candidates[:SEEDS], *rest][:trials]:
        if score(schedule) is None:
            return


def with_optuna(make: Callable[[Stored, int], optuna.samplers.BaseSampler]) -> Search:
    """Return the search that the tuner does, with a sampler for optuna."""

    def search(table: Stored, trials: int, seed: int, score: Callable[[Schedule], Any]) -> None:
        sample_candidates(table.candidates, score, trials, seed, make(table, seed))

    return search


def _gaussian_process(table: Stored, seed: int) -> optuna.samplers.BaseSampler:
    from models.gaussian_process import GaussianProcessSampler  # needs scikit-learn

    params = [optuna_params(candidate) for candidate in table.candidates]
    return GaussianProcessSampler(params, optuna_space(table.candidates), seed)


def searches() -> dict[str, Search]:
    """Return the samplers whose packages are installed."""
    tpe = with_optuna(lambda t, s: optuna_sampler(s))
    found: dict[str, Search] = {"ranked": ranked, "random": random, "tpe": tpe}
    if find_spec("sklearn"):
        found["gp-ucb"] = with_optuna(_gaussian_process)
    if find_spec("torch") and find_spec("scipy"):
        found["optuna-gp"] = with_optuna(
            lambda t, s: optuna.samplers.GPSampler(seed=s, n_startup_trials=SEEDS)
        )
    return found


def trials_needed(table: Stored, search: Search, close: float, trials: int, seed: int) -> int:
    """Return the trials until a candidate close to the best was measured, at most ``trials``."""
    speed, near = dict(zip(table.candidates, table.speed, strict=True)), table.near(close)
    seen: dict[Schedule, None] = {}

    def score(schedule: Schedule) -> float | None:
        seen[schedule] = None
        return None if schedule in near else speed[schedule]

    search(table, trials, seed, score)
    return len(seen) if near & seen.keys() else trials


def compare(
    tables: Sequence[Stored], found: Mapping[str, Search], args: argparse.Namespace
) -> Table:
    """Return the medians of all samplers on all tables, and their geometric means."""
    shown = Table(title=f"trials to within {args.close:.1%} of the best", title_justify="left")
    for column in ("problem", "candidates", "best", *found):
        shown.add_column(column, justify="left" if column == "problem" else "right")
    medians: dict[str, list[float]] = {name: [] for name in found}
    for table in tables:
        for name, search in found.items():
            seeds = 1 if search is ranked else args.seeds
            needed = [
                trials_needed(table, search, args.close, args.trials, seed)
                for seed in range(seeds)
            ]
            medians[name].append(statistics.median(needed))
        row = (f"{values[-1]:g}" for values in medians.values())
        shown.add_row(table.name, str(len(table.candidates)), f"{max(table.speed):.3f}×", *row)
    means = (f"{statistics.geometric_mean(values):.1f}" for values in medians.values())
    shown.add_row("geometric mean", "", "", *means)
    return shown


def main(argv: Sequence[str] | None = None) -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m models.samplers", description=__doc__)
    add: Any = parser.add_argument
    add("tables", nargs="?", type=Path, default=TABLES, metavar="TABLES.json")
    add("--close", type=float, default=0.02, help="share of the best time (default: 0.02)")
    add("--seeds", type=int, default=5)
    add("--trials", type=int, default=160, help="limit of a search (default: 160)")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # fits at the bounds of their length scales
    tables = [Stored.of(table) for table in json.loads(args.tables.read_text())]
    Console(width=120).print(compare(tables, searches(), args))


if __name__ == "__main__":
    main()
