"""Elementwise chains: every operation, every operand kind, special values."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.kernels.conformance import Array, ChainTile, Output, close, guarded, kernel
from tracea_graph.kernels.cpu import emit, symbols
from tracea_graph.ops.chain import ELEMENTARY, Chain, Step

ULPS = {
    "exp": 1.5, "log": 1.5, "erf": 6, "tanh": 6, "silu": 3.5,
    "sqrt": 0.51, "reciprocal": 0.51, "div": 0.51,
}  # fmt: skip
"""Largest error where the exact result is a normal number, in units of its last place."""

ABSOLUTE = {"sigmoid": 2e-7}
"""Largest absolute error of what is made to round as ONNX Runtime does."""

SHAPES = {"full": (True, True), "row": (False, True), "col": (True, False), "scalar": (False,) * 2}


def _one(op: str) -> Chain:
    arity = ELEMENTARY[op].arity
    return Chain(("full",) * arity, (Step(op, tuple(range(arity))),), (arity,))


def _evaluate(isa: str, chain: Chain, operands: list[Array], rows: int, cols: int) -> list[Array]:
    unit, (name,) = emit("chain", isa, chain), symbols("chain", isa, chain)
    tile = ChainTile(rows=rows, cols=cols)
    inputs = [guarded(x) for x in operands]
    for i, (x, kind) in enumerate(zip(inputs, chain.operands, strict=True)):
        tile.inputs[i] = x.ctypes.data
        tile.in_stride[i] = x.shape[1] if SHAPES[kind][0] else 0
    outs = [Output(rows, cols, gap) for gap in range(len(chain.results))]
    for i, out in enumerate(outs):
        tile.out[i], tile.out_stride[i] = out.address, out.stride
    kernel(unit, name)(tile)
    for out in outs:
        out.check_canaries()
    return [out.view for out in outs]


def _grid() -> Array:
    """Every sign, magnitudes from 1e-20 to 90, dense where the functions bend."""
    fine = np.linspace(-10, 10, 60001)
    wide = np.concatenate([np.geomspace(1e-20, 85, 8001), -np.geomspace(1e-20, 85, 8001)])
    return np.concatenate([fine, wide]).astype(np.float32)[None]


@pytest.mark.parametrize("op", ELEMENTARY)
def test_every_operation_over_its_range(isa: str, op: str) -> None:
    x = _grid()
    chain = _one(op)
    operands = [x, np.roll(x, 777)][: len(chain.operands)]
    (got,) = _evaluate(isa, chain, operands, 1, x.shape[1])
    with np.errstate(all="ignore"):
        (want,) = chain.reference([o.astype(np.float64) for o in operands])
    close(got, want)
    if (bound := ABSOLUTE.get(op)) is not None:
        assert np.nanmax(np.abs(got - want)) <= bound
    if limit := ULPS.get(op):
        normal = (np.abs(want) > 1e-36) & (np.abs(want) < 3e38)
        step = np.spacing(np.abs(want[normal]).astype(np.float32))
        assert (np.abs(got[normal] - want[normal]) / step).max() <= limit


@pytest.mark.parametrize("op", ELEMENTARY)
def test_special_values(isa: str, op: str) -> None:
    """NaN goes through; zeros, infinities and huge numbers give what NumPy gives in fp32."""
    special = np.array(
        [np.nan, -np.inf, np.inf, 0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 89.0, -104.0, 1e-40, -1e-40],
        np.float32,
    )
    chain = _one(op)
    pairs = list(itertools.product(special, repeat=len(chain.operands)))
    operands = [np.array(column, np.float32)[None] for column in zip(*pairs, strict=True)]
    (got,) = _evaluate(isa, chain, operands, 1, len(pairs))
    with np.errstate(all="ignore"):
        (want,) = chain.reference(operands)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), str(operands))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=3e-38)


@pytest.mark.parametrize(
    "kinds", [("full", "row"), ("row", "col"), ("col", "scalar"), ("scalar", "full")]
)
@pytest.mark.parametrize("cols", [1, 7, 8, 15, 16, 17, 47, 97])
def test_operand_kinds(isa: str, cols: int, kinds: tuple[str, str]) -> None:
    chain = Chain(kinds, (Step("mul", (0, 1.5)), Step("sub", (2, 1))), (3,))
    rng = np.random.default_rng(cols)
    for rows in (0, 1, 2, 5):
        operands = [
            rng.standard_normal((rows if tall else 1, cols if wide else 1), np.float32)
            for tall, wide in (SHAPES[kind] for kind in kinds)
        ]
        (got,) = _evaluate(isa, chain, operands, rows, cols)
        want = operands[0] * np.float32(1.5) - operands[1]
        close(got, np.broadcast_to(want, (rows, cols)))


def test_two_results_and_a_literal_of_each_sort(isa: str) -> None:
    chain = Chain(
        ("full", "row"),
        (Step("add", (0, 1)), Step("max", (2, -0.5)), Step("min", (0.25, 3)), Step("gelu", (2,))),
        (4, 5),
    )
    rng = np.random.default_rng(5)
    operands = [rng.standard_normal((3, 33), np.float32), rng.standard_normal((1, 33), np.float32)]
    operands[0][1, 2] = np.nan
    for got, want in zip(
        _evaluate(isa, chain, operands, 3, 33), chain.reference(operands), strict=True
    ):
        close(got, want)


def test_in_place(isa: str) -> None:
    chain = Chain(("full", "full"), (Step("add", (0, 1)), Step("relu", (2,))), (3,))
    x, y = np.random.default_rng(6).standard_normal((2, 4, 21), np.float32)
    want = np.maximum(x + y, 0)
    tile = ChainTile(rows=4, cols=21)
    tile.inputs[:2] = [x.ctypes.data, y.ctypes.data]
    tile.in_stride[:2] = [21, 21]
    tile.out[0], tile.out_stride[0] = x.ctypes.data, 21
    kernel(emit("chain", isa, chain), symbols("chain", isa, chain)[0])(tile)
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("value", [1.0, 0.1, -1e30, 3.4028235e38, 1e39, -np.inf, 1e-45, np.nan])
def test_literals_are_exact(value: float) -> None:
    chain = Chain(("full",), (Step("add", (0, value)),), (1,))
    x = np.array([[0, -0.0]], np.float32)
    (got,) = _evaluate("scalar", chain, [x], 1, 2)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x + np.float32(value))


def test_golden(golden: Callable[[str, str], None]) -> None:
    chain = Chain(
        ("full", "row", "full"),
        (Step("add", (0, 1)), Step("gelu", (3,)), Step("add", (4, 2))),
        (5,),
    )
    golden("chain_avx512.cpp", emit("chain", "avx512", chain).text)
