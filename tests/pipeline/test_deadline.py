"""A budget bounds the whole run: what is not finished by then is left out, and said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

from tests.graphs import Net
from tests.tiny import product
from tracea_graph import api
from tracea_graph.check.reference_outputs import Reference
from tracea_graph.check.verify_outputs import Verification
from tracea_graph.check.worker_process import Worker
from tracea_graph.errors import OutOfTime
from tracea_graph.options import Options
from tracea_graph.pipeline import evaluator, stages, step_timer
from tracea_graph.pipeline.candidate_models import EVERY_REWRITE
from tracea_graph.pipeline.compression_search import CompressionSearch
from tracea_graph.pipeline.evaluator import Evaluator
from tracea_graph.pipeline.model_inputs import ModelInputs
from tracea_graph.pipeline.planning import STANDARD_RULES, Planner
from tracea_graph.pipeline.step_timer import Deadline, StepTimer
from tracea_graph.reason_codes import Code


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_clock_counts_the_steps_and_not_what_lies_between() -> None:
    time = Time()
    timer = StepTimer(lambda step: None, now=time)
    time.seconds = 5.0
    assert timer.spent() == 0.0, "nothing has begun"
    timer.step("planning")
    time.seconds = 7.0
    assert timer.spent() == 2.0
    timer.pause()
    time.seconds = 100.0
    timer.step("building it")
    time.seconds = 101.0
    assert timer.spent() == 3.0
    timer.step("done")
    assert timer.seconds == {"planning": 2.0, "building": 1.0}


def test_what_a_deadline_leaves() -> None:
    time = Time()
    deadline = Deadline(20.0, time)
    with deadline.within(5.0):
        time.seconds = 4.0
        assert deadline.left == 1.0
        with deadline.within(3.0):
            assert deadline.left == 1.0, "a part cannot end after the whole"
        with deadline.lifted():
            time.seconds = 6.0
            assert not deadline.over
        assert deadline.over
        assert deadline.left == 0.0
    assert deadline.left == 14.0
    with deadline.suspended():
        time.seconds = 50.0
        assert not deadline.over
    assert deadline.left == 14.0
    time.seconds = 64.0
    assert deadline.over
    deadline.note("so")
    deadline.note("so")
    assert deadline.cut == ["so"]


def outcome(tmp_path: Path, **options: Any) -> Any:
    """What became of a perceptron; the input's bytes are those of the output's model."""
    source, out = product(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    given = Options(output=out, threads=(1,), use_cache=False, **options)
    report = api.optimize(source, given)
    plain, result = onnx.load(source), onnx.load(out)
    assert [n.op_type for n in result.graph.node] == [n.op_type for n in plain.graph.node]
    assert not out.with_suffix(".so").exists()
    assert json.loads(out.with_suffix(".json").read_text())["outcome"] == "kept original"
    return report


@pytest.mark.parametrize("keep", ["faster", "all"])
def test_a_plan_there_is_no_time_for_leaves_the_original(tmp_path: Path, keep: str) -> None:
    report = outcome(tmp_path, keep=keep, budget=1e-9)
    sentence = "planning was not finished in 5e-10 s, its share of the budget"
    assert report.reason == sentence
    assert sentence in report.warnings


@pytest.mark.parametrize("keep", ["faster", "all"])
def test_nothing_is_kept_that_there_was_no_time_to_verify(
    tmp_path: Path, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Evaluator):
        def verify(self, full: Any) -> Any:
            with self.deadline.within(0.0):
                return super().verify(full)

    monkeypatch.setattr(stages, "Evaluator", Late)
    report = outcome(tmp_path, keep=keep)
    assert report.code is Code.OUT_OF_BUDGET


def test_nothing_is_kept_that_there_was_no_time_to_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Evaluator):
        def time(self, candidate: Any) -> Any:
            assert candidate is not None
            with self.deadline.within(0.0):
                return super().time(candidate)

    monkeypatch.setattr(stages, "Evaluator", Late)
    assert outcome(tmp_path).code is Code.OUT_OF_BUDGET


def test_a_plan_that_is_finished_stands_without_its_second_thoughts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unprofitable(planner: Planner, plan: Any) -> Any:
        raise OutOfTime("planning took too long")

    net = Net()
    graph = net.graph(net("Relu", net("MatMul", net.input("x", 64, 32), net.weight(32, 32))))
    deadline = Deadline(20.0, Time())
    planner = Planner(graph, Options(), {}, deadline=deadline)
    monkeypatch.setattr(Planner, "_unprofitable", unprofitable)
    assert any(region.fused for region in planner.plan().graph.regions())
    assert deadline.cut == ["planning ended early: kernels that may save less than 1 µs are kept"]


def test_a_plan_with_smaller_matrices_has_the_same_deadline() -> None:
    net = Net()
    graph = net.graph(net("Relu", net.input("x", 64, 32)))
    planner = Planner(graph, Options(keep="all"), {}, deadline=Deadline(0.0, Time()))
    model, timed = SimpleNamespace(graph=graph), [SimpleNamespace(symbols={})]
    context = SimpleNamespace(model=model, libraries=SimpleNamespace(target=None), planner=planner)
    search_state = SimpleNamespace(
        context=context, inputs=SimpleNamespace(timed=timed), options=Options(keep="all")
    )
    with pytest.raises(OutOfTime):
        CompressionSearch.planner_of(cast(Any, search_state), {}).plan()


def test_time_that_runs_out_while_timing_is_said() -> None:
    class Late(Evaluator):
        def _faster(self, candidate: Any, separately: bool) -> Any:
            raise OutOfTime("planning took too long")

    nothing = cast(Any, None)
    one = Late(nothing, nothing, nothing, Options(), ("avx512",))
    assert one.time(cast(Any, SimpleNamespace())) is None
    said = "the budget of 180 s ran out before the faster part was measured and verified"
    assert one.reason == said


def test_a_worker_is_not_asked_when_there_is_no_time(tmp_path: Path) -> None:
    model = product(tmp_path / "m.onnx")
    with Worker() as worker:
        worker.left = lambda: 0.0
        with pytest.raises(OutOfTime, match=r"no time left to open 'm' \(m\.onnx\)"):
            worker.open("m", model)
        assert worker.alive
        left = iter([1.0, 0.0, 0.0])
        worker.left = lambda: next(left)
        with pytest.raises(OutOfTime):
            worker.open("m", model)
        assert not worker.alive, "nobody waits for what it is at"


class CountingEvaluator(Evaluator):
    """Wrong where ``e`` is on; each look takes four seconds."""

    def check(self, candidate: Any, isas: Any = (), labels: Any = None) -> Verification:
        cast(Time, self.deadline.spent).seconds += 4.0
        if self.deadline.over:
            raise OutOfTime("there was no time left")
        return Verification("failed" if "e" in candidate else "passed", "")

    def build(self, dropped: frozenset[str], levels: Any = ()) -> Any:
        return frozenset() if EVERY_REWRITE in dropped else frozenset("abcdefgh") - dropped


@pytest.fixture
def full() -> Iterator[Any]:
    yield SimpleNamespace(assembly=SimpleNamespace(groups=dict.fromkeys("abcdefgh", ())))


def counting(budget: float) -> tuple[CountingEvaluator, Time]:
    nothing, time = cast(Any, None), Time()
    shop = cast(Any, SimpleNamespace(parts=lambda group: (), names=STANDARD_RULES))
    deadline = Deadline(budget, time)
    return CountingEvaluator(
        nothing, shop, nothing, Options(), ("avx512",), deadline=deadline
    ), time


@pytest.mark.parametrize(
    ("seconds", "dropped"), [(6.0, "abcdefgh"), (18.0, "abcdef"), (21.0, "abcde"), (300.0, "e")]
)
def test_a_search_ends_with_the_least_it_knows(
    seconds: float, dropped: str, full: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_timer, "_BISECTION_CHECKS", 1)
    one, time = counting(seconds / step_timer._BISECTION_SHARE)
    with one._bisection():
        assert one._bisect(full) == set(dropped)
    said = [cut.partition(":")[0] for cut in one.deadline.cut]
    assert said == [f"bisection stopped after {time.seconds:.3g} s"] * (dropped != "e")
    assert time.seconds <= seconds + 4.0


@pytest.mark.parametrize(("budget", "dropped"), [(120.0, "e"), (24.0, "abcdefgh")])
def test_a_busy_machine_drops_no_more_of_them(budget: float, dropped: str, full: Any) -> None:
    """A search of few checks ends when they are made, if half the budget is enough for them."""
    one, time = counting(budget)
    assert step_timer._BISECTION_SHARE * budget < 24.0
    with one._bisection():
        assert one._bisect(full) == set(dropped)
    assert time.seconds <= budget / 2 + 4.0
    assert bool(one.deadline.cut) == (dropped != "e")


def looked_at(monkeypatch: pytest.MonkeyPatch, status: str = "passed") -> list[dict[str, Any]]:
    """What comparisons are asked for; ``status`` is what the one at the highest level finds."""
    asked = list[dict[str, Any]]()

    def compare(*args: Any, **given: Any) -> Verification:
        asked.append({**given, "isa": given["env"].get("TRACEA_ISA")})
        return Verification(status if given["check"] else "passed", "")

    monkeypatch.setattr(evaluator, "compare_with_reference", compare)
    monkeypatch.setattr(evaluator.output_errors, "index_outputs", lambda _: {})
    return asked


def an_evaluator(isas: tuple[str, ...], **more: Any) -> Evaluator:
    small, large = np.zeros(4, np.float32), np.zeros(400, np.float32)
    inputs = ModelInputs((), {}, {"n=400": {"x": large}, "n=1": {"x": small[:1]},
                             "n=4, padded": {"x": small}, "n=400, uniform": {"x": large}},
                    frozenset(("n=400, uniform",)))  # fmt: skip
    nothing = cast(Any, None)
    model = cast(Any, SimpleNamespace(graph=SimpleNamespace(weights={})))
    one = Evaluator(model, nothing, inputs, Options(), isas, **more)
    one._reference = Reference({}, {}, {}, (), (), {})
    return one


def built(*isas: str) -> Any:
    """A model with a library for these levels."""
    return SimpleNamespace(
        model=None, library=Path("l"), runnable=Path("l"), levels=lambda _: isas
    )


def test_kernels_below_the_highest_level_run_once_a_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, one = looked_at(monkeypatch), an_evaluator(("scalar", "avx2"))
    model = built("scalar", "avx2")
    assert one.check(model).status == "passed"
    highest, lower = asked
    assert highest["isa"] == "avx2" and lower["isa"] == "scalar"
    assert highest["levels"] == ("off", "all") and set(lower["levels"]) == {"all"}
    assert highest["bodies"] and not lower["bodies"] and not highest["spare"]
    assert set(lower["spare"]) == {"n=400", "n=1", "n=400, uniform"}, "all but the padded one"
    with one._bisection():
        one.check(model)
    one.check(model)
    brief = [one["brief"] for one in asked]
    assert brief == [False, False, True, True, False, False], "who seeks asks only if it is wrong"


def test_other_levels_are_not_looked_at_where_the_highest_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, one = looked_at(monkeypatch, "failed"), an_evaluator(("scalar", "avx2", "avx512"))
    model = built("scalar", "avx2", "avx512")
    assert one.check(model).status == "failed"
    assert [one["isa"] for one in asked] == ["avx512"]
    assert one._failing == "avx512"
    assert one.check(model, ("avx2", "scalar")).status == "passed"


def test_what_this_machine_cannot_load_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Function bodies are the same at every level, and one worker runs them."""
    asked, one = looked_at(monkeypatch), an_evaluator(("scalar", "neon"))
    model = SimpleNamespace(
        model=None, library=Path("l"), runnable=None, levels=lambda _: ("scalar", "neon")
    )
    assert one.check(cast(Any, model)).status == "passed"
    assert [one["env"] for one in asked] == [{}] and asked[0]["check"]


def test_time_for_another_look_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    one = an_evaluator(("scalar", "avx2"), deadline=Deadline(100.0, time))
    looked_at(monkeypatch)
    compare = evaluator.compare_with_reference

    def slowly(*args: Any, **given: Any) -> Verification:
        time.seconds += 40.0 if given["env"]["TRACEA_ISA"] == "scalar" else 4.0
        return compare(*args, **given)

    monkeypatch.setattr(evaluator, "compare_with_reference", slowly)
    one.check(built("scalar", "avx2"))
    assert one._budget == 100.0 - 44.0 - 4.0, "published files are verified at the highest level"
