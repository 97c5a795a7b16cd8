"""Scales of what convolutions read are chosen by the error of their results on real images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.graphs import Net, normal, session
from tracea_graph import Options, optimize
from tracea_graph.compress import Samples
from tracea_graph.compress.conv_input_scales import (
    ConvLayer,
    ConvSamples,
    choose_conv_int8,
    sample_convolutions,
)
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import load
from tracea_graph.ops.conv_windows import ConvWindow

WINDOW = ConvWindow((3, 3), (2, 1), (1, 2), (1, 2, 1, 2))
RANDOM = np.random.default_rng(5)


def layer(filters: np.ndarray, groups: int = 1, result: str = "y") -> ConvLayer:
    return ConvLayer("x", result, WINDOW, groups, lambda: filters)


def sampled(layers: list[ConvLayer], images: np.ndarray) -> ConvSamples:
    found = ConvSamples()
    for image in images:
        found.add("x", image, RANDOM)
        for each in layers:
            found.patches[each.result].append(each.patches(image, RANDOM))
    return found


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_patches_are_what_filters_see(groups: int) -> None:
    net, w = Net(), normal(12, 6 // groups, 3, 3)
    y = net(
        "Conv", net.input("x", 2, 6, 9, 8), net.const(w), group=groups,
        pads=[*WINDOW.pads], strides=[*WINDOW.strides], dilations=[*WINDOW.dilations],
    )  # fmt: skip
    net.graph(y)
    image = normal(2, 6, 9, 8, seed=3)
    (exact,) = net.run({"x": image})
    each = layer(w, groups)
    found = each.patches(image, RANDOM).transpose(1, 0, 2) @ each.filters()
    results = {tuple(np.round(p, 3)) for p in np.moveaxis(exact, 1, -1).reshape(-1, 12)}
    rows = found.transpose(1, 0, 2).reshape(-1, 12)
    assert len(rows) > 30 and {tuple(np.round(r, 3)) for r in rows} <= results


def test_one_large_number_does_not_decide_the_scale() -> None:
    images = RANDOM.uniform(-1, 1, (8, 1, 6, 9, 8)).astype(np.float32)
    layers = [layer(normal(12, 6, 3, 3))]
    samples = sampled(layers, images)
    samples.elements["x"][3][7] = 30.0
    found = choose_conv_int8(layers, samples, lambda step: None)
    assert 1.5 / 255 < found["x"].scale < 8 / 255
    assert found["y"].error < 0.02


def test_readers_of_a_value_share_its_scale() -> None:
    images = abs(normal(8, 1, 6, 9, 8))
    layers = [layer(normal(12, 6, 3, 3)), layer(normal(6, 1, 3, 3), 6, "z")]
    found = choose_conv_int8(layers, sampled(layers, images), lambda step: None)
    assert set(found) == {"x", "y", "z"} and found["x"].zero == 0 < found["x"].scale
    assert 0 < found["y"].error < 0.02 and 0 < found["z"].error < 0.02


def test_what_is_lost_on_average_is_added() -> None:
    images, w = abs(normal(8, 1, 6, 9, 8)) + 3, normal(12, 6, 3, 3)
    layers = [layer(w)]
    samples = sampled(layers, images)
    chosen = choose_conv_int8(layers, samples, lambda step: None)
    correction = chosen["y"].correction
    assert correction is not None and correction.shape == (12,) and abs(correction).max() > 1e-4


# ---- whole models ----------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = Net()
    x = net.input("x", "n", 6, 12, 12)
    h = net("Relu", net("Conv", x, net.const(normal(16, 6, 3, 3)), pads=[1] * 4, name="one"))
    h = net("MaxPool", h, kernel_shape=[2, 2])
    h = net("Conv", h, net.const(normal(16, 16, 1, 1, seed=2)), net.const(normal(16)), name="two")
    h = net("Add", h, net("Sigmoid", h))
    last = net("Conv", h, net.const(normal(8, 16, 1, 1, seed=5) / 4), name="three")
    path = net.save(tmp_path / "m.onnx", last)
    np.savez(tmp_path / "data.npz", x=normal(9, 1, 6, 12, 12, seed=4))
    return path


def test_samples_of_a_model(model: Path) -> None:
    samples = Samples.of(model.with_name("data.npz"), load(model))
    each = ConvLayer("x", "one", ConvWindow.unit((1, 1)), 1, lambda: normal(16, 6, 1, 1))
    found = sample_convolutions(model, [each], ["two"], samples)
    assert [len(p) for p in found.patches["one"]] == [64] * 9
    assert set(found.elements) == {"x", "two"}
    chosen = choose_conv_int8([each], found, lambda step: None)
    assert 0.1 < chosen["two"].scale < 2 and not chosen["two"].error
    assert max(e.max() for e in found.elements["x"]) == normal(9, 1, 6, 12, 12, seed=4).max()


def result(model: Path, **more: object) -> tuple[str, float]:
    """What the report says of a result in int8, and its error relative to the norm."""
    out = model.with_name("out.onnx")
    options = Options(out, precision="int8", keep="all", **more)  # type: ignore[arg-type]
    report = optimize(model, options)
    x = normal(2, 6, 12, 12, seed=8)
    (found,), (wanted,) = (
        session(path, library).run(None, {"x": x})
        for path, library in ((out, report.library), (model, None))
    )
    return str(report), float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.usefixtures("highest_level")
@pytest.mark.parametrize("data", [True, False])
def test_a_model_runs_in_integers(model: Path, data: bool) -> None:
    given = {"data": model.with_name("data.npz")} if data else {}
    said, error = result(model, max_error=0.05, **given)
    assert 1e-3 < error < 0.03, said
    assert ("3 convolutions were calibrated" in said) == data


@pytest.mark.slow  # searches through many precisions
def test_what_is_too_coarse_is_given_back(model: Path) -> None:
    said, error = result(model, max_error=2e-4, data=model.with_name("data.npz"))
    assert error < 3e-4, said


def test_standard_operators_compute_integers(model: Path) -> None:
    """Every convolution, and what lies between, by ONNX Runtime's own operators."""
    data, out = model.with_name("data.npz"), model.with_name("out.onnx")
    _, error = result(model, max_error=0.05, data=data, custom_ops=False)
    assert 1e-3 < error < 0.03
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(model.with_name("optimized.onnx"))
    onnxruntime.InferenceSession(out, options)
    kinds = [n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node]
    # behind the last convolution nothing is rounded
    assert kinds.count("QLinearConv") == 2 and kinds.count("QLinearAdd") == 1, kinds
    assert kinds.count("QLinearSigmoid") == 1 and "MaxPool" not in kinds, kinds


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (normal(5, 1, 7, 12, 12), "has dims"),
        (np.full((5, 1, 6, 12, 12), np.inf, np.float32), "is not finite everywhere"),
        (np.full((5, 1, 6, 12, 12), 3e38, np.float32), "the model fails on .* is not finite"),
        (np.zeros((0, 1, 6, 12, 12), np.float32), "no set"),
    ],
)
def test_data_that_does_not_fit(model: Path, array: np.ndarray, said: str) -> None:
    data = model.with_name("odd.npz")
    np.savez(data, x=array)
    with pytest.raises(UsageError, match=said):
        result(model, data=data)
