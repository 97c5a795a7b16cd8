"""Groups stay for measured gains only, within the budget, whatever dies meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.check.tiny_models import save
from tracea_graph.check import rewrite_selection
from tracea_graph.check.paired_benchmark import PairedBenchmark, differing_nodes_ratio
from tracea_graph.check.rewrite_selection import ModelWithLibrary, RewriteGroup, select_faster
from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.check.worker_process import NodeTime, SessionInfo
from tracea_graph.errors import BuildError, OutOfTime, WorkerError
from tracea_graph.reason_codes import Code

FEEDS = {"seq=128": {"x": np.zeros(1, np.float32)}}
ORIGINAL = Path("original")


class FakeMachine:
    """Plays workers: a model without groups a and b is the path ``a,b``; times follow gains.

    ``gains`` are shares of the original's 10 ms per thread count, ``noise`` the spread of a run,
    ``deadly`` models kill the worker; comparing two candidates takes ``pause`` seconds of a clock
    that nothing else moves but opening a model, which takes ``opening``.
    """

    def __init__(
        self,
        gains: Mapping[str, float | Mapping[int, float]],
        *,
        noise: float = 0.002,
        deadly: tuple[str, ...] = (),
        pause: float = 0.0,
        opening: float = 0.0,
        installed: tuple[str, ...] = (),
    ) -> None:
        self.gains, self.noise, self.deadly, self.pause = gains, noise, deadly, pause
        self.rng = np.random.default_rng(0)
        self.opening, self.installed = opening, installed
        self.compared: list[tuple[str, str, int]] = []
        self.profiled = self.started = self.stopped = 0
        self.now = 0.0
        self.open_sessions: dict[str, tuple[str, int]] = {}

    def clock(self) -> float:
        return self.now

    def worker(self) -> FakeMachine:
        self.started += 1
        self.open_sessions = {}
        return self

    def build(self, dropped: frozenset[str]) -> ModelWithLibrary:
        return ModelWithLibrary(Path(",".join(sorted(dropped)) or "full"), Path("lib.so"))

    def open(
        self, name: str, model: Path, library: Path | None = None, *, threads: int = 1,
        providers: Sequence[str] = (),
    ) -> Any:  # fmt: skip
        if model.name in self.deadly:
            raise WorkerError(f"the worker died when asked to open {model.name}")
        self.open_sessions[name] = model.name, threads
        self.now += self.opening
        wanted = [p for p in providers if p in self.installed]
        return SessionInfo(0.0, 0, (), (), (*wanted, "CPUExecutionProvider"))

    def gain(self, group: str, threads: int) -> float:
        found = self.gains[group]
        return found[threads] if isinstance(found, Mapping) else found

    def ms(self, name: str) -> float:
        model, threads = self.open_sessions[name]
        off = set(self.gains) if model == "original" else set(model.split(","))
        return 10.0 * (1 - sum(self.gain(g, threads) for g in self.gains if g not in off))

    def compare(
        self, a: str, b: str, feeds: Any, *, pairs: int, seconds: float, **_: Any
    ) -> PairedTimes:
        assert len(self.open_sessions) == 2
        assert self.open_sessions["a"][1] == self.open_sessions["b"][1], "equal thread counts"
        self.compared.append((self.open_sessions["a"][0], self.open_sessions["b"][0], pairs))
        if self.open_sessions["a"][0] != "original":
            self.now += self.pause
        spread = np.exp(self.rng.standard_normal((2, pairs)) * self.noise)
        return PairedTimes(tuple(self.ms(a) * spread[0]), tuple(self.ms(b) * spread[1]))

    def profile_pair(self, a: str, b: str, feeds: Any, runs: int = 15, **_: Any) -> Any:
        self.profiled += 1
        return tuple(
            (NodeTime(f"n{i}", "Op", "", 0.0, (1e3 * self.ms(name) - 7e3,) * runs),)
            for i, name in enumerate((a, b))
        )

    def stop(self) -> None:
        self.stopped += 1


def groups(names: str) -> list[RewriteGroup]:
    return [RewriteGroup(name, (f"rule:{name}",), 100.0 - i) for i, name in enumerate(names)]


def run(machine: FakeMachine, **options: Any) -> Any:
    return select_faster(
        ORIGINAL, groups("".join(machine.gains)), machine.build, FEEDS,
        worker=machine.worker, clock=machine.clock, **options,
    )  # fmt: skip


@pytest.mark.parametrize(("looks", "busy"), [([True, True], True), ([True, False], False)])
def test_what_others_compute_for_long_is_noted(
    looks: list[bool], busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second, longer look tells load from a moment."""
    monkeypatch.setattr(rewrite_selection, "other_processes_busy", lambda *_: looks.pop(0))
    assert run(FakeMachine({"a": 0.2})).busy is busy
    assert not looks


def test_winners_stay_and_losers_go():
    machine = FakeMachine({"a": 0.2, "b": -0.05, "c": 0.03})
    found = run(machine, threads=(1, 2))
    assert found.kept == {"a", "c"} and found.candidate == machine.build(frozenset("b"))
    assert {v.group.key: v.kept for v in found.verdicts} == {"a": True, "b": False, "c": True}
    assert set(found.total) == {(1, "seq=128"), (2, "seq=128")}
    assert found.total[1, "seq=128"].median == pytest.approx(1 / 0.77, rel=0.01)
    assert machine.stopped == machine.started == 1


def test_reasons_carry_numbers():
    found = run(FakeMachine({"a": 0.2, "b": -0.05}))
    reasons = {v.group.key: v.reason for v in found.verdicts}
    codes = {v.group.key: v.code for v in found.verdicts}
    assert reasons["a"].startswith("kept: 1.2") and "at 1 thread, seq=128" in reasons["a"]
    assert codes["a"] is Code.FASTER and codes["b"] is Code.SLOWER


def test_a_group_must_win_at_every_thread_count():
    found = run(FakeMachine({"a": 0.2, "b": {1: 0.05, 2: -0.05}}), threads=(1, 2))
    assert found.kept == {"a"}


def test_a_small_gain_hidden_by_noise_is_seen_in_its_own_nodes():
    machine = FakeMachine({"a": 0.2, "b": 0.004}, noise=0.005)
    found = run(machine)
    verdict = next(v for v in found.verdicts if v.group.key == "b")
    assert machine.profiled and verdict.kept and "its own nodes alone" in verdict.reason
    assert verdict.code is Code.FASTER_NODES  # what a summary prints must not look like a loss


def test_no_gain_at_all_is_dropped():
    machine = FakeMachine({"a": 0.2, "b": 0.0})
    machine.profile_pair = lambda *_, **__: 2 * ((NodeTime("n", "Op", "", 5.0, (5.0,) * 15),),)  # type: ignore[method-assign, assignment]
    verdict = next(v for v in run(machine).verdicts if v.group.key == "b")
    assert not verdict.kept and verdict.code is Code.NOT_FASTER


def test_if_nothing_gains_the_original_is_kept():
    found = run(FakeMachine({"a": -0.02, "b": -0.01}))
    assert found.kept == frozenset() and found.candidate is None
    assert found.total[1, "seq=128"].high < 1.0


def test_what_stayed_must_win_as_a_whole():
    """Each helps beside the other, but both together lose against the original."""
    machine = FakeMachine({"a": 0.05, "b": 0.05})
    machine.ms = lambda name: {"original": 9.0, "full": 9.5, "a": 10.0, "b": 10.0}[  # type: ignore[method-assign]
        machine.open_sessions[name][0]
    ]
    found = run(machine)
    assert found.kept == frozenset()
    assert all(v.code is Code.ORIGINAL_KEPT for v in found.verdicts)


def test_a_single_group_is_the_whole():
    machine = FakeMachine({"a": 0.1})
    assert run(machine).kept == {"a"}
    assert [r[:2] for r in machine.compared] == [("original", "full")]


def test_a_tight_budget_judges_small_groups_together():
    machine = FakeMachine(dict.fromkeys("abcdefgh", 0.03))
    found = run(machine, budget=2.0)
    judged = {r[0] for r in machine.compared} - {"original"}
    assert "a" in judged and any("," in name for name in judged) and len(judged) < 8
    assert found.kept == set("abcdefgh") and "timed together" in found.verdicts[-1].reason
    alone = {v.group.key for v in found.verdicts if v.alone}
    assert "a" in alone and "h" not in alone
    assert all((v.code is Code.FASTER) == v.alone for v in found.verdicts)


def test_the_budget_is_kept_and_what_was_not_timed_is_raced_together():
    machine = FakeMachine(dict.fromkeys("abcd", 0.03), pause=0.5)
    found = run(machine, budget=1.0)
    assert machine.now <= 1.0 + 2 * machine.pause, "the last comparisons may overrun, no more"
    assert found.kept == set("abcd") and found.candidate == machine.build(frozenset())
    together = [v.reason for v in found.verdicts if v.group.key != "a"]
    assert all("but with 2 others" in reason for reason in together)


def test_small_gains_stay_if_together_they_are_one():
    class Blind(FakeMachine):
        """Profiles see nothing."""

        def profile_pair(self, a: str, b: str, feeds: Any, runs: int = 15, **_: Any) -> Any:
            return ((NodeTime("n", "Op", "", 0.0, (1.0,) * runs),),) * 2

    gains = {"a": 0.2} | dict.fromkeys("bcdefg", 0.005)
    found = run(Blind(gains, noise=0.02))
    assert found.kept == set(gains)
    assert any(v.code is Code.FASTER_TOGETHER for v in found.verdicts)


def test_a_whole_that_was_proven_stays_when_noise_hides_its_parts():
    class Disturbed(FakeMachine):
        """Another process starts once the whole was timed."""

        def compare(self, *args: Any, **more: Any) -> PairedTimes:
            found = super().compare(*args, **more)
            if self.compared[-1][0] != "original":
                self.noise = 4.0
            return found

        def profile_pair(self, a: str, b: str, feeds: Any, runs: int = 15, **_: Any) -> Any:
            return ((NodeTime("n", "Op", "", 0.0, (1.0,) * runs),),) * 2

    machine = Disturbed(dict.fromkeys("abcdef", 0.05))
    found = run(machine, budget=3.0)
    assert found.kept == set("abcdef") and found.candidate == machine.build(frozenset())
    assert any(v.code is Code.FASTER_TOGETHER for v in found.verdicts)
    assert all(ratio.low > 1.2 for ratio in found.total.values())


def test_what_is_no_gain_together_goes():
    gains = {"a": 0.2, "s": -0.05} | dict.fromkeys("bcd", 0.0)
    found = run(FakeMachine(gains))
    assert found.kept == {"a"}
    assert any(v.code is Code.SLOWER for v in found.verdicts if v.group.key == "s")


def test_a_model_that_kills_the_worker_ends_only_itself():
    machine = FakeMachine({"a": 0.2, "b": 0.1, "c": -0.05}, deadly=("a",))
    found = run(machine)
    assert found.kept == {"a", "b"} and machine.started == 2
    assert found.verdicts[0].code is Code.NOT_SEPARABLE


def test_a_build_that_fails_keeps_its_group_with_the_whole():
    machine = FakeMachine({"a": 0.2, "b": 0.1})

    def build(dropped: frozenset[str]) -> ModelWithLibrary:
        if dropped:
            raise BuildError("no compiler")
        return machine.build(dropped)

    found = select_faster(
        ORIGINAL, groups("ab"), build, FEEDS, worker=machine.worker, clock=machine.clock
    )
    assert found.kept == {"a", "b"} and found.verdicts[0].code is Code.NOT_SEPARABLE


def test_a_whole_that_does_not_run_drops_everything():
    found = run(FakeMachine({"a": 0.2, "b": 0.1}, deadly=("full",)))
    assert found.kept == frozenset() and found.verdicts[0].code is Code.FAILED_TO_RUN


def test_an_interrupt_stops_the_worker():
    machine = FakeMachine({"a": 0.2, "b": 0.1})

    def interrupted(*_: Any, **__: Any) -> PairedTimes:
        raise KeyboardInterrupt

    machine.compare = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(machine)
    assert machine.stopped == 1


def test_without_groups_nothing_is_measured():
    machine = FakeMachine({})
    assert run(machine).kept == frozenset() and not machine.started


def test_own_nodes_cancel_what_both_models_have():
    def node(name: str, us: float) -> NodeTime:
        return NodeTime(name, "Op", "", us, (us,) * 8)

    both = [node("shared", 500.0), node("", 7.0)]
    found = differing_nodes_ratio(
        [*both, node("x", 103.0), node("y", 100.0)], [*both, node("z", 102.0)]
    )
    assert found.median == pytest.approx((1 + 101 + 98) / (1 + 100))
    assert differing_nodes_ratio(both, both).median == 1.0


def test_real_models_through_a_real_worker(tmp_path):
    """Ten times as wide a product takes ten times as long, which no neighbour hides for long.

    The original is 100 times as wide as what stays: without group a the whole is no narrower, with
    group b it is ten times as wide as without.
    """
    rng = np.random.default_rng(0)

    def product(width: int) -> Path:
        u, v = (rng.standard_normal(s).astype(np.float32) for s in ((64, width), (width, 64)))
        text = "g (float[N,64] x) => (float[N,64] y) { h = MatMul(x, u)  y = MatMul(h, v) }"
        return save(tmp_path, f"{width}.onnx", text, u=u, v=v)

    fast, whole, slow = map(product, (96, 960, 9600))
    models = {frozenset(): whole, frozenset("a"): slow, frozenset("b"): fast}
    feeds = {"N=64": {"x": rng.standard_normal((64, 64)).astype(np.float32)}}
    found = select_faster(
        slow,
        groups("ab"),
        lambda dropped: ModelWithLibrary(models[dropped], None),
        feeds,
        budget=1e4,
    )
    assert found.kept == {"a"} and found.candidate == ModelWithLibrary(fast, None)
    ratios = {v.group.key: v.ratios[1, "N=64"].median for v in found.verdicts}
    assert ratios["a"] > 1.5 and ratios["b"] < 0.8
    assert found.total[1, "N=64"].median > 1.5


@pytest.mark.parametrize("installed", [(), ("SomeProvider",)])
def test_the_original_runs_in_a_provider_that_is_installed(installed: tuple[str, ...]) -> None:
    machine = FakeMachine({"a": 0.2}, installed=installed)
    found = run(machine, providers=("OtherProvider", "SomeProvider"))
    said = [note for note in found.notes if "timed in" in note]
    assert said == [f"the original was timed in ONNX Runtime's {one}" for one in installed]


def test_a_gain_proven_at_one_thread_count_need_only_be_likely_at_the_other():
    machine = FakeMachine(
        {"a": 0.2, "b": {1: 0.05, 2: 0.012}, "c": {1: 0.05, 2: -0.01}}, noise=0.01
    )
    found = run(machine, threads=(1, 2))
    kept = {v.group.key: v.kept for v in found.verdicts}
    assert kept == {"a": True, "b": True, "c": False}


class SlowMachine(FakeMachine):
    """A pair takes 20 ms, and no comparison takes longer than it may."""

    def compare(
        self, a: str, b: str, feeds: Any, *, pairs: int, seconds: float, **_: Any
    ) -> PairedTimes:
        pairs = max(1, min(pairs, int(seconds / 0.02)))
        self.now += 0.02 * pairs
        return super().compare(a, b, feeds, pairs=pairs, seconds=seconds)


def test_a_slow_model_may_use_the_whole_budget_for_its_one_race():
    """A first look of 0.1 s is five pairs, too few to tell anything."""
    found = run(SlowMachine({"a": 0.03, "b": 0.03}), budget=0.5)
    assert found.kept == {"a", "b"} and found.total[1, "seq=128"].pairs >= 8


def test_a_whole_that_takes_long_to_open_is_raced_at_every_thread_count():
    machine = FakeMachine({"a": 0.4, "b": 0.2}, opening=0.8, pause=1.0)
    found = run(machine, threads=(1, 2), budget=5.0)
    assert found.candidate == machine.build(frozenset()) and found.kept == {"a", "b"}
    assert set(found.total) == {(1, "seq=128"), (2, "seq=128")}
    slower = FakeMachine({"a": -0.4, "b": -0.2}, opening=0.8, pause=1.0)
    assert run(slower, threads=(1, 2), budget=5.0).candidate is None
    whole = [b for a, b, _ in slower.compared if a == "original"]
    assert whole == ["full"], "a loss at one is enough"


def test_opening_models_takes_nothing_of_a_race():
    machine, given = FakeMachine({"a": 0.4}, opening=1.0), []
    compare = machine.compare

    def noted(*args: Any, seconds: float, **more: Any) -> PairedTimes:
        given.append(seconds)
        return compare(*args, seconds=seconds, **more)

    machine.compare = noted  # type: ignore[method-assign]
    with PairedBenchmark(machine.worker, FEEDS, (1,), 10.0, machine.clock) as bench:
        bench.compare_all(ModelWithLibrary(ORIGINAL, None), machine.build(frozenset()), 0.5)
    assert given == [0.5]
    with PairedBenchmark(machine.worker, FEEDS, (1,), 2.25, machine.clock) as bench:
        bench.compare_all(ModelWithLibrary(ORIGINAL, None), machine.build(frozenset()), 0.5)
    assert given == [0.5, 0.25], "but all must end in time"


def test_no_time_to_plan_what_stays_leaves_a_proven_whole():
    def build(dropped: frozenset[str]) -> ModelWithLibrary:
        if len(dropped) > 1:
            raise OutOfTime("planning took too long")
        return machine.build(dropped)

    machine = FakeMachine({"a": 0.4, "b": 0.0, "c": 0.0}, noise=1e-5)
    machine.profile_pair = lambda *_, **__: 2 * ((NodeTime("n", "Op", "", 5.0, (5.0,) * 15),),)  # type: ignore[method-assign, assignment]
    found = select_faster(ORIGINAL, groups("abc"), build, FEEDS, worker=machine.worker)
    assert found.kept == {"a", "b", "c"} and found.candidate == machine.build(frozenset())
    machine.gains = {"a": 0.4, "b": -0.1, "c": -0.1}
    found = select_faster(ORIGINAL, groups("abc"), build, FEEDS, worker=machine.worker)
    assert found.candidate is None, "what loses was seen to: the whole is not the best"


def test_a_busy_machine_races_the_whole_again_before_parts_are_planned():
    """At two threads the first pairs say nothing; no time is left once a part was planned."""

    class Busy(SlowMachine):
        def compare(self, a: str, b: str, feeds: Any, **more: Any) -> PairedTimes:
            early = len(self.compared) < 3
            self.noise = 1.5 if early and self.open_sessions[a][1] == 2 else 0.002
            return super().compare(a, b, feeds, **more)

    def build(dropped: frozenset[str]) -> ModelWithLibrary:
        if dropped:
            machine.now = 10.0
            raise OutOfTime("planning took too long")
        return machine.build(dropped)

    machine = Busy({"a": 0.4, "b": 0.2})
    found = select_faster(
        ORIGINAL, groups("ab"), build, FEEDS, threads=(1, 2), budget=10.0,
        worker=machine.worker, clock=machine.clock,
    )  # fmt: skip
    assert found.candidate == machine.build(frozenset()) and found.kept == {"a", "b"}
    assert all(ratio.low > 2.0 for ratio in found.total.values())


def test_what_is_known_of_the_whole_is_not_measured_again():
    first = run(FakeMachine({"a": 0.4, "b": 0.2}))
    machine = FakeMachine({"a": 0.4, "b": 0.2})
    found = run(machine, known=first.total)
    assert found.kept == {"a", "b"} and found.total == first.total
    assert "original" not in {a for a, _, _ in machine.compared}
    machine = FakeMachine({"a": 0.4, "b": -0.2})
    found = run(machine, known=first.total)
    assert found.kept == {"a"} and found.total != first.total, "the rest is another model"


@pytest.mark.parametrize(("noise", "least", "most"), [(0.3, 1, 3), (0.004, 1, 12)])
def test_a_gain_that_no_more_pairs_can_prove_ends_its_rounds(noise, least, most):
    """Of 1 % where a run varies by 30 %, 180 pairs show nothing; where by 0.4 %, they do."""
    machine = FakeMachine({"a": 0.01}, noise=noise)
    machine.profile_pair = lambda *_, **__: 2 * ((NodeTime("n", "Op", "", 5.0, (5.0,) * 15),),)  # type: ignore[method-assign, assignment]
    with PairedBenchmark(machine.worker, FEEDS, (1,), 60.0, machine.clock) as bench:
        found = bench.compare_at(
            ModelWithLibrary(ORIGINAL, None), machine.build(frozenset()), (1, "seq=128"), 60.0,
            screen=True,
        )  # fmt: skip
    assert least <= len(machine.compared) <= most
    assert found.win == (noise < 0.1)
