"""Matrices in 4 bits: by blocks of k, and with what is lost taken off later rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, evaluate, every_phase, normal
from tracea_graph.compress.int4_rounding import choose_int4, dequantize, gptq
from tracea_graph.ops.block_quantized import BlockQuantized, quantize_blocks
from tracea_graph.passes.quantized.calibrated_rounding import CalibratedRounding
from tracea_graph.rewrite import SchedulerLimits, schedule_rewrites

W = normal(100, 24, seed=2)


def correlated() -> np.ndarray:
    """Rows whose channels depend on each other, as activations do."""
    few = normal(600, 12, seed=3) @ normal(12, 100, seed=4)
    made: np.ndarray = few + 0.1 * normal(600, 100, seed=5)
    return made


def test_codes_reach_the_nearest_numbers() -> None:
    codes, scales, zeros = quantize_blocks(W, 4, 32)
    assert codes.max() <= 15 and scales.shape == zeros.shape == (4, 24)
    lost = abs(dequantize(codes, scales, zeros, 32) - W)
    assert np.sqrt(np.mean(lost**2)) < 0.11 * W.std()
    odd = W.copy()
    odd[:, 1], odd[5, 2], odd[40, 3] = 0, np.nan, np.inf
    codes, scales, zeros = quantize_blocks(odd, 4, 32)
    assert not dequantize(codes, scales, zeros, 32)[:, 1].any()
    assert np.isnan(scales[0, 2]) and np.isnan(scales[1, 3]) and np.isfinite(scales[:, 4:]).all()


def test_bytes_hold_the_codes() -> None:
    codes = np.pad(quantize_blocks(W, 4, 32)[0], ((0, 28), (0, 0)))
    layout = BlockQuantized(4, 32, "integer")
    scales = np.ones((2, 24, 4), np.float32)
    assert layout.packed(codes.T).shape == layout.shape(100, 24)
    np.testing.assert_array_equal(
        layout.parts([layout.packed(codes.T), scales], 100, 24)[0], codes
    )


def test_later_rows_make_up_for_earlier_ones() -> None:
    x = correlated()
    moments = (x.T @ x).astype(np.float64)
    errors = [
        np.linalg.norm(x @ (dequantize(*codes, 32) - W))
        for codes in (quantize_blocks(W, 4, 32), gptq(W, moments, 32))
    ]
    assert errors[1] < 0.5 * errors[0]
    chosen = choose_int4(x, W)
    assert chosen.error == pytest.approx(errors[1] / np.linalg.norm(x @ W), rel=1e-3) or (
        chosen.block == 128
    )


def test_inputs_of_low_rank_have_an_inverse() -> None:
    x = np.zeros((50, 100), np.float32)
    x[:, 3] = 1
    assert np.isfinite(choose_int4(x, W).error) and choose_int4(0 * x, W).error == 0


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_plan_stores_codes(calibrated: bool) -> None:
    net, x = Net(), correlated()
    graph = net.graph(net("Relu", net("MatMul", net.input("x", 600, 100), net.const(W))))
    (exact,) = evaluate(graph, {"x": x})
    chosen: dict[str, CalibratedRounding] = {"w0": choose_int4(x, W)} if calibrated else {}
    limits = SchedulerLimits(min_gain_us=float("-inf"))
    phases = every_phase(precision="int4-weights", calibrated=chosen)
    schedule_rewrites(graph, phases, lambda g, r: 1.0, limits)
    (region,) = graph.regions()
    assert region.params.layout.name == "nbits" and region.params.layout.int8_rows
    (found,) = evaluate(graph, {"x": x})
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert 5e-3 < error < (0.04 if calibrated else 0.12)


def test_what_codes_are_too_coarse_for_goes_to_bf16() -> None:
    net = Net()
    graph = net.graph(net("MatMul", net.input("x", 5, 100), net.const(W)))
    excluded = {"gemm-int4": {graph.outputs[0]: "it was wrong"}}
    limits = SchedulerLimits(min_gain_us=float("-inf"), excluded=excluded)
    schedule_rewrites(graph, every_phase(precision="int4-weights"), lambda g, r: 1.0, limits)
    (region,) = graph.regions()
    assert region.params.layout.name == "weight_only_bf16"
