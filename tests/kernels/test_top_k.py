"""The best k of each row, in order, of equal ones the first."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tests.graphs import session
from tests.kernels.conformance import Array, Output, TopKTile, guarded, kernel
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.ops.top_k import TopKParams

RNG = np.random.default_rng(1)


def _check(isa: str, x: Array, k: int, least: bool) -> None:
    run = kernel(emit_unit("top_k", isa), symbols("top_k", isa)[0])
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


@pytest.mark.parametrize("least", [False, True])
def test_nan_is_above_all_numbers(isa: str, least: bool) -> None:
    """As ONNX Runtime has it, which the reference is compared with."""
    for cols in (1, 2, 5, 33, 64, 150, 400):
        x = RNG.integers(-2, 3, (12, cols)).astype(np.float32)
        x[RNG.random(x.shape) < 0.1] = -np.inf if least else np.inf
        x[:4][RNG.random((4, cols)) < 0.05] = np.nan
        x[4:8][RNG.random((4, cols)) < 0.8] = np.nan
        x[8], x[9, 0], x[10, -1], x[11, : cols // 2] = np.nan, np.nan, np.nan, np.nan
        for k in sorted({1, min(3, cols), max(1, cols // 2), cols}):
            _check(isa, x, k, least)
            found = _onnxruntime(x, k, least)
            for got, want in zip(TopKParams(k, not least).reference([x]), found, strict=True):
                np.testing.assert_array_equal(got, want)


def _onnxruntime(x: Array, k: int, least: bool) -> list[Array]:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[R,C] x) => (float[R,K] y, int64[R,K] at) <int64[1] k = {{{k}}}> {{
            y, at = TopK<axis = -1, largest = {int(not least)}>(x, k)
        }}"""
    return list(session(onnx.parser.parse_model(text)).run(None, {"x": x}))
