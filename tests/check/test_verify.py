"""Verification passes what is right, fails what is not, and admits what it cannot tell."""

from __future__ import annotations

import math
import shutil

import ml_dtypes
import numpy as np
import pytest

from tests.check.test_worker import bad_library
from tests.check.tiny_models import graph, save
from tracea_graph.check.bisection import find_faulty_rewrites
from tracea_graph.check.ill_conditioned_outputs import sigmoid_results
from tracea_graph.check.output_errors import (
    ElementwiseTolerance,
    ErrorLimits,
    index_outputs,
    is_tie_within_tolerance,
    measure_errors,
    noise_floors,
)
from tracea_graph.check.reference_outputs import run_reference
from tracea_graph.check.verify_outputs import (
    OutputError,
    Verification,
    compare_with_reference,
    verify,
)
from tracea_graph.check.worker_process import Worker
from tracea_graph.config import TOLERANCE

RNG = np.random.default_rng(0)
W = RNG.standard_normal((8, 8)).astype(np.float32)
FEEDS = {"one": {"x": RNG.standard_normal((3, 8)).astype(np.float32)}}
MATMUL = "g (float[N,8] x) => (float[N,8] y) { y = MatMul(x, w) }"


def outcome(folder, original, candidate, feeds=FEEDS, *, weights=None, other=None, **options):
    weights = weights or {}
    a = save(folder, "a.onnx", original, **weights)
    b = save(folder, "b.onnx", candidate, **(other or weights))
    return verify(a, b, None, feeds, **options)


def test_what_is_just_too_much_is_told_from_what_is_allowed(tmp_path):
    found = outcome(
        tmp_path,
        "g (float[N,8] x) => (float[N,8] y) { y = Abs(x) }",
        "g (float[N,8] x) => (float[N,8] y) { a = Abs(x)  y = Mul(a, w) }",
        other={"w": np.float32(1 - 1.0004e-2)},
        limits=ErrorLimits(1e-2),
    )
    assert found.status == "failed"
    assert "off by 1.000" in found.sentence and "1.0e-02 is allowed" in found.sentence


def test_an_equal_model_passes_with_figures(tmp_path):
    found = outcome(tmp_path, MATMUL, MATMUL, weights={"w": W})
    (entry,) = found.outputs
    assert found.status == "passed" and "1.0e-04 is allowed" in found.sentence
    assert (entry.output, entry.feed, entry.passed) == ("y", "one", True)
    assert entry.relative == 0.0 and entry.cosine == pytest.approx(1.0)


def test_an_error_above_the_tolerance_fails_and_below_passes(tmp_path):
    wrong = {"w": W * np.float32(1.001)}
    found = outcome(tmp_path, MATMUL, MATMUL, weights={"w": W}, other=wrong)
    assert found.status == "failed" and "'y' with one" in found.sentence
    assert found.worst == pytest.approx(1e-3, rel=0.01)
    lossy = outcome(
        tmp_path, MATMUL, MATMUL, weights={"w": W}, other=wrong, limits=ErrorLimits(1e-2)
    )
    assert lossy.status == "passed"


def test_nan_and_infinities_must_lie_in_the_same_places(tmp_path):
    text = "g (float[4] x) => (float[4] y) { y = Log(x) }"
    feeds = {"edge": {"x": np.array([-1, 0, 1, 2], np.float32)}}
    assert outcome(tmp_path, text, text, feeds).status == "passed"
    clipped = "g (float[4] x) => (float[4] y) { a = Abs(x)  y = Log(a) }"
    found = outcome(tmp_path, text, clipped, feeds)
    assert found.status == "failed" and "NaN or infinities" in found.sentence


def test_answers_without_a_finite_number_prove_nothing(tmp_path):
    feeds = {"one": {"x": np.full((3, 8), np.nan, np.float32)}}
    found = outcome(tmp_path, MATMUL, MATMUL, feeds, weights={"w": W})
    assert found.status == "inconclusive" and "nothing but NaN" in found.sentence
    found = outcome(tmp_path, MATMUL, MATMUL, {**feeds, **FEEDS}, weights={"w": W})
    assert found.status == "passed"


def test_a_changed_interface_fails(tmp_path):
    renamed = MATMUL.replace("y", "z")
    found = outcome(tmp_path, MATMUL, renamed, weights={"w": W})
    assert found.status == "failed" and "outputs are z" in found.sentence
    narrower = MATMUL.replace("float[N,8] x", "float[3,8] x")
    assert outcome(tmp_path, MATMUL, narrower, weights={"w": W}).status == "passed"


def test_discrete_outputs_must_be_equal(tmp_path):
    text = "g (int64[3] x) => (int64[3] y, bool[3] z) { y = Add(x, x)  z = Equal(x, y) }"
    wrong = text.replace("Add", "Mul")
    feeds = {"one": {"x": np.array([0, 2, 3], np.int64)}}
    found = outcome(tmp_path, text, wrong, feeds)
    failed = {o.output: o.note for o in found.outputs if not o.passed}
    assert failed == {"y": "1 of 3 elements differ"}


ARGMAX = """g (float[N,8] x) => (int64[N] i) {
    s = MatMul(x, w)  k = ArgMax<axis=1, keepdims=0>(s)  i = Identity(k) }"""


@pytest.mark.parametrize(("gap", "status"), [(1e-6, "passed"), (0.5, "failed")])
def test_an_index_may_differ_only_where_scores_are_close(tmp_path, gap, status):
    near = np.zeros((8, 8), np.float32)
    near[0, 2], near[0, 5] = 1.0, 1.0 - gap
    swapped = near.copy()
    swapped[0, 2], swapped[0, 5] = near[0, 5], near[0, 2]
    feeds = {"one": {"x": np.eye(1, 8, dtype=np.float32)}}
    found = outcome(
        tmp_path, ARGMAX, ARGMAX, feeds,
        weights={"w": near}, other={"w": swapped},
        index_outputs=index_outputs(graph(ARGMAX, w=near)),
    )  # fmt: skip
    assert found.status == status, found.sentence
    assert [o.output for o in found.outputs] == ["i"], "scores are no output"


def test_index_outputs_are_found_behind_views():
    text = """g (float[2,5] x, int64[1] k) => (float[2,k] v, int32[2,k] i, int64[1,5] j) {
        v, t = TopK(x, k)  i = Cast<to=6>(t)  j = ArgMin(x) }"""
    found = index_outputs(graph(text))
    assert {n: (c.scores, c.axis) for n, c in found.items()} == {"i": ("x", -1), "j": ("x", 0)}


def test_an_index_out_of_range_is_never_undecided():
    scores, index = np.zeros((2, 3)), np.array([0, 3])
    assert not is_tie_within_tolerance(index, np.zeros(2, np.int64), scores, 1, 1e-4)
    assert is_tie_within_tolerance(np.array([0, 2]), np.zeros(2, np.int64), scores, 1, 1e-4)


def test_the_floor_is_what_the_runtime_moves_itself(tmp_path):
    text = "g (float16[N,64] x) => (float16[N,64] y) { h = MatMul(x, w)  y = Tanh(h) }"
    w = RNG.standard_normal((64, 64)).astype(np.float16)
    feeds = {"one": {"x": RNG.standard_normal((9, 64)).astype(np.float16)}}
    (entry,) = outcome(tmp_path, text, text, feeds, weights={"w": w}).outputs
    assert entry.passed and 0.0 <= entry.floor < 1e-2


def test_noise_under_one_feed_is_the_floor_of_all_but_a_wild_feed_is_not():
    def runs(**values):
        return {feed: {"y": np.array([1.0, *v])} for feed, v in values.items()}

    off = runs(calm=[0.5], noisy=[0.5], alike=[0.5])
    found = noise_floors(off, runs(calm=[0.5], noisy=[0.5 + 3e-4], alike=[0.5]))
    assert [run["y"] for run in found.values()] == pytest.approx([3e-4] * 3)
    found = noise_floors(off, runs(calm=[0.5], noisy=[0.9], alike=[math.nan]))
    assert found["calm"]["y"] == TOLERANCE.lent_floor
    assert found["noisy"]["y"] == pytest.approx(0.4) and found["alike"]["y"] == math.inf


@pytest.mark.parametrize(("wrong", "status"), [(0, "passed"), (1, "passed"), (3, "failed")])
def test_numbers_of_16_bits_may_be_rounded_the_other_way(tmp_path, wrong, status):
    text = "g (float[2] x) => (float16[2] y) { h = Add(x, w)  y = Cast<to = 10>(h) }"
    feeds = {"one": {"x": np.array([1.0, -0.5], np.float32)}}
    found = outcome(tmp_path, text, text, feeds, weights={"w": np.zeros(2, np.float32)},
                    other={"w": np.array([wrong * 2.0**-10, 0], np.float32)})  # fmt: skip
    assert found.status == status, found.sentence


@pytest.mark.parametrize(
    ("name", "one"),
    [("float16", 2.0**-10), ("bfloat16", 2.0**-7), ("float8_e4m3fn", 2.0**-3), ("float32", 0.0)],
)
def test_an_output_may_be_off_by_one_number_of_its_type(name, one):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    run = {"one": {"y": np.array([1.0, 0.5]).astype(dtype)}}
    (found,) = noise_floors(run, run)["one"].values()
    assert ErrorLimits().allowed("y", found) == max(one, TOLERANCE.exact)


def test_failing_feeds_are_those_that_no_smaller_one_outdoes():
    def error(feed, relative):
        return OutputError("y", feed, relative, relative, 1.0, 0.0, relative < 1e-2)

    found = {"n=400": 2e-2, "n=1": 1e-3, "n=4, padded": 3e-2, "n=400, uniform": 4e-2}
    verification = Verification("failed", "", tuple(map(error, found, found.values())))
    sizes = {"n=400": 400, "n=1": 1, "n=4, padded": 4, "n=400, uniform": 400}
    assert verification.failing_feeds(sizes.__getitem__) == {"n=400, uniform", "n=4, padded"}


def test_an_allowed_error_of_zero_has_shares():
    def shares(relative):
        one = OutputError("y", "n=1", relative, relative, 1.0, 0.0, not relative)
        found = Verification(
            "", "", (one,), limits=ErrorLimits(tolerance=0.0, tolerance_given=True)
        )
        return found.spent, found.exceeded

    assert shares(0.0) == (0.0, math.inf) and shares(1e-7) == (0.0, math.inf)


@pytest.mark.parametrize("top", [1e-5, 0.5])
def test_tiny_results_of_a_sigmoid_are_as_accurate_as_its_range(top):
    run = {"one": {"p": np.array([top, top / 2], np.float32)}}
    assert noise_floors(run, run) == {"one": {"p": 0.0}}
    found = noise_floors(run, run, sigmoids={"p"})["one"]["p"]
    assert found * top == pytest.approx(TOLERANCE.sigmoid)
    nothing = {"one": {"p": np.zeros(2, np.float32)}}
    assert noise_floors(nothing, nothing, sigmoids={"p"}) == {"one": {"p": 0.0}}


@pytest.mark.parametrize(("wrong", "status"), [(2e-7, "passed"), (4e-7, "failed")])
def test_a_tiny_probability_may_be_off_by_the_error_of_a_sigmoid(tmp_path, wrong, status):
    text = "g (float[2] x) => (float[2] y) { h = Sigmoid(x)  y = Identity(h) }"
    other = "g (float[2] x) => (float[2] y) { h = Sigmoid(x)  y = Add(h, w) }"
    shift = np.full(2, wrong, np.float32)
    paths = save(tmp_path, "a.onnx", text), save(tmp_path, "b.onnx", other, w=shift)
    feeds = {"one": {"x": np.array([-11.0, -12.0], np.float32)}}
    known = run_reference(paths[0], feeds, sigmoids=sigmoid_results(graph(text)))
    assert compare_with_reference(known, paths[1], None, feeds).status == status
    assert (
        compare_with_reference(run_reference(paths[0], feeds), paths[1], None, feeds).status
        == "failed"
    )


def test_rejected_feeds_are_named_and_all_rejected_is_inconclusive(tmp_path):
    bad = {"bad": {"x": np.ones((3, 7), np.float32)}}
    found = outcome(tmp_path, MATMUL, MATMUL, {**FEEDS, **bad}, weights={"w": W})
    assert found.status == "passed" and list(found.rejected) == ["bad"]
    found = outcome(tmp_path, MATMUL, MATMUL, bad, weights={"w": W})
    assert found.status == "inconclusive" and "--data" in found.sentence


def test_feeds_to_spare_are_for_models_that_run_in_no_time(tmp_path, monkeypatch):
    path = save(tmp_path, "a.onnx", MATMUL, w=W)
    feeds = {**FEEDS, "more": FEEDS["one"], "still more": FEEDS["one"]}
    spare = {"more", "still more"}
    monkeypatch.setattr("tracea_graph.check.reference_outputs.SPARE", 1e4)
    whole = run_reference(path, feeds, spare=spare)
    assert whole.off.keys() == feeds.keys()
    monkeypatch.setattr("tracea_graph.check.reference_outputs.SPARE", 0.0)
    known = run_reference(path, feeds, spare=spare)
    assert known.off.keys() == {"one"} and not known.rejected
    found = compare_with_reference(known, path, None, feeds)
    assert found.status == "passed" and {o.feed for o in found.outputs} == {"one"}
    monkeypatch.setattr("tracea_graph.check.verify_outputs.SPARE", 0.0)
    found = compare_with_reference(whole, path, None, feeds, spare=spare)
    assert found.status == "passed" and {o.feed for o in found.outputs} == {"one"}
    assert {
        o.feed for o in compare_with_reference(whole, path, None, feeds).outputs
    } == feeds.keys()


def test_feeds_to_spare_come_last(tmp_path, monkeypatch):
    path, order = save(tmp_path, "a.onnx", MATMUL, w=W), []
    feeds = {"one": FEEDS["one"], "two": {"x": 2 * FEEDS["one"]["x"]}}
    known, run = run_reference(path, feeds), Worker.run

    def noted(worker, name, feed, **more):
        order.append(next(k for k in feeds if feeds[k]["x"] is feed["x"]))
        return run(worker, name, feed, **more)

    monkeypatch.setattr(Worker, "run", noted)
    compare_with_reference(known, path, None, feeds, spare={"one"}, levels=("all",))
    assert order == ["two", "one"]


def test_a_brief_look_ends_with_the_first_wrong_output(tmp_path):
    right, wrong = (save(tmp_path, f"{i}.onnx", MATMUL, w=W * i) for i in (1, 2))
    feeds = {**FEEDS, "more": FEEDS["one"]}
    known = run_reference(right, feeds)
    for brief, looked_at in ((False, {"one", "more"}), (True, {"one"})):
        found = compare_with_reference(known, wrong, None, feeds, brief=brief)
        assert found.status == "failed" and {o.feed for o in found.outputs} == looked_at
    assert compare_with_reference(known, right, None, feeds, brief=True).status == "passed"


@pytest.mark.parametrize(
    ("asked", "opened"), [(("off", "all"), ["off", "all"]), (("all",), ["all"])]
)
def test_a_candidate_runs_at_the_levels_asked_for(tmp_path, monkeypatch, asked, opened):
    path, seen = save(tmp_path, "a.onnx", MATMUL, w=W), []
    known = run_reference(path, FEEDS)
    open_ = Worker.open

    def noted(worker, *args, level, **more):
        seen.append(level)
        return open_(worker, *args, level=level, **more)

    monkeypatch.setattr(Worker, "open", noted)
    assert compare_with_reference(known, path, None, FEEDS, levels=asked).status == "passed"
    assert seen == opened


NOISY = """g (float[N,8] x) => (float[N,8] y) {
    r = RandomNormalLike(x)  n = Mul(r, half)  y = Add(x, n) }"""
DROPPING = """g (float[N,8] x) => (float[N,8] y) {
    h = Mul(x, two)  d, m = Dropout(h, half, yes)  y = Relu(d) }"""
NUMBERS = {"half": np.float32(0.5), "two": np.float32(2.0), "yes": np.array(True)}


@pytest.mark.parametrize(
    ("text", "wrong", "said"),
    [
        (NOISY, NOISY.replace("Add(x, n)", "Add(x, r)"), "'y'"),
        (DROPPING, DROPPING.replace("Relu(d)", "Abs(d)"), "'y'"),
        (DROPPING, DROPPING.replace("Mul(x, two)", "Add(x, two)"), "'d.drawn_from'"),
    ],
)
def test_random_values_are_fed_alike(tmp_path, text, wrong, said):
    found = outcome(tmp_path, text, text, weights=NUMBERS)
    assert found.status == "passed" and "were fed the same" in found.sentence
    found = outcome(tmp_path, text, wrong, weights=NUMBERS)
    assert found.status == "failed" and said in found.sentence


def test_samples_of_a_distribution_are_fed_alike(tmp_path):
    text = """g (float[N,8] x) => (float[N,8] y, int32[N,3] s) {
        p = Sigmoid(x)  b = Bernoulli(p)  y = Mul(b, x)  s = Multinomial<sample_size = 3>(x) }"""
    assert outcome(tmp_path, text, text).status == "passed"
    found = outcome(tmp_path, text, text.replace("Sigmoid(x)", "HardSigmoid(x)"))
    assert found.status == "failed" and "'b.drawn_from'" in found.sentence


def test_random_values_of_other_names_cannot_be_compared(tmp_path):
    found = outcome(
        tmp_path, NOISY, NOISY.replace("r ", "q ").replace("(r,", "(q,"), weights=NUMBERS
    )
    assert found.status == "inconclusive" and "writes 'r'" in found.sentence


def test_random_values_of_a_branch_are_inconclusive(tmp_path):
    text = """g (float[N,8] x) => (float[N,8] y) {
        y = If(yes) <then_branch = a () => (float[N,8] t) { t = RandomNormalLike(x) },
                     else_branch = b () => (float[N,8] e) { e = Relu(x) }> }"""
    found = outcome(tmp_path, text, text, weights={"yes": NUMBERS["yes"]})
    assert found.status == "inconclusive" and "differently each time" in found.sentence


def test_a_broken_original_is_inconclusive_a_broken_candidate_fails(tmp_path):
    good = save(tmp_path, "a.onnx", MATMUL, w=W)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nonsense")
    assert verify(broken, good, None, FEEDS).status == "inconclusive"
    found = verify(good, broken, None, FEEDS)
    assert found.status == "failed" and "does not run" in found.sentence


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_a_library_that_crashes_fails_the_candidate(tmp_path):
    good = save(tmp_path, "a.onnx", MATMUL, w=W)
    found = verify(good, good, bad_library(tmp_path, "abort();"), FEEDS)
    assert found.status == "failed" and "SIGABRT" in found.sentence


def test_errors_by_hand():
    found = measure_errors(np.array([1.0, 2.5]), np.array([1.0, 2.0]))
    assert (found.max_abs, found.relative) == (0.5, 0.25)
    assert measure_errors(np.zeros(2), np.zeros(3)).relative == math.inf
    assert measure_errors(np.array([1e-6]), np.array([0.0])).relative == 1e-6
    assert measure_errors(np.array([1j]), np.array([-1j])).cosine == pytest.approx(-1.0)
    assert measure_errors(np.zeros(0), np.zeros(0)).relative == 0.0
    flushed = measure_errors(np.float32([1e-40, 0.0]), np.float32([1e-40, 1e-41]))
    assert flushed.relative == 0.0 and flushed.max_abs > 0.0
    assert measure_errors(np.float32([1e-37]), np.float32([2e-37])).relative == pytest.approx(0.5)


# ---- bisection -------------------------------------------------------------------------


@pytest.mark.parametrize("culprits", [{"r3"}, {"r0"}, {"r15"}, {"r2", "r13"}, {"r4", "r5", "r9"}])
def test_bisection_finds_what_fails_together_in_few_calls(culprits):
    calls: list[frozenset[str]] = []

    def fails(on: frozenset[str]) -> bool:
        calls.append(on)
        return culprits <= on

    rewrites = [f"r{i}" for i in range(16)]
    assert find_faulty_rewrites(rewrites, fails) == culprits
    assert len(calls) <= 1 + 2 * len(culprits) * 4 + 2
    assert len(calls) == len(set(calls)), "no set is built twice"


def test_bisection_without_patience_blames_all_after_one_call():
    calls = []

    def fails(on: frozenset[str]) -> bool:
        calls.append(on)
        return "b" in on

    assert find_faulty_rewrites("abcd", fails, has_time=lambda: False) == frozenset("abcd")
    assert len(calls) == 1


def test_bisection_of_the_innocent_blames_nobody():
    assert find_faulty_rewrites(["a", "b"], lambda on: False) == frozenset()
    assert find_faulty_rewrites([], lambda on: True) == frozenset()


def test_a_callers_own_rule_takes_the_place_of_the_share() -> None:
    wanted = np.array([100.0, 1e-3, np.nan], np.float32)
    near = np.array([100.0, 2e-3, np.nan], np.float32)
    assert ElementwiseTolerance(atol=2e-3).accepts(near, wanted)
    assert not ElementwiseTolerance(rtol=1e-2).accepts(near, wanted)
    assert not ElementwiseTolerance(rtol=9.0, atol=9.0).accepts(near[:2], wanted)
