"""Barriers that the cost model chose stay only if the library's limit is not measured faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.graphs import APART, Net, every_phase, normal
from tests.kernels.test_call_links import SIXTEEN
from tracea_graph.check.paired_benchmark import PairedComparison
from tracea_graph.check.timing_statistics import Ratio
from tracea_graph.errors import WorkerError
from tracea_graph.kernels.program import Call
from tracea_graph.pipeline.link_choice import faster_links
from tracea_graph.pipeline.result_assembly import assemble_result
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import schedule_rewrites
from tracea_graph.target import BACKENDS


def built(*barriers: int) -> Any:
    """Return a candidate whose calls have these barriers."""
    calls = [Call("gemm", "f32", (), barrier_from=threads) for threads in barriers]
    item = SimpleNamespace(program=SimpleNamespace(calls=calls))
    return SimpleNamespace(
        model=Path("m.onnx"), library=Path("m.so"), assembly=SimpleNamespace(placed=[item])
    )


class Builder:
    """Builds a candidate without the cost model's choice."""

    def __init__(self) -> None:
        self.links, self.plain = True, built(0, 0)

    def build(self, dropped: frozenset[str]) -> Any:
        assert not self.links and dropped == {"a group"}
        return self.plain


class Benchmark:
    """Finds given speeds of the second model over the first."""

    def __init__(self, speeds: Sequence[float]) -> None:
        self.speeds = list(speeds)

    def __call__(self, worker: Any, feeds: Any, threads: Any, budget: float) -> Benchmark:
        assert threads == (16,) and 0 < budget <= 4.0
        self.keys = tuple((16, label) for label in feeds)
        return self

    def __enter__(self) -> Benchmark:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def compare_at(self, a: Any, b: Any, key: Any, seconds: float, screen: bool) -> Any:
        speed = self.speeds.pop(0)
        if not speed:
            raise WorkerError("it crashed")
        ratio = replace(SAME, median=speed)
        return PairedComparison(ratio, speed > 1.05)


SAME = Ratio(1.0, 1.0, 1.0, 10, 1.0, 1.0, 1.0, 1.0)
FEEDS: Any = {"batch=1": {}, "batch=8": {}}


def choose(candidate: Any, builder: Any, speeds: Sequence[float]) -> tuple[Any, str]:
    benchmark: Any = Benchmark(speeds)
    return faster_links(candidate, builder, frozenset({"a group"}), FEEDS, 16, 60.0, benchmark)


@pytest.mark.parametrize(
    ("speeds", "limit", "words"),
    [
        ((1.0, 1.2), True, "measured 1.00 to 1.20 times as fast on 16 threads"),
        ((0.9, 1.2), False, "with the library's limit, 0.90 to 1.20 times"),
        ((1.01, 1.02), False, "with the library's limit, 1.01 to 1.02 times"),
        ((1.2, 0.0), False, "unmeasured: it crashed"),
    ],
)
def test_the_limit_must_win_and_lose_nowhere(
    speeds: tuple[float, ...], limit: bool, words: str
) -> None:
    builder, candidate = Builder(), built(9, 65)
    kept, note = choose(candidate, builder, speeds)
    assert kept is (builder.plain if limit else candidate)
    assert builder.links is not limit and words in note


@pytest.mark.parametrize("barriers", [(0, 0), (17, 65)])
def test_nothing_is_measured_without_a_barrier_in_effect(barriers: tuple[int, ...]) -> None:
    candidate, builder = built(*barriers), Builder()
    assert choose(candidate, builder, ()) == (candidate, "") and builder.links


def test_an_assembly_without_links_is_that_of_an_unknown_machine() -> None:
    net = Net()
    x = net.input("x", "rows", 512)
    graph = net.graph(net("MatMul", x, net.const(normal(512, 256))))
    schedule_rewrites(graph, every_phase(), CostModel(Machine(), {"rows": 128}), APART)
    linked = assemble_result(graph, BACKENDS[0], machine=SIXTEEN)
    unknown = assemble_result(graph, BACKENDS[0], machine=SIXTEEN.alone)
    (item,), (plain,), (other,) = linked.placed, linked.unlinked().placed, unknown.placed
    assert item.program != other.program and item.decisions != other.decisions
    assert plain.program == other.program and plain.decisions == other.decisions
