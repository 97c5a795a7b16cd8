"""Outputs that hardly change with the inputs: more inputs, inner values, and what is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.check.tiny_models import graph, save
from tracea_graph.check.input_sensitivity import (
    FACTOR,
    OutputSensitivity,
    input_dependent_outputs,
    largest_output_changes,
    scaled_feeds,
)
from tracea_graph.check.verify_outputs import verify
from tracea_graph.config import TOLERANCE

RNG = np.random.default_rng(0)
W = RNG.standard_normal((8, 8)).astype(np.float32)
X = RNG.standard_normal((3, 8)).astype(np.float32)
BIASED = """g (float[N,8] x) => (float[N,8] y)
    { h = MatMul(x, w)  s = Mul(h, scale)  y = Add(s, bias) }"""
UNNAMED = """g (float[N,8] x) => (float[N,8] y)
    { a = MatMul(x, w)  b = Mul(a, scale)  y = Add(b, bias) }"""
CHECKED = OutputSensitivity(
    frozenset({"y"}), FACTOR * TOLERANCE.exact, {"other values": {"x": X[::-1].copy()}}, "one"
)


def outcome(folder, scale, candidate=BIASED, wrong=False, sensitivity=CHECKED):
    """Verify a net whose output is 1000 and ``scale`` times what the input gives."""
    held = {"w": W, "scale": np.float32(scale), "bias": np.float32(1000)}
    other = {**held, "w": 0 * W} if wrong else held
    return verify(
        save(folder, "a.onnx", BIASED, **held), save(folder, "b.onnx", candidate, **other), None,
        {"one": {"x": X}}, sensitivity=sensitivity,
    )  # fmt: skip


def test_an_error_hidden_by_a_bias_passes_if_nobody_looks(tmp_path):
    found = outcome(tmp_path, 1e-3, wrong=True, sensitivity=OutputSensitivity())
    assert found.status == "passed" and not found.insensitive


def test_larger_inputs_show_an_error_hidden_by_a_bias(tmp_path):
    found = outcome(tmp_path, 1e-3, wrong=True)
    assert found.status == "failed" and "'y' with one, × " in found.sentence
    right = outcome(tmp_path, 1e-3)
    assert right.status == "passed" and not right.insensitive
    assert {o.feed for o in right.outputs} > {"one", "other values"}


def test_no_larger_inputs_where_scales_were_chosen_for_these(tmp_path):
    """Integers would cut them off."""
    found = outcome(tmp_path, 1e-3, sensitivity=replace(CHECKED, scales=False))
    assert {o.feed for o in found.outputs} == {"one", "other values"}


def test_inner_values_show_what_no_input_does(tmp_path):
    found = outcome(tmp_path, 1e-9, wrong=True)
    assert found.status == "failed" and "inner value 'h' with one" in found.sentence
    right = outcome(tmp_path, 1e-9)
    assert right.status == "passed" and right.insensitive == ("y",) and not right.blind
    assert "so 2 inner values were compared too" in right.sentence


@pytest.mark.parametrize("wrong", [False, True])
def test_a_check_that_cannot_fail_says_so(tmp_path, wrong):
    found = outcome(tmp_path, 1e-9, UNNAMED, wrong)
    assert found.status == "passed" and found.blind
    assert "an error may not show; give real inputs with --data" in found.sentence


def test_changes_are_shares_of_the_larger_run():
    one = {"y": np.float32([1, 2, -4]), "n": np.int64([1]), "rows": np.zeros((2, 3), np.float32)}
    two = {"y": np.float32([1, 2, -2]), "n": np.int64([1]), "rows": np.ones((4, 3), np.float32)}
    assert largest_output_changes([one, two]) == {"y": 0.5, "n": 0.0}
    assert largest_output_changes([one, {"n": np.int64([2])}]) == {"n": np.inf}
    assert largest_output_changes([{"y": np.zeros((0, 3), np.float32)}] * 2) == {}
    assert largest_output_changes([{"y": np.float32([np.nan, 1])}, {"y": np.float32([2, 2])}]) == {
        "y": 0.5
    }


def test_scaled_feeds_leave_masks_and_integers_alone():
    feed = {"x": X, "mask": np.float32([[0, 1, 1]]), "ids": np.arange(5)}
    found = dict(scaled_feeds("one", feed))
    assert list(found) == ["one, × 8", "one, × 64", "one, × 512"]
    for scale, other in zip((8, 64, 512), found.values(), strict=True):
        assert np.array_equal(other["x"], scale * X)
        assert other["mask"] is feed["mask"] and other["ids"] is feed["ids"]
    assert not dict(scaled_feeds("one", {"ids": feed["ids"]}))
    half = dict(scaled_feeds("one", {"x": np.float16([1000, 2, 3])}))
    assert list(half) == ["one, × 8", "one, × 64"]


def test_constants_and_sizes_need_not_change():
    found = graph(
        """g (float[N,8] x) => (float[N,8] y, int64[2] size, float[8,8] fixed, bool[N,8] above)
        { y = Abs(x)  size = Shape(x)  fixed = Abs(w)  above = Greater(x, y) }""",
        w=W,
    )
    assert input_dependent_outputs(found) == {"y"}
    labels = graph("g (float[N,8] x) => (int64[N] i) { i = ArgMax<axis = 1, keepdims = 0>(x) }")
    assert input_dependent_outputs(labels) == {"i"}
