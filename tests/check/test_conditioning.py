"""Numbers too large for Softmax and its like are noticed; masks and ties are no such numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from tests.check.tiny_models import graph, save
from tests.graphs import Net, normal, relative_error
from tests.halves import in_double
from tracea_graph import Options, api
from tracea_graph.check.ill_conditioned_outputs import (
    sigmoid_results,
    values_before_saturation,
    why_unstable,
)
from tracea_graph.check.reference_outputs import run_reference

Array = npt.NDArray[Any]
pytestmark = pytest.mark.usefixtures("highest_level")

NET = """g (float[3,8] x) => (float[3,8] y) {
    a = MatMul(x, w)  p = Softmax<axis=-1>(a)  y = Identity(p) }"""


def test_what_is_squashed_before_an_output_is_found() -> None:
    assert values_before_saturation(graph(NET, w=np.eye(8, dtype=np.float32))) == ("a",)
    plain = NET.replace("Softmax<axis=-1>", "Relu")
    assert values_before_saturation(graph(plain, w=np.eye(8, dtype=np.float32))) == ()


def test_results_of_sigmoids_are_found_behind_data_movement() -> None:
    text = """g (float[3,8] x) => (float[6,8] y) {
        p = Sigmoid(x)  r = Relu(x)  t = Transpose<perm=[1,0]>(p)  u = Transpose<perm=[1,0]>(t)
        both = Concat<axis=0>(p, r)  y = Concat<axis=0>(p, u) }"""
    assert sigmoid_results(graph(text)) == {"p", "t", "u", "y"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((1e7, -3e6), True),
        ((3.0, -1e9), False),  # a mask
        ((1e19, 1e19), False),  # a tie of equal sums
        ((np.inf, 3.0), False),
        ((), False),
    ],
)
def test_only_large_numbers_that_differ_are_overturned(
    values: tuple[float, ...], told: bool
) -> None:
    found = why_unstable([{"a": np.array(values, np.float32)}], ["a", "b"])
    assert ("'a' reaches 1e+07" in found) == told
    assert bool(found) == told


def attention(low: float) -> Net:
    """Two layers of peaked attention to the keys that ``m`` keeps; the others score ``low``
    more."""
    net = Net()
    x, hidden = net.input("x", "n", "s", 64), net("Sub", 1.0, net.input("m", "n", 1, "s"))
    for _ in range(2):
        q, k, v = (net("MatMul", x, net.const(normal(64, 64, seed=i) / 3)) for i in range(3))
        scores = net("Mul", net("MatMul", q, net("Transpose", k, perm=[0, 2, 1])), 0.1)
        p = net("Softmax", net("Add", scores, net("Mul", hidden, low)), axis=-1)
        x = net("Add", x, net("MatMul", p, v))
    net.graph(x)
    return net


def hidden_rows() -> dict[str, Array]:
    """Two items, of which the second has no key that is kept."""
    keep = np.repeat(np.array([1, 0], np.float32), 128).reshape(2, 1, 128)
    return {"x": normal(2, 128, 64), "m": keep}


def test_the_noise_of_scores_that_a_mask_hides_is_that_of_float32(tmp_path: Path) -> None:
    net, hidden = attention(-1e4), hidden_rows()
    onnx.save(net.model, tmp_path / "m.onnx")
    feeds = {"hidden": hidden, "seen": {**hidden, "m": np.ones((2, 1, 128), np.float32)}}
    floors = run_reference(tmp_path / "m.onnx", feeds).floors
    errors = {}
    for label, feed in feeds.items():
        errors[label] = relative_error(net.run(feed)[0], in_double(net.model, feed)[0])
    (hidden_floor,), (seen_floor,) = (floors[label].values() for label in feeds)
    assert errors["seen"] < 1e-4 < errors["hidden"]
    assert seen_floor < 1e-6 and errors["hidden"] / 2 < hidden_floor < 10 * errors["hidden"]


@pytest.mark.parametrize("low", [-1e9, -3e38])
def test_scores_that_a_mask_absorbs_have_no_noise(low: float, tmp_path: Path) -> None:
    net = attention(low)
    onnx.save(net.model, tmp_path / "m.onnx")
    (floor,) = (
        run_reference(tmp_path / "m.onnx", {"hidden": hidden_rows()}).floors["hidden"].values()
    )
    assert floor < 1e-6


@pytest.mark.compiler
def test_rows_that_a_mask_hides_drop_no_rewrite(tmp_path: Path) -> None:
    onnx.save(attention(-1e4).model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **hidden_rows())
    options = Options(tmp_path / "out", keep="all", data=tmp_path / "d.npz")
    report = api.optimize(tmp_path / "m.onnx", options)
    assert report.status == "passed" and report.groups and all(g.kept for g in report.groups)


@pytest.mark.compiler
def test_a_net_that_rounding_turns_over_is_kept(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    good = save(tmp_path, "good.onnx", NET, w=w)
    bad = save(tmp_path, "bad.onnx", NET, w=w * np.float32(1e8))
    first, second = api.optimize_many([good, bad], Options(tmp_path / "out", keep="all"))
    assert first.report is not None and first.report.status == "passed" and first.report.kernels
    assert second.report is not None and second.report.status == "inconclusive"
    assert second.report.library is None and "enough to change an output" in second.report.reason
    assert onnx.load(str(second.report.output)) == onnx.load(bad)
