"""Data movement between layouts: every element size, blocks whole and ragged, any strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kernels.conformance import Array, CopyTile, guarded, kernel
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols

LAYOUTS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "rows": (lambda x: x[:, :-1], lambda y: y[:, :-1]),
    "rows of pairs": (lambda x: x[:, 2:], lambda y: y[:, :-2]),
    "rows that begin within a pair": (lambda x: x[:, 1:-1], lambda y: y[:, 2:]),
    "turned": (lambda x: x.T, lambda y: y),
    "turned back": (lambda x: x, lambda y: y.T),
    "both turned": (lambda x: x[:-1].T, lambda y: y[:-1].T),
    "every second": (lambda x: x[:, ::2], lambda y: y),
    "to every second": (lambda x: x, lambda y: y[:, 1::2]),
    "to every third": (lambda x: x, lambda y: y[:, ::3]),
    "reversed": (lambda x: x[:, ::-1], lambda y: y),
    "reversed rows": (lambda x: x[::-1], lambda y: y),
    "repeated": (lambda x: np.broadcast_to(x[:, :1], x.shape), lambda y: y),
}
"""How the source and the result lie in memory: views of dense arrays."""


def _dense(view: Callable[[Array], Array], rows: int, cols: int) -> tuple[int, int]:
    """The shape of the array whose view is ``rows x cols``."""
    for height in (rows, rows + 1, cols, cols + 1):
        for width in {rows, rows + 1, cols, cols + 1, cols + 2, 2 * cols, 2 * cols + 1, 3 * cols}:
            if view(np.empty((height, width), bool)).shape == (rows, cols):
                return height, width
    raise AssertionError("no array has this view")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.int64])
def test_every_layout(isa: str, dtype: Any, layout: str) -> None:
    run = kernel(emit_unit("copy", isa), symbols("copy", isa)[0])
    read, write = LAYOUTS[layout]
    for rows, cols in (
        (1, 1),
        (3, 7),
        (8, 8),
        (16, 16),
        (17, 31),
        (5, 64),
        (64, 5),
        (33, 48),
        (3, 16),
        (3, 61),
    ):
        size = np.dtype(dtype).itemsize
        source = np.random.default_rng(rows).integers(0, 2**31, _dense(read, rows, cols))
        x = read(guarded(source.astype(dtype)))
        before = np.full(_dense(write, rows, cols), 77, dtype)
        memory = guarded(before)
        y = write(memory)
        tile = CopyTile(rows=rows, cols=cols, x=x.ctypes.data, y=y.ctypes.data, size=size)
        tile.x_row, tile.x_col = (s // size for s in x.strides)
        tile.y_row, tile.y_col = (s // size for s in y.strides)
        run(tile)
        write(before)[...] = x
        np.testing.assert_array_equal(memory, before)


def test_nothing(isa: str) -> None:
    run = kernel(emit_unit("copy", isa), symbols("copy", isa)[0])
    for rows, cols in ((0, 5), (5, 0)):
        run(CopyTile(rows=rows, cols=cols, size=4, x_col=1, y_col=1))


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("copy_avx2.cpp", emit_unit("copy", "avx2").text)
