"""Multiplying by both parts of a reciprocal rounds as a division does."""

from __future__ import annotations

import numpy as np
import pytest

from tracea_graph.kernels.cpu.division_by_constant_scale import quotients, reciprocal
from tracea_graph.ops.chain import Chain, Step


def quantize(scale: float, *more: Step, ends: tuple[float, float] = (0.0, 255.0)) -> Chain:
    steps = (
        Step("div", (0, scale)), Step("round", (1,)), Step("add", (2, 9.0)),
        Step("saturate", (3, *ends)),
    )  # fmt: skip
    return Chain(("full",), (*steps, *more), (4 + len(more),))


@pytest.mark.parametrize("seed", range(3))
def test_every_number_rounds_alike(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for scale in np.exp(rng.uniform(-20, 20, 40)).astype(np.float32):
        pair = reciprocal(float(scale), -128, 255)
        assert pair is not None
        hi, lo = map(np.float32, pair)
        x = (rng.uniform(-300, 300, 20_000) * scale).astype(np.float32)
        added = (x.astype(np.float64) * float(hi) + (x * lo).astype(np.float64)).astype(np.float32)
        np.testing.assert_array_equal(np.rint(added), np.rint(x / scale))
        assert lo >= 0  # infinity keeps its sign in both products


def test_powers_of_two_have_one_part() -> None:
    assert reciprocal(0.25, -128, 127) == (4.0, 0.0)
    assert quotients(quantize(0.25)) == {0: "x0 * set1(0x1.0000000000000p+2f)"}


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-30, 1e30, np.inf, np.nan])
def test_odd_scales_are_divided_by(scale: float) -> None:
    assert reciprocal(scale, -128, 127) is None


def test_only_what_is_rounded_and_saturated() -> None:
    assert list(quotients(quantize(0.3))) == [0]
    assert list(quotients(quantize(0.3, Step("div", (4, 0.7))))) == [0]
    assert not quotients(quantize(0.3, ends=(-1e9, 1e9)))
    assert not quotients(Chain(("full",), (Step("div", (0, 0.3)), Step("round", (1,))), (2,)))
    both = Chain(quantize(0.3).operands, quantize(0.3).steps, (4, 1))
    assert not quotients(both)
