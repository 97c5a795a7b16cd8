"""Sums of table rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.kernels.conformance import GatherTile, Output, guarded, kernel
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols


@pytest.mark.parametrize("tables", [1, 2, 3, 4])
@pytest.mark.parametrize("cols", [1, 7, 8, 15, 16, 17, 33, 97])
def test_equals_reference(isa: str, cols: int, tables: int) -> None:
    run = kernel(emit_unit("gather", isa), symbols("gather", isa)[0])
    rng = np.random.default_rng(cols)
    for rows in (0, 1, 5, 6, 7, 23):
        data = [guarded(rng.standard_normal((9, cols), np.float32)) for _ in range(tables)]
        picks = rng.integers(0, 9, (tables, rows))
        picks[:, -1:] = 8  # the last row ends at an unreadable page
        where = [d.ctypes.data + p * d.strides[0] for d, p in zip(data, picks, strict=True)]
        where = [np.ascontiguousarray(w, np.uint64) for w in where]
        tile = GatherTile(rows=rows, cols=cols, tables=tables)
        tile.row[:tables] = [w.ctypes.data for w in where]
        out = Output(rows, cols)
        tile.y, tile.y_stride = out.address, out.stride
        run(tile)
        out.check_canaries()
        want = sum(d[p] for d, p in zip(data[1:], picks[1:], strict=True)) + data[0][picks[0]]
        np.testing.assert_allclose(out.view, want, rtol=1e-5, atol=1e-6)


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("gather_scalar.cpp", emit_unit("gather", "scalar").text)
