"""Numbers too large for Softmax and its like are noticed; masks and ties are no such numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.check.tiny_models import graph, save
from tracea_graph import Options, api
from tracea_graph.check.ill_conditioned_outputs import (
    sigmoid_results,
    values_before_saturation,
    why_unstable,
)

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
