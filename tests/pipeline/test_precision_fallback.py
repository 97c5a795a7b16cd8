"""Rounding that adds up to too much is given up from the front, as far as needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import onnx
import pytest

from tests.graphs import Net, normal
from tracea_graph.check.output_errors import ErrorLimits
from tracea_graph.check.rewrite_selection import (
    GroupSelection,
    GroupVerdict,
    ModelWithLibrary,
    RewriteGroup,
)
from tracea_graph.check.verify_outputs import OutputError, Verification
from tracea_graph.onnx_io import load
from tracea_graph.options import Options
from tracea_graph.pipeline import evaluator
from tracea_graph.pipeline.candidate_models import EVERY_REWRITE, CandidateBuilder
from tracea_graph.pipeline.evaluator import Evaluator
from tracea_graph.pipeline.planning import Planner
from tracea_graph.pipeline.precision_fallback import precision_fallback
from tracea_graph.pipeline.result_assembly import row_tiling_key
from tracea_graph.target import BACKENDS

COUNTS = {"conv-bf16": 20, "gemm-bf16": 8, "gemm-int16": 8}


EIGHT = tuple(f"gemm-bf16 {i + 1}" for i in range(8))


class Shop:
    """A model with 20 convolutions and 8 products in bf16, which integers could take."""

    names = BACKENDS[0].rules

    def precision_keys(self, rule: str) -> tuple[str, ...]:
        return tuple(f"{rule} {i + 1}" for i in range(COUNTS.get(rule, 0)))


@dataclass
class Strict(Evaluator):
    """Within tolerance without the first ``needed`` regions of ``rule``, and of all of ``too``."""

    rule: str = "conv-bf16"
    needed: int = 1
    too: str = ""
    asked: int = 0

    def _error(self, dropped: frozenset[str]) -> float:
        self.asked += 1
        ends = {key.split()[0]: int(key.split()[1]) for key in dropped if " " in key}
        whole = not self.too or ends.get(self.too) == COUNTS[self.too]
        return 2.0 if ends.get(self.rule, 0) < self.needed or not whole else 0.5


FEEDS = cast(Any, SimpleNamespace(bytes_of=lambda feed: 1))


def strict(precision: str = "bf16", **more: Any) -> Strict:
    nothing = cast(Any, None)
    options = Options(precision=precision)
    failed = Verification("failed", "it was wrong", (), {}, ErrorLimits(1e-2))
    more["verification"] = failed
    return Strict(nothing, cast(Any, Shop()), FEEDS, options, ("avx512",), **more)


@pytest.mark.parametrize("needed", range(1, 21))
def test_the_front_stays_exact_as_far_as_needed(needed: int) -> None:
    one = strict(needed=needed)
    (key,) = one._precision_culprits()
    kept = int(key.split()[1])
    assert needed <= kept <= needed + 1
    assert one.asked <= 8
    places = f" in {kept} of 20 places" if kept < 20 else ""
    assert one.warnings == [f"dropped conv-bf16{places}: otherwise, it was wrong"]


def test_another_rule_where_the_first_is_not_to_blame() -> None:
    (key,) = strict(rule="gemm-bf16", needed=3)._precision_culprits()
    assert key == "gemm-bf16 3"


def test_two_rules_where_neither_is_enough() -> None:
    one = strict(rule="conv-bf16", needed=6, too="gemm-bf16")
    assert one._precision_culprits() == {"gemm-bf16 8", "conv-bf16 6"}
    assert one.warnings[0].startswith("dropped gemm-bf16, conv-bf16 in 6 of 20 places: ")


def test_squares_of_errors_tell_where_to_look() -> None:
    """Of 48 products, and of 12 attentions that add a sixth of the tolerance each."""
    regions = {"gemm-bf16": 48, "attention-bf16": 12}
    keys = {rule: [f"{rule} {i + 1}" for i in range(n)] for rule, n in regions.items()}
    asked = list[dict[str, int]]()

    def error(dropped: frozenset[str]) -> float:
        exact = {key.split()[0]: int(key.split()[1]) for key in dropped}
        asked.append(exact)
        left = {rule: n - exact.get(rule, 0) for rule, n in regions.items()}
        return math.sqrt(0.04 + left["gemm-bf16"] / 12 + left["attention-bf16"] / 6)

    sets = (("gemm-bf16",), ("attention-bf16",), ("gemm-bf16", "attention-bf16"))
    found = precision_fallback(sets, keys, frozenset(), error, 2.5, 1.0, lambda: True)
    assert found == {"gemm-bf16": 47, "attention-bf16": 7}
    assert len(asked) <= 8


def test_what_costs_least_comes_back_last() -> None:
    one = strict(rule="gemm-bf16", needed=5, too="conv-bf16")
    assert one._precision_culprits() == {"gemm-bf16 5", "conv-bf16 20"}


def test_float32_where_integers_are_too_coarse_as_well() -> None:
    found = strict(rule="gemm-int16", needed=8, too="conv-bf16")._precision_culprits()
    assert found == {"gemm-bf16 1", "conv-bf16 20", "gemm-int16 8"}, (
        "nothing speaks against products in bf16"
    )


def test_nothing_where_no_rule_is_enough() -> None:
    assert not strict(needed=21)._precision_culprits()
    assert not strict("fp32")._precision_culprits()


# ---- after timing ------------------------------------------------------------------------


class Candidates(Shop):
    """Builds of a model with the groups ``slow`` and ``fast``, told by what was dropped."""

    planner, schedules = None, None
    wrong: ClassVar[set[str]] = set()

    def rewrite_groups(self, built: Any) -> list[RewriteGroup]:
        return [RewriteGroup(key, (), 1.0) for key in built.assembly.groups]

    def build(self, dropped: frozenset[str], levels: Any = None) -> Any:
        groups = {key: [] for key in ("slow", "fast") if key not in dropped}
        backend = SimpleNamespace(providers=())
        assembly = SimpleNamespace(groups=groups, graph=None, backend=backend)
        return SimpleNamespace(
            model=Path("m"),
            library=Path("l"),
            runnable=Path("l"),
            assembly=assembly,
            dropped=dropped,
        )


@dataclass
class Cancelling(Strict):
    """Roundings of ``fast`` alone are too coarse; those of both groups cancel."""

    def check(self, candidate: Any, isas: tuple[str, ...] = ()) -> Verification:
        alone = "slow" in candidate.dropped
        failed = alone and self._fails(candidate.dropped)
        return Verification(
            "failed" if failed else "passed", "it was wrong", (), {}, ErrorLimits(1e-2)
        )


def without_slow(
    original: Path, groups: Sequence[RewriteGroup], build: Any, *_: Any, **__: Any
) -> GroupSelection:
    """A decision that finds every group faster but ``slow``."""
    verdicts = tuple(GroupVerdict(g, g.key != "slow", "measured") for g in groups)
    dropped = frozenset(v.group.key for v in verdicts if not v.kept)
    return GroupSelection(frozenset(), verdicts, {}, cast(ModelWithLibrary, build(dropped)))


def test_what_timing_leaves_is_within_tolerance_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "select_faster", without_slow)
    monkeypatch.setattr(Evaluator, "_timed", lambda _: {})
    shop = Candidates()
    one = Cancelling(
        cast(Any, SimpleNamespace(path=Path("m"), runnable=Path("m"))), cast(Any, shop),
        cast(Any, None),
        Options(precision="bf16"), ("avx512",), rule="gemm-bf16", needed=3,
    )  # fmt: skip
    whole = shop.build(frozenset())
    one._right = whole
    kept = cast(Any, one.time(whole))
    assert kept.dropped == {"slow", "gemm-bf16 3"}, "the rounding, not the run, is given up"
    assert one.warnings == ["dropped gemm-bf16 in 3 of 8 places: otherwise, it was wrong"]
    assert one.decision is not None
    assert {v.group.key: v.kept for v in one.decision.verdicts} == {"slow": False, "fast": True}


def test_a_part_stays_rounded_only_where_the_error_leaves_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without i of 8 products the error is 1.25 - 0.1 i of what is allowed: i = 3 would do, but
    where that was too much for another level once, room is left."""

    def check(_: Evaluator, built: Any, isas: object, labels: object) -> Verification:
        error = 1.25e-2 - 1e-3 * max(int(key.split()[1]) for key in built)
        passed = error <= 1e-2
        output = OutputError("y", "seed 0", error, error, 1.0, 0.0, passed)
        return Verification("passed" if passed else "failed", "", (output,), {}, ErrorLimits(1e-2))

    monkeypatch.setattr(Evaluator, "check", check)
    monkeypatch.setattr(Evaluator, "build", lambda _, dropped, levels: dropped)
    monkeypatch.setattr(
        Shop, "precision_keys", lambda _, rule: EIGHT if rule == "gemm-bf16" else ()
    )
    nothing = cast(Any, None)
    for culprits, options, kept in (
        (frozenset[str](), Options(precision="bf16"), 3),
        (frozenset(("gemm-bf16 1",)), Options(precision="bf16"), 4),
        (frozenset(("gemm-bf16 1",)), Options(precision="bf16", atol=1.0), 3),
    ):
        one = Evaluator(nothing, cast(Any, Shop()), FEEDS, options, ("avx512",), culprits=culprits)
        one.verification = Verification("failed", "it was wrong", (), {}, ErrorLimits(1e-2))
        assert one._precision_culprits() == {f"gemm-bf16 {kept}"}


def test_who_is_to_blame_is_asked_with_the_feeds_that_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def error(feed: str, relative: float) -> OutputError:
        return OutputError("y", feed, relative, relative, 1.0, 0.0, relative < 1e-2)

    asked = list[frozenset[str] | None]()

    def check(_: Evaluator, built: object, isas: object, labels: frozenset[str] | None) -> Any:
        asked.append(labels)
        return Verification("passed", "")

    monkeypatch.setattr(Evaluator, "check", check)
    monkeypatch.setattr(Evaluator, "build", lambda _, dropped, levels: None)
    one = strict()
    outputs = tuple(error(f"data[{i}]", i * 1e-3) for i in range(30))
    one.verification = Verification("failed", "it was wrong", outputs)
    assert Evaluator._error(one, frozenset()) == 0.0
    one.verification = Verification("failed", "it does not run")
    assert Evaluator._error(one, frozenset()) == 0.0
    assert asked == [{"data[29]", "data[28]", "data[27]", "data[26]"}, None]


def test_a_product_and_the_quantization_of_its_operand_are_given_up_together(
    tmp_path: Path,
) -> None:
    """They are two regions of the same operators."""
    nodes = [SimpleNamespace(outputs=("m", "r")), SimpleNamespace(outputs=("y",))]
    names = (("x_int8", 0), ("r", 0), ("r_int8", 1), ("y", 1))
    regions = [SimpleNamespace(results=(name,), nodes=(nodes[i],)) for name, i in names]
    trace = SimpleNamespace(sites=lambda rules: {"r", "y"})
    plan = SimpleNamespace(made_by=lambda rules: regions, trace=trace)
    planner: Any = SimpleNamespace(backend=BACKENDS[0], plan=lambda unclustered: plan)
    graph = SimpleNamespace(regions=lambda: [])
    unused: Any = SimpleNamespace(guarded={}, graph=graph)
    builder = CandidateBuilder(unused, Options(), planner, unused, tmp_path)
    assert builder.precision_keys("gemm-int8") == ("gemm-int8 up to r", "gemm-int8 up to y")


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> CandidateBuilder:
    """Convolutions of integers with channels last: transposes that move past them rename results,
    and so no region of the plan writes the results of the model's convolutions."""
    net, folder = Net(), tmp_path_factory.mktemp("renamed")
    y = net.input("x", 1, 16, 16, 16)
    for depth, side in ((16, 1), (1, 5), (16, 1)):
        w = net.const(normal(16, depth, side, side, seed=side) / (depth * side))
        y = net("Relu", net("Conv", y, w, group=16 // depth, pads=[side // 2] * 4))
    net.graph(net("Softmax", y, axis=1))
    onnx.save(net.model, folder / "m.onnx")
    model, options = load(folder / "m.onnx"), Options(precision="int8", keep="all")
    planner = Planner(model.graph, options, {})
    return CandidateBuilder(model, options, planner, cast(Any, None), folder)


def test_renamed_convolutions_return_to_float32_one_by_one(renamed: CandidateBuilder) -> None:
    everything, trace = renamed.plan()
    written = {v for r in everything.graph.regions() for n in r.nodes for v in n.outputs}
    assert not written & trace.sites({"conv-int8"}), "none has its name any longer"
    assert trace.applied()["conv-int8"] == 3
    keys = renamed.precision_keys("conv-int8")
    for left, key in zip((2, 1, 0), keys, strict=True):
        assert renamed.plan(frozenset((key,)))[1].applied().get("conv-int8", 0) == left


def test_a_rule_is_undone_wherever_it_applies(renamed: CandidateBuilder) -> None:
    """Also where it applies only without other rewrites."""
    *_, last = renamed.precision_keys("conv-int8")
    renamed._frozen[last] = frozenset()
    renamed._plans.clear()
    assert not renamed.plan(frozenset((last,)))[1].applied().get("conv-int8", 0)


def test_without_any_rewrite_the_model_has_its_own_operators(renamed: CandidateBuilder) -> None:
    plain, trace = renamed.plan(frozenset((EVERY_REWRITE,)))
    assert not trace.applied() and not plain.groups
    ops = [node.op for region in plain.graph.regions() for node in region.nodes]
    assert ops == ["Conv", "Relu"] * 3 + ["Softmax"]


@dataclass
class Rounding(Evaluator):
    """Wrong as long as no key of ``right`` is dropped; it has a group ``a``."""

    right: frozenset[str] = frozenset()

    def _fails(self, dropped: frozenset[str]) -> bool:
        return dropped.isdisjoint(self.right)


@pytest.mark.parametrize(
    ("right", "culprits", "found"),
    [
        ({"conv-bf16 20", EVERY_REWRITE}, (), {"conv-bf16 20"}),  # plain operators round
        ({EVERY_REWRITE}, ("a",), {EVERY_REWRITE}),  # what has no key is wrong
        (set[str](), (), set[str]()),
        (set[str](), (EVERY_REWRITE,), set[str]()),
    ],
)
def test_only_a_wrong_plain_model_has_no_culprit(
    right: set[str], culprits: Sequence[str], found: set[str]
) -> None:
    nothing = cast(Any, None)
    one = Rounding(
        nothing, cast(Any, Shop()), FEEDS, Options(precision="bf16"), ("avx512",),
        right=frozenset(right), culprits=frozenset(culprits),
    )  # fmt: skip
    assert one._bisect(cast(Any, SimpleNamespace(assembly=SimpleNamespace(groups={})))) == found


@dataclass
class Turning(Evaluator):
    """Wrong as long as program ``a`` has row tiles."""

    def _fails(self, dropped: frozenset[str]) -> bool:
        return dropped.isdisjoint({"a", row_tiling_key("a"), EVERY_REWRITE})


def test_a_program_stays_where_its_turns_alone_are_wrong() -> None:
    nothing = cast(Any, None)
    shop = cast(Any, SimpleNamespace(parts=lambda group: (), names=Shop.names))
    one = Turning(nothing, shop, nothing, Options(), ("avx512",))
    groups = dict.fromkeys(("a", row_tiling_key("a"), "b"), ())
    full = cast(Any, SimpleNamespace(assembly=SimpleNamespace(groups=groups)))
    assert one._bisect(full) == {row_tiling_key("a")}


def test_a_search_builds_the_failing_level_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless that is a lower one, whose library needs what stands below the highest."""
    nothing, asked = cast(Any, None), list[tuple[str, ...] | None]()
    shop = cast(Any, SimpleNamespace(build=lambda dropped, levels: asked.append(levels)))
    monkeypatch.setattr(Evaluator, "check", lambda *_: Verification("passed", ""))
    one = Evaluator(nothing, shop, FEEDS, Options(), ("avx2", "avx512"))
    for failing in ("avx512", "avx2"):
        one._failing = failing
        assert one._error(frozenset((failing,))) == 0.0
    assert asked == [("avx512",), None]
