"""The best k of each row, in order, of equal ones the first."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.conformance import Array, Output, TopKTile, guarded, kernel
from tracea_graph.kernels.cpu import emit, symbols
from tracea_graph.ops.top_k import TopKParams

RNG = np.random.default_rng(1)


def _check(isa: str, x: Array, k: int, least: bool) -> None:
    run = kernel(emit("top_k", isa), symbols("top_k", isa)[0])
    rows, cols = x.shape
    values, places = Output(rows, k, 0), Output(rows, k, 0, dtype=np.int64)
    source = guarded(x)
    run(TopKTile(
        rows=rows, cols=cols, k=k, x=source.ctypes.data, x_stride=source.shape[1],
        y=values.address, place=places.address, least=least,
    ))  # fmt: skip
    values.check_canaries()
    places.check_canaries()
    want = TopKParams(k, not least).reference([x])
    np.testing.assert_array_equal(values.view, want[0], f"{x.shape} k {k}")
    np.testing.assert_array_equal(places.view, want[1], f"{x.shape} k {k}")


@pytest.mark.parametrize("least", [False, True])
def test_equals_reference(isa: str, least: bool) -> None:
    for cols in (1, 2, 3, 15, 16, 17, 63, 64, 65, 131, 200, 1000):
        x = RNG.standard_normal((5, cols)).astype(np.float32)
        for k in sorted({1, 2, 5, 50, cols - 1, cols} & {*range(1, cols + 1)}):
            _check(isa, x, k, least)


@pytest.mark.parametrize("least", [False, True])
def test_of_equal_elements_the_first_comes_first(isa: str, least: bool) -> None:
    for cols in (7, 33, 64, 150, 400):
        x = RNG.integers(-2, 3, (40, cols)).astype(np.float32)
        x[0], x[1], x[2] = -0.0, np.inf, -np.inf
        for k in (1, 3, cols // 2, cols):
            _check(isa, x, k, least)


@pytest.mark.parametrize("least", [False, True])
def test_any_order_and_any_place(isa: str, least: bool) -> None:
    """Rising and falling rows, which enter the heap always or never, and one good element."""
    rising = np.arange(300, dtype=np.float32)
    for k in (1, 8, 90):
        _check(isa, np.stack([rising, rising[::-1], np.roll(rising, 150)]), k, least)
    alone = np.zeros((150, 150), np.float32)
    np.fill_diagonal(alone, -1 if least else 1)
    _check(isa, alone, 4, least)
