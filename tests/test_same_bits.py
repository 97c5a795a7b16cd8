"""A transformer's results depend neither on threads nor on what else is in the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny import answers, padded_text, transformer
from tracea_graph import Options, api
from tracea_graph.kernels.cpu.levels import host_levels

pytestmark = pytest.mark.compiler
LEVELS = host_levels("bf16")
WIDE, TILES = any("bf16" in name for name in LEVELS), "amxbf16" in LEVELS
PRECISIONS = ["fp32", *(["bf16", "int16"] if WIDE else []), *(["bf16x2"] if TILES else [])]
BATCH, LENGTH = 8, 67


@pytest.fixture(scope="module", params=PRECISIONS)
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    original = transformer(tmp_path_factory.mktemp(request.param))
    options = Options(keep="all", precision=request.param, verify=False)
    return Path(api.optimize(original, options).output)


def run(result: Path, feeds: dict[str, np.ndarray], threads: int) -> list[np.ndarray]:
    got = answers(result, feeds, result.with_suffix(".so"), threads=threads)
    return list(got.values())


def test_threads_change_no_bit(result: Path) -> None:
    for batch, length in ((BATCH, LENGTH), (1, 128), (1, 1), (3, 16)):
        feeds = padded_text(batch, length)
        one, *others = (run(result, feeds, threads) for threads in (1, 2, 5))
        for other in others:
            for got, want in zip(other, one, strict=True):
                np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


def test_the_place_in_a_batch_changes_no_bit(result: Path) -> None:
    feeds = padded_text(BATCH, LENGTH)
    turned = {name: np.roll(array, 3, axis=0) for name, array in feeds.items()}
    for got, want in zip(run(result, turned, 2), run(result, feeds, 2), strict=True):
        np.testing.assert_array_equal(got, np.roll(want, 3, axis=0))


def test_a_batch_gives_what_each_of_it_gives_alone(result: Path) -> None:
    feeds = padded_text(BATCH, LENGTH)
    together = run(result, feeds, 2)
    for i in (0, BATCH - 1):
        alone = run(result, {name: array[i : i + 1] for name, array in feeds.items()}, 1)
        for got, want in zip(alone, together, strict=True):
            np.testing.assert_array_equal(got[0], want[i])
