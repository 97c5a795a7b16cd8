"""Softmax and its logarithm along rows and along columns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.conformance import Array, Output, SoftmaxTile, close, guarded, kernel
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols

FORMS = [(down, log) for down in (False, True) for log in (False, True)]


def _softmax(isa: str, x: Array, down: bool, log: bool) -> Array:
    run = kernel(emit_unit("softmax", isa), symbols("softmax", isa)[down])
    x, out = guarded(x), Output(*x.shape)
    run(SoftmaxTile(
        rows=x.shape[0], cols=x.shape[1], x=x.ctypes.data, x_stride=x.shape[1],
        y=out.address, y_stride=out.stride, log=log,
    ))  # fmt: skip
    out.check_canaries()
    return out.view


def _reference(x: Array, down: bool, log: bool) -> Array:
    axis = 0 if down else 1
    with np.errstate(all="ignore"):
        d = x.astype(np.float64) - x.max(axis, keepdims=True)
        e = np.exp(d)
        total = e.sum(axis, keepdims=True)
        return np.asarray(d - np.log(total) if log else e / total)


@pytest.mark.parametrize(("down", "log"), FORMS)
@pytest.mark.parametrize("cols", [1, 7, 16, 17, 33, 97, 384])
def test_equals_reference(isa: str, cols: int, down: bool, log: bool) -> None:
    rng = np.random.default_rng(cols)
    for rows in (1, 3, 4, 5, 11):
        x = rng.standard_normal((rows, cols), np.float32) * 5
        close(_softmax(isa, x, down, log), _reference(x, down, log), 2e-6)


def test_long_rows_are_summed_exactly(isa: str) -> None:
    """As over a vocabulary, where most terms are small beside the sum."""
    x = np.random.default_rng(4).standard_normal((2, 20_011), np.float32)
    want = _reference(x, False, False)
    assert np.max(np.abs(_softmax(isa, x, False, False) / want - 1)) < 2e-6


@pytest.mark.parametrize(("down", "log"), FORMS)
def test_masked_and_lost_entries(isa: str, down: bool, log: bool) -> None:
    """−1e9, finfo.min and −inf get nothing; NaN and a line of −inf spoil their own line only."""
    x = np.random.default_rng(1).standard_normal((6, 40), np.float32)
    x = x.T.copy() if down else x
    lines = x.T if down else x
    lines[0, 5:] = -1e9
    lines[1, ::2] = np.finfo(np.float32).min
    lines[2, 3:] = -np.inf
    lines[3, 7] = np.nan
    lines[4] = -np.inf
    want = _reference(x, down, log)
    got = _softmax(isa, x, down, log)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, 1e-5, 1e-7)


@pytest.mark.parametrize(("down", "log"), FORMS)
def test_in_place(isa: str, down: bool, log: bool) -> None:
    run = kernel(emit_unit("softmax", isa), symbols("softmax", isa)[down])
    x = np.random.default_rng(2).standard_normal((9, 50), np.float32)
    want, at = _reference(x, down, log), x.ctypes.data
    run(SoftmaxTile(rows=9, cols=50, x=at, x_stride=50, y=at, y_stride=50, log=log))
    close(x, want, 2e-6)


def test_a_row_does_not_depend_on_its_neighbours(isa: str) -> None:
    x = np.random.default_rng(3).standard_normal((7, 83), np.float32)
    whole = _softmax(isa, x, False, False).copy()
    for row in range(7):
        alone = _softmax(isa, x[row : row + 1], False, False)
        np.testing.assert_array_equal(alone[0], whole[row])
