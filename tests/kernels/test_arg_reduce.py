"""Where the largest or smallest element is, of rows and of columns, in one tile and several."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from tests.kernels.conformance import ArgTile, Array, Output, guarded, kernel
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols

ORDERS = list(product((0, 1), repeat=2))
"""``least`` and ``latest``."""


def _arg(
    isa: str, x: Array, down: bool, least: int, latest: int, cuts: tuple[int, ...] = ()
) -> Array:
    """Along the columns, or ``down`` the rows; ``cuts`` say where one tile ends."""
    run = kernel(emit_unit("arg_reduce", isa), symbols("arg_reduce", isa)[down])
    rows, cols = x.shape
    results = cols if down else rows
    out = Output(*((1, results, 0) if down else (results, 1)), dtype=np.int64)
    best, place = guarded(np.zeros(results, np.float32)), guarded(np.zeros(results, np.int32))
    edges = [0, *cuts, rows if down else cols]
    for begin, end in pairwise(edges):
        part = guarded(x[begin:end] if down else np.ascontiguousarray(x[:, begin:end]))
        run(ArgTile(
            rows=part.shape[0], cols=part.shape[1], x=part.ctypes.data, x_stride=part.shape[1],
            best=best.ctypes.data, place=place.ctypes.data, y=out.address, y_stride=out.stride,
            begin=begin, least=least, latest=latest, first=begin == 0, last=end == edges[-1],
        ))  # fmt: skip
    out.check_canaries()
    return out.view.reshape(-1)


def _in_order(x: Array, least: int, latest: int) -> Array:
    """What going through the elements of every row one by one takes."""
    best, place = x[:, 0].copy(), np.zeros(len(x), np.int64)
    for i in range(1, x.shape[1]):
        v = x[:, i]
        takes = (v < best if least else v > best) | ((v == best) & bool(latest))
        best, place = np.where(takes, v, best), np.where(takes, i, place)
    return place


def _check(isa: str, x: Array, least: int, latest: int, cuts: tuple[int, ...] = ()) -> None:
    want = _in_order(x, least, latest)
    for down in (False, True):
        lines = np.ascontiguousarray(x.T) if down else x
        got = _arg(isa, lines, down, least, latest, cuts)
        np.testing.assert_array_equal(got, want, f"down {down}, cuts {cuts}, {x.shape}")


@pytest.mark.parametrize(("least", "latest"), ORDERS)
def test_equals_reference(isa: str, least: int, latest: int) -> None:
    rng = np.random.default_rng(1)
    for shape in ((1, 1), (3, 1), (1, 2), (16, 3), (17, 16), (64, 21), (83, 64), (300, 65),
                  (131, 150), (5, 1000)):  # fmt: skip
        x = rng.standard_normal(shape, np.float32)
        _check(isa, x, least, latest)
        cuts = tuple(sorted({shape[1] // 3, shape[1] // 2} - {0}))
        _check(isa, x, least, latest, cuts)


@pytest.mark.parametrize(("least", "latest"), ORDERS)
def test_of_equal_elements_the_first_or_the_last(isa: str, least: int, latest: int) -> None:
    rng = np.random.default_rng(2)
    for length in (2, 7, 16, 33, 64, 100, 131, 400):
        x = rng.integers(-2, 3, (70, length)).astype(np.float32)
        x[0], x[1] = -0.0, np.where(rng.integers(0, 2, length), 0.0, -0.0)
        x[2], x[3] = -np.inf, np.inf
        _check(isa, x, least, latest)
        _check(isa, x, least, latest, (length // 2,) if length > 2 else ())


@pytest.mark.parametrize(("least", "latest"), ORDERS)
def test_a_nan_stays_in_the_first_place_only(isa: str, least: int, latest: int) -> None:
    """As ONNX Runtime has it, along any axis."""
    rng = np.random.default_rng(3)
    for length in (1, 2, 3, 16, 17, 70, 200):
        x = rng.integers(-2, 3, (90, length)).astype(np.float32)
        x[rng.random(x.shape) < 0.2] = np.nan
        x[rng.random(x.shape) < 0.1] = np.inf
        x[rng.random(x.shape) < 0.1] = -np.inf
        x[0] = np.nan
        x[1, 0] = np.nan
        x[2, -1] = np.nan
        _check(isa, x, least, latest)
        _check(isa, x, least, latest, (1, length // 2) if length > 3 else ())


def test_every_place_is_found(isa: str) -> None:
    """The largest element at each place of a line of several vectors and a tail."""
    length = 4 * 16 + 2 * 16 + 5
    x = np.zeros((length, length), np.float32)
    np.fill_diagonal(x, 1)
    for down in (False, True):
        np.testing.assert_array_equal(_arg(isa, x, down, 0, 0), np.arange(length))
        np.testing.assert_array_equal(_arg(isa, -x, down, 1, 1), np.arange(length))
