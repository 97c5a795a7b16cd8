"""Rounding to bytes is chosen by the error that it has on real rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graphs import Net, evaluate, every_phase, normal
from tracea_graph import Options, optimize
from tracea_graph.compress.int8_rounding import choose_int8
from tracea_graph.errors import UsageError
from tracea_graph.ops.int8_matmul import round_columns
from tracea_graph.ops.quantize_rows import quantize_rows
from tracea_graph.passes.quantized.calibrated_rounding import CalibratedRounding
from tracea_graph.rewrite import SchedulerLimits, schedule_rewrites

X, W = normal(512, 96, seed=1), normal(96, 48, seed=2)


def outliers() -> np.ndarray:
    """Rows in which a few channels are much larger than the others, as behind norms."""
    x = X.copy()
    x[:, ::24] *= 40
    return x


def test_ranges_of_few_channels_move_into_the_matrix() -> None:
    x = outliers()
    (whole, scale), (p, columns) = quantize_rows(x), round_columns(W)
    plain = np.linalg.norm((whole * scale) @ (p * columns) - x @ W) / np.linalg.norm(x @ W)
    moved = choose_int8(x, W)
    assert moved.factors is not None and moved.error < 0.75 * plain
    assert moved.factors[::24].max() < moved.factors[1:24].min()


def test_rows_of_one_range_share_a_scale() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (512, 96)).astype(np.float32)
    chosen = choose_int8(x, W)
    assert 1.8 / 255 < chosen.scale < 2.6 / 255 and 120 < chosen.zero < 136
    rows = x * np.exp(np.linspace(-3, 3, 512, dtype=np.float32))[:, None]
    assert choose_int8(rows, W).scale == 0


def test_what_is_lost_on_average_is_added() -> None:
    x = abs(X)  # rounding errors of W have a mean then
    chosen = choose_int8(x, W)
    assert chosen.correction is not None and chosen.correction.shape == (48,)


def planned(calibrated: dict[str, CalibratedRounding]) -> tuple[float, set[str]]:
    """The error of a net of two products in int8, and its ops."""
    net = Net()
    hidden = net("Relu", net("MatMul", net.input("x", 40, 96), net.const(W)))
    last = net("MatMul", hidden, net.const(normal(48, 32)))
    graph = net.graph(net("Add", last, net.const(normal(32, seed=5))))
    feed = {"x": outliers()[:40]}
    (exact,) = evaluate(graph, feed)
    limits = SchedulerLimits(min_gain_us=float("-inf"), skip=frozenset({"cluster"}))
    schedule_rewrites(
        graph, every_phase(precision="int8", calibrated=calibrated), lambda g, r: 1.0, limits
    )
    (found,) = evaluate(graph, feed)
    error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    return error, {r.op for r in graph.regions()}


def test_a_plan_follows_the_choice() -> None:
    plain, ops = planned({})
    assert ops == {"FusedGemm", "FusedQuantizeRows"}
    x = outliers()
    chosen = {"w0": choose_int8(x, W), "w1": choose_int8(np.maximum(x @ W, 0), normal(48, 32))}
    assert 1e-3 < planned(chosen)[0] < 0.9 * plain
    assert planned({"w0": CalibratedRounding(0.0, None, 0.0, 0, normal(48))})[0] - plain > 1e-3
    # fixed scales: what computes x rounds it
    fixed = {"w1": CalibratedRounding(0.0, None, float((x @ W).max()) / 255, 0)}
    error, ops = planned(fixed)
    assert 1e-3 < error < 1.5 * plain and ops == {"FusedGemm", "FusedQuantizeRows"}
    factors = chosen["w0"].factors
    assert factors is not None
    step = float(abs(x * factors).max()) / 127
    error, ops = planned({**fixed, "w0": CalibratedRounding(0.0, factors, step, 128)})
    assert 1e-3 < error < plain and ops == {"FusedGemm", "FusedElementwise"}


def test_columns_without_a_scale() -> None:
    w = W.copy()
    w[:, 0], w[:, 1], w[3, 2], w[4, 3] = 0, 1e-40, np.nan, -np.inf
    whole, scale = round_columns(w)
    assert not whole[:, :4].any() and (scale[:2] == 0).all() and np.isnan(scale[2:4]).all()
    assert abs(whole).max() == 127 and np.isfinite(scale[4:]).all()


def test_rows_without_a_scale() -> None:
    x = X[:5].copy()
    x[0], x[1], x[2, 3], x[3, 4] = 0, 1e-40, np.nan, np.inf
    whole, scale = quantize_rows(x)
    assert not whole[:4].any() and (scale[:2] == 0).all() and np.isnan(scale[2:4]).all()


@pytest.mark.parametrize("precision", ["int8", "int4-weights"])
@pytest.mark.parametrize(
    ("array", "said"),
    [
        (normal(5, 7, 90), "has dims"),
        (np.full((5, 7, 160), np.nan, np.float32), "is not finite everywhere"),
        (np.zeros((0, 7, 160), np.float32), "no set"),
    ],
)
def test_data_that_does_not_fit(
    precision: str, array: np.ndarray, said: str, tmp_path: Path
) -> None:
    net = Net()
    made = net("MatMul", net.input("x", "n", 160), net.const(normal(160, 128)))
    path = net.save(tmp_path / "m.onnx", net("Relu", made))
    np.savez(tmp_path / "data.npz", x=array)
    options = Options(
        tmp_path / "out.onnx", precision=precision, data=tmp_path / "data.npz", keep="all"
    )
    with pytest.raises(UsageError, match=said):
        optimize(path, options)
