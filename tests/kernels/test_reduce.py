"""Reductions of rows and of columns, in one tile and in several."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.kernels.conformance import Array, Output, ReduceTile, close, guarded, kernel
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols

NUMPY = {
    "sum": np.sum,
    "absolute sum": lambda x, axis: np.abs(x).sum(axis),
    "square sum": lambda x, axis: (x * x).sum(axis),
    "max": np.max,
    "min": np.min,
    "product": np.prod,
}
"""What each kind means, in the order of their numbers."""


def _reduce(
    isa: str, kind: int, x: Array, down: bool, cuts: tuple[int, ...] = (), divisor: float = 1.0
) -> Array:
    """Over the columns, or ``down`` the rows; ``cuts`` say where one tile ends."""
    run = kernel(emit_unit("reduce", isa), symbols("reduce", isa)[down])
    rows, cols = x.shape
    results = cols if down else rows
    out = Output(1, results, 0) if down else Output(results, 1)
    total, rest = guarded(np.zeros((2, results), np.float32))
    edges = [0, *cuts, rows if down else cols]
    for i, (begin, end) in enumerate(pairwise(edges)):
        part = guarded(x[begin:end] if down else np.ascontiguousarray(x[:, begin:end]))
        run(ReduceTile(
            rows=part.shape[0], cols=part.shape[1], x=part.ctypes.data, x_stride=part.shape[1],
            total=total.ctypes.data, rest=rest.ctypes.data, y=out.address, y_stride=out.stride,
            divisor=divisor, kind=kind, first=i == 0, last=end == edges[-1],
        ))  # fmt: skip
    out.check_canaries()
    return out.view.reshape(-1)


@pytest.mark.parametrize("down", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("kind", range(6), ids=list(NUMPY))
def test_equals_reference(isa: str, kind: int, down: bool) -> None:
    rng = np.random.default_rng(kind)
    for rows, cols in ((1, 1), (1, 3), (2, 16), (5, 17), (3, 64), (7, 83), (4, 300)):
        x = rng.uniform(0.5, 1.5, (rows, cols)).astype(np.float32)
        x *= rng.choice([-1, 1], x.shape)
        want = NUMPY[list(NUMPY)[kind]](x.astype(np.float64), axis=0 if down else 1)
        close(_reduce(isa, kind, x, down), want)
        along = rows if down else cols
        cuts = tuple(sorted({along // 3, along // 2} - {0}))
        close(_reduce(isa, kind, x, down, cuts), want)


@pytest.mark.parametrize("down", [False, True], ids=["rows", "columns"])
def test_a_mean_is_divided_at_the_end(isa: str, down: bool) -> None:
    x = np.random.default_rng(1).standard_normal((6, 40), np.float32) + 3
    want = x.astype(np.float64).mean(0 if down else 1)
    n = float(x.shape[0 if down else 1])
    close(_reduce(isa, 0, x, down, divisor=n), want, 1e-6)
    close(_reduce(isa, 0, x, down, (2, 3), n), want, 1e-6)


@pytest.mark.parametrize("down", [False, True], ids=["rows", "columns"])
def test_long_sums_stay_exact(isa: str, down: bool) -> None:
    """A million numbers of one sign, in tiles: the error is that of the last rounding or so."""
    x = np.random.default_rng(2).uniform(0.5, 1.5, (1, 1 << 20)).astype(np.float32)
    step = 64 if down else 4096
    cuts = tuple(range(step, x.size, step))
    got = _reduce(isa, 0, x.T.copy() if down else x, down, cuts)
    want = x.astype(np.float64).sum()
    assert abs(got[0] - want) <= 2 * np.spacing(np.float32(want))


@pytest.mark.parametrize("down", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", range(6), ids=list(NUMPY))
def test_special_values(isa: str, kind: int, special: float, down: bool) -> None:
    x = np.ones((70, 70), np.float32) * 1.01
    x[3, 3] = x[50, 60] = special
    want = NUMPY[list(NUMPY)[kind]](x.astype(np.float64), axis=0 if down else 1)
    for cuts in ((), (10, 55)):
        np.testing.assert_allclose(_reduce(isa, kind, x, down, cuts), want, 1e-5)


@pytest.mark.parametrize("kind", range(6), ids=list(NUMPY))
def test_a_row_does_not_depend_on_its_neighbours(isa: str, kind: int) -> None:
    x = np.random.default_rng(3).standard_normal((7, 203), np.float32)
    whole = _reduce(isa, kind, x, False).copy()
    for row in range(7):
        assert _reduce(isa, kind, x[row : row + 1], False)[0] == whole[row]
