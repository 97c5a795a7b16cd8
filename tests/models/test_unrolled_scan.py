"""The state-space model: what it computes, and that planning it takes work in proportion."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.unrolled_scan import STATE, WIDTH, unrolled
from tests.graphs import session
from tracea_graph.onnx_io import load
from tracea_graph.options import Options
from tracea_graph.passes.layout import hoist_slice
from tracea_graph.passes.pointwise import compose_elementwise
from tracea_graph.pipeline.planning import PlanConstraints, Planner
from tracea_graph.policy import CostModel, Machine
from tracea_graph.ttg.topological_order import TopologicalOrder


def test_it_is_a_scan() -> None:
    model = unrolled(1, 5)
    drawn = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    first, second, read = (w for name, w in drawn.items() if name.startswith("kernel"))
    x = np.random.default_rng(0).standard_normal((2, 5, WIDTH)).astype(np.float32)
    (found,) = session(model, optimized=True).run(None, {"x": x})
    state, rate = np.zeros((2, WIDTH * STATE), np.float32), np.log1p(np.exp(x @ first))
    for i in range(5):
        state = np.exp(-rate[:, i]) * state + (x @ second * rate)[:, i]
        wanted = state @ read / (1 + np.exp(-x[:, i])) + x[:, i]
        np.testing.assert_allclose(found[:, i], wanted, rtol=1e-3, atol=1e-3)


def test_the_usual_one_has_thousands_of_operators() -> None:
    assert len(unrolled().graph.node) == 2512


@pytest.mark.parametrize("keep", ["all", "faster"])
def test_twice_the_steps_take_twice_the_work_to_plan(
    keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls[name] += 1
            return function(*args)

        return call

    def work(steps: int) -> Counter[str]:
        onnx.save(unrolled(1, steps), tmp_path / "m.onnx")
        graph, sizes = load(tmp_path / "m.onnx").graph, {"batch": 1}
        calls.clear()
        Planner(graph, Options(keep=keep), sizes, cost=CostModel(Machine(), sizes)).plan()
        return calls.copy()

    monkeypatch.setattr(
        hoist_slice, "read_selection", counted("selections", hoist_slice.read_selection)
    )
    for name in ("sources", "readers"):
        monkeypatch.setattr(
            TopologicalOrder, name, counted("steps along edges", getattr(TopologicalOrder, name))
        )
    few, many = work(12), work(24)
    assert set(few) == {"selections", "steps along edges"}
    assert many["selections"] < 2.6 * few["selections"], (few, many)
    # walks between distant regions grow faster than the model, but stay a few steps an operator
    assert many["steps along edges"] < 30 * len(onnx.load(tmp_path / "m.onnx").graph.node), many


def test_what_is_alike_is_worked_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predicted = list[int]()
    predict = CostModel._predicted

    def counted(*args: Any) -> float:
        predicted.append(0)
        return predict(*args)

    def work(layers: int) -> dict[str, int]:
        onnx.save(unrolled(layers, 8), tmp_path / "m.onnx")
        graph, sizes = load(tmp_path / "m.onnx").graph, {"batch": 1}
        predicted.clear()
        for known in (compose_elementwise._merged, compose_elementwise._given):
            known.cache_clear()
        Planner(graph, Options(), sizes, cost=CostModel(Machine(), sizes)).plan()
        return {
            "predictions": len(predicted),
            "chains put together": compose_elementwise._merged.cache_info().misses,
            "chains seen from outside": compose_elementwise._given.cache_info().misses,
        }

    monkeypatch.setattr(CostModel, "_predicted", counted)
    two, four = work(2), work(4)  # the first and the last are special
    assert all(0 < four[name] < 1.1 * two[name] for name in two), (two, four)


def test_planning_looks_for_no_garbage(tmp_path: Path) -> None:
    onnx.save(unrolled(1, 12), tmp_path / "m.onnx")
    graph, sizes = load(tmp_path / "m.onnx").graph, {"batch": 1}
    planner = Planner(graph, Options(), sizes, cost=CostModel(Machine(), sizes))
    looked = list[str]()

    def look(phase: str, about: dict[str, int]) -> None:
        looked.append(phase)

    gc.collect()
    gc.callbacks.append(look)
    try:
        planner.plan_under(PlanConstraints({}, {}))
    finally:
        gc.callbacks.remove(look)
    assert len(looked) <= 2, "one look, when it is done"
    assert gc.isenabled()
    assert gc.collect() == 0, "and leaves none"
