"""A few sizes of row tiles are measured; the fastest stays, and a lock repeats it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.graphs import Net
from tracea_graph import Options
from tracea_graph.check.timing_statistics import Ratio
from tracea_graph.errors import WorkerError
from tracea_graph.kernels.cpu.phases.tile_and_fuse import TILE_SIZES
from tracea_graph.pipeline.candidate_models import CandidateBuilder
from tracea_graph.pipeline.planning import Planner, ScheduledGraph
from tracea_graph.pipeline.precision_fallback import fastest_tile_sizes
from tracea_graph.policy import CostModel, Machine
from tracea_graph.ttg import TileGraph

ROWS = 8192
KEY = (1, "rows=8192")


def perceptron() -> TileGraph:
    """What lies between the products, 16 MB, fits no core's own memory."""
    net = Net()
    x = net.input("x", "rows", 128)
    hidden = net("Relu", net("Add", net("MatMul", x, net.weight(128, 512)), net.weight(512)))
    return net.graph(net("Add", net("MatMul", hidden, net.weight(512, 128)), net.weight(128)))


def rows_of(plan: ScheduledGraph) -> list[int]:
    return [b.rows for r in plan.graph.regions() if r.fused for b in r.params.row_tiles]


def planner() -> Planner:
    sizes = {"rows": ROWS}
    return Planner(perceptron(), Options(), sizes, cost=CostModel(Machine(), sizes))


def test_each_tile_size_is_a_proposal_and_the_largest_comes_first() -> None:
    made = planner()
    found = []
    for i in range(len(TILE_SIZES)):
        excluded = {rule: dict.fromkeys(_values(made), "slower") for rule in TILE_SIZES[:i]}
        plan = made.plan(excluded=excluded)
        assert plan.trace.applied()[TILE_SIZES[i]] == 1
        found += rows_of(plan)
    assert found == sorted(set(found), reverse=True) and len(found) == len(TILE_SIZES)
    excluded = {rule: dict.fromkeys(_values(made), "slower") for rule in TILE_SIZES}
    assert rows_of(made.plan(excluded=excluded)) == []


def _values(made: Planner) -> list[str]:
    return [v for r in made.plan().graph.regions() for n in r.nodes for v in n.outputs]


def test_the_largest_tiles_are_dropped_first(tmp_path: Path) -> None:
    made = planner()
    unused: Any = SimpleNamespace(guarded={})
    builder = CandidateBuilder(unused, Options(), made, unused, tmp_path)
    builder.plan()
    (group,) = (g for g in builder.plan()[0].groups if builder.tile_sizes(g))
    keys = builder.tile_sizes(group)
    assert len(keys) == len(TILE_SIZES) - 1

    def rows(*dropped: str) -> list[int]:
        """The constraints among a builder's decisions are enough to plan the same again."""
        return rows_of(made.plan_under(builder.decisions(frozenset(dropped)).constraints))

    assert rows() > rows(keys[0]) > rows(keys[1]) > []
    assert rows(group) == rows(group, keys[0]) == []


class Races:
    """A bench on which every model takes the time written down for it."""

    budget, keys = 60.0, (KEY,)

    def __init__(self, times: dict[frozenset[str], float]) -> None:
        self.times = times

    def now(self) -> float:
        return 0.0

    def compare_all(self, a: Any, b: Any, seconds: float) -> dict[tuple[int, str], Ratio]:
        assert 0 < seconds <= self.budget
        if b.dropped not in self.times:
            raise WorkerError("it does not run")
        gain = self.times[a.dropped] / self.times[b.dropped]
        return {KEY: Ratio(gain, gain - 0.001, gain + 0.001, 15, 1.0, 1.0, 1.0, 1.0)}


def chosen(times: dict[tuple[str, ...], float], *choices: tuple[str, ...]) -> frozenset[str]:
    bench: Any = Races({frozenset(k): ms for k, ms in times.items()})
    return fastest_tile_sizes(choices, lambda d: SimpleNamespace(dropped=d), bench)  # type: ignore[arg-type,return-value]


def test_the_fastest_tile_size_of_each_program_stays() -> None:
    times = {(): 9.0, ("a1",): 8.0, ("a2",): 8.5, ("a1", "b1"): 8.0, ("a1", "b2"): 7.0}
    assert chosen(times, ("a1", "a2"), ("b1", "b2")) == {"a1", "b2"}
    assert chosen({(): 9.0, ("a1",): 9.0}, ("a1", "a2")) == frozenset(), "no gain, or no result"
