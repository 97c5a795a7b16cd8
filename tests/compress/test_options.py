"""What smaller matrices cost is known beforehand, and a budget buys the most time."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tracea_graph.compress import LayerOption, allocate_budget, search_within_budget, total_error
from tracea_graph.compress.channel_pruning import ChannelPruningErrors
from tracea_graph.compress.low_rank_factors import LowRankOptions, ranks_for
from tracea_graph.compress.weight_pruning import PruneOptions
from tracea_graph.config import PruneSpec

Array = npt.NDArray[Any]


def data(rows: int, k: int, seed: int = 0) -> Array:
    """Inputs that vary much more in some directions than in others."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, k)) @ (
        rng.standard_normal((k, k)) * np.exp(-np.arange(k) / 20)[:, None]
    )


def relative(x: Array, w: Array, other: Array) -> float:
    return float(np.linalg.norm(x @ (w - other)) / np.linalg.norm(x @ w))


@pytest.mark.parametrize(("k", "n"), [(96, 192), (192, 96), (128, 128)])
@pytest.mark.parametrize("rows", [40, 1000])
def test_the_error_of_a_rank_is_known(k: int, n: int, rows: int) -> None:
    x, w = data(rows, k), np.random.default_rng(1).standard_normal((k, n))
    menu = LowRankOptions.of(w, x.T @ x)
    for rank in menu.ranks:
        a, b = menu.factors(w, rank)
        assert a.shape == (k, rank) and b.shape == (rank, n) and a.dtype == np.float32
        assert relative(x, w, a.astype(np.float64) @ b) == pytest.approx(
            menu.error(rank), rel=0.01, abs=1e-5
        )


def test_whitening_beats_plain_factors_on_what_was_seen() -> None:
    x, w = data(1000, 128), np.random.default_rng(1).standard_normal((128, 256))
    (whitened, plain), rank = (LowRankOptions.of(w, g) for g in (x.T @ x, None)), 16
    errors = [
        relative(x, w, np.matmul(*menu.factors(w, rank), dtype=np.float64))
        for menu in (whitened, plain)
    ]
    assert errors[0] < 0.5 * errors[1]


def test_plain_factors_are_those_of_the_svd() -> None:
    w = np.random.default_rng(1).standard_normal((64, 160))
    sizes = np.linalg.svd(w, compute_uv=False)
    expected = np.sqrt((sizes[32:] ** 2).sum() / (sizes**2).sum())
    assert LowRankOptions.of(w).error(32) == pytest.approx(expected)


def test_ranks_fill_panels_and_save() -> None:
    for k, n in ((768, 3072), (64, 64), (16, 4096)):
        for rank in ranks_for(k, n):
            assert rank % 16 == 0 and rank * (k + n) < k * n
    assert ranks_for(16, 4096) == ()


@pytest.mark.parametrize(
    "spec",
    [
        PruneSpec(0.6),
        PruneSpec(0.5, group=4),
        PruneSpec(0.75, block=(16, 1)),
        PruneSpec(0.5, block=(16, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("seen", [True, False])
def test_pruning_keeps_its_pattern_and_knows_its_error(spec: PruneSpec, seen: bool) -> None:
    x, w = data(500, 96), np.random.default_rng(1).standard_normal((96, 80))
    menu = PruneOptions(w, spec, x.T @ x if seen else None)
    other = menu.pruned(spec.share)
    assert np.mean(other == 0) == pytest.approx(spec.share, abs=0.01)
    if spec.group:
        assert (np.count_nonzero(other.reshape(-1, spec.group, 80), axis=1) == 2).all()
    if spec.block:
        columns, steps = spec.block
        blocks = other.reshape(96 // steps, steps, 80 // columns, columns).any((1, 3))
        assert np.mean(blocks) == pytest.approx(1 - spec.share, abs=0.01)
    seen_by = x if seen else np.eye(96)
    assert relative(seen_by, w, other) == pytest.approx(menu.error(spec.share), rel=0.01)


def test_the_update_makes_up_for_zeros() -> None:
    x, w = data(500, 96), np.random.default_rng(1).standard_normal((96, 80))
    blind, seeing = (PruneOptions(w, PruneSpec(0.6), g).pruned(0.6) for g in (None, x.T @ x))
    assert relative(x, w, seeing) < 0.8 * relative(x, w, blind)


@pytest.mark.parametrize("seen", [True, False])
def test_channels_that_go_are_made_up_for(seen: bool) -> None:
    x, w = data(500, 128), np.random.default_rng(1).standard_normal((128, 80))
    menu = ChannelPruningErrors.of(w, x.T @ x if seen else None, 0.5)
    assert list(menu.errors) == [16, 32, 48, 64]
    assert list(menu.errors.values()) == sorted(menu.errors.values())
    seen_by = x if seen else np.eye(128)
    for gone, error in menu.errors.items():
        other = menu.pruned(gone)
        assert np.count_nonzero(~other.any(axis=1)) == gone
        assert relative(seen_by, w, other) == pytest.approx(error, rel=0.02)
        rows = other.any(axis=1)[:, None]
        assert relative(seen_by, w, np.where(rows, w, 0)) >= error


def menu(*layers: list[tuple[float, float]]) -> dict[str, list[LayerOption]]:
    return {
        f"l{i}": [
            LayerOption(f"l{i}", "low rank", 16, saved, error, error) for saved, error in offers
        ]
        for i, offers in enumerate(layers)
    }


def test_a_budget_buys_nearly_the_most_time() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        offers = [
            sorted(zip(rng.random(3) * 10, rng.random(3) * 0.1, strict=True)) for _ in range(4)
        ]
        offered = menu(*offers)
        found = allocate_budget(offered, 0.1)
        assert total_error([*found.values()]) <= 0.1
        every = product(*([None, *cs] for cs in offered.values()))
        picks = [[c for c in pick if c] for pick in every]
        best = max(sum(c.saved for c in pick) for pick in picks if total_error(pick) <= 0.1)
        assert sum(c.saved for c in found.values()) >= 0.6 * best


def test_equal_layers_need_not_enter_together() -> None:
    found = allocate_budget(menu(*[[(1.0, 0.01)]] * 6), 0.02)
    assert len(found) == 4


@pytest.mark.parametrize("truth", [0.2, 1.0, 7.0])
def test_what_is_measured_decides(truth: float) -> None:
    """Predictions that are off by a factor: the search still ends within the budget, near it."""
    offers = menu(*[[(10.0 * e, e / 100) for e in range(1, 60)]] * 5)
    chosen, error = search_within_budget(
        offers, 0.1, lambda c, _: truth * total_error([*c.values()])
    )
    assert 0.05 < error <= 0.1 and chosen


def test_a_budget_that_nothing_holds() -> None:
    chosen, _ = search_within_budget(menu([(1.0, 0.1)]), 1e-6, lambda c, _: 0.1)
    assert not chosen


def test_a_search_among_squares_spreads_roots() -> None:
    """Errors of changes 0.1, 0.2 … whose squares are measured: as many as fit 0.3."""
    menu = {
        f"layer{i}": [LayerOption(f"layer{i}", "low rank", 16, 100.0, 0.1, 0.1 * (i + 1))]
        for i in range(6)
    }

    def measure(chosen: dict[str, LayerOption], trial: int) -> float:
        return total_error([*chosen.values()]) ** 2

    chosen, error = search_within_budget(menu, 0.32, measure, power=2)
    assert sorted(chosen) == ["layer0", "layer1", "layer2", "layer3"]
    assert error == pytest.approx(0.30)
