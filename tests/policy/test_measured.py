"""The cost model against what ``models.region_times`` and ``models.schedules`` measured."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from models.fit import choices, flop_error, median_error, predict
from models.make import make
from models.region_times import source_of

HERE = Path(__file__).parent
STORED: dict[str, Any] = json.loads((HERE / "measured_regions.json").read_text())
SCHEDULES = json.loads((HERE / "measured_schedules.json").read_text())
QUICK = ("tiny-bert", "mobilenetv2", "minilm")
CLOSE = 1.1


@cache
def hollow(name: str, folder: Path) -> Path:
    return make(source_of(name)[0], folder, hollow=True)


def held_to(names: tuple[str, ...], folder: Path, error: float, right: float) -> None:
    """Median error and share of right choices over all regions of some models."""
    predictions = [p for n in names for p in predict(STORED, n, hollow(n, folder))]
    chosen = [c for n in names for c in choices(STORED, n, hollow(n, folder))]
    assert len(predictions) > 25 and len(chosen) > 12, "the plans still have what was measured"
    assert median_error(predictions) <= error
    assert flop_error(predictions) > 1.3 * median_error(predictions)
    assert sum(c.right for c in chosen) >= right * len(chosen)


def test_predictions_of_small_models(tmp_path: Path) -> None:
    held_to(QUICK, tmp_path, error=0.28, right=0.8)


@pytest.mark.slow
def test_predictions_over_the_zoo(tmp_path: Path) -> None:
    held_to(tuple(STORED["models"]), tmp_path, error=0.25, right=0.9)


def test_the_first_schedule_is_close_to_the_best() -> None:
    best = [max((gain for _, gain in times), default=1.0) for _, _, times in SCHEDULES]
    assert len(best) >= 12
    assert sum(gain <= CLOSE for gain in best) >= 0.9 * len(best)
