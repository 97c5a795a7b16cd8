"""Programs of recurrent cells, for the runtime's tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.runtime.support import Case
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.cpu.gate_layouts import GATE_PANELS
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.ops.recurrent import RecurrentParams
from tracea_graph.ttg import Region, TileGraph

__all__ = ["recurrent_cases"]

BOTH = (False, True)
LSTM, GRU = ("y", "h", "c"), ("y", "h")


def _random(*shape: int, seed: int) -> npt.NDArray[np.float32]:
    draw = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return (draw / np.sqrt(shape[-2] if len(shape) > 3 else 1)).astype(np.float32)


def recurrent(p: RecurrentParams, steps: int, batch: int) -> Case:
    """A lowered cell whose steps and batch are symbols."""
    p = replace(p, layout=GATE_PANELS)
    padded = GATE_PANELS.columns(p.groups, p.hidden)
    panels = padded // 16
    shapes: list[tuple[Any, ...]] = [
        ("t", "b", p.inputs), (p.directions, panels, p.inputs, 16),
        (p.directions, panels, p.hidden, 16), (p.directions, padded),
    ]  # fmt: skip
    shapes += [(p.directions, GATE_PANELS.columns((1,), p.hidden))] * p.late
    shapes += [(p.directions, "b", p.hidden)] * (p.states if p.initial else 0)
    names = [f"i{n}" for n in range(len(shapes))]
    results = [f"o{n}" for n in range(len(p.results))]
    specs = {n: TensorSpec(DType.F32, s) for n, s in zip(names, shapes, strict=True)}
    region = Region("cell", "FusedRecurrent", tuple(names), tuple(results), (), p)
    program = lower(TileGraph([region], names, results, {}, specs), region)
    sizes = {"t": steps, "b": batch}
    feeds = [
        _random(*(sizes.get(d, d) if isinstance(d, str) else d for d in s), seed=n)
        for n, s in enumerate(shapes)
    ]
    y = p.reference([f.astype(np.float64) for f in feeds])
    flags = "".join(map(str, map(int, (*p.reverse, p.initial))))
    kind = p.kind + "_before" * p.before
    name = f"{kind}_{p.inputs}x{p.hidden}_{flags}_{''.join(p.results)}_{steps}x{batch}"
    return Case(name, program, tuple(feeds), tuple(y))


def recurrent_cases() -> tuple[Case, ...]:
    return (
        recurrent(RecurrentParams("lstm", 7, 5, results=LSTM), 3, 1),
        recurrent(RecurrentParams("lstm", 40, 33, BOTH, True, LSTM), 9, 7),
        recurrent(RecurrentParams("lstm", 16, 128, (True,), True, ("h",)), 20, 1),
        recurrent(RecurrentParams("lstm", 16, 16, initial=True, results=LSTM), 0, 2),
        recurrent(RecurrentParams("lstm", 16, 64, BOTH), 60, 40),
        recurrent(RecurrentParams("lstm", 9, 20, initial=True), 4, 8),
        recurrent(RecurrentParams("lstm", 12, 100, results=LSTM), 7, 1),
        recurrent(RecurrentParams("lstm", 12, 28, BOTH, True, LSTM), 5, 9),
        recurrent(RecurrentParams("lstm", 12, 47), 5, 2),
        recurrent(RecurrentParams("gru", 7, 5, results=GRU), 3, 1),
        recurrent(RecurrentParams("gru", 12, 100, results=GRU), 7, 1),
        recurrent(RecurrentParams("gru", 12, 42, BOTH, True, GRU), 5, 9),
        recurrent(RecurrentParams("gru", 40, 33, BOTH, True, GRU), 9, 8),
        recurrent(RecurrentParams("gru", 16, 128, (True,), True, ("h",)), 20, 1),
        recurrent(RecurrentParams("gru", 9, 50, BOTH, True), 6, 3),
        recurrent(RecurrentParams("gru", 9, 20, initial=True), 4, 10),
        recurrent(RecurrentParams("gru", 16, 16, results=GRU), 0, 2),
        recurrent(RecurrentParams("gru", 16, 16, results=GRU), 4, 0),
        recurrent(RecurrentParams("gru", 7, 5, results=GRU, before=True), 3, 1),
        recurrent(RecurrentParams("gru", 12, 100, results=GRU, before=True), 7, 1),
        recurrent(RecurrentParams("gru", 12, 24, BOTH, True, GRU, before=True), 5, 9),
        recurrent(RecurrentParams("gru", 40, 33, BOTH, True, GRU, before=True), 9, 11),
        recurrent(RecurrentParams("gru", 16, 130, (True,), True, ("h",), before=True), 20, 2),
        recurrent(RecurrentParams("gru", 16, 64, BOTH, before=True), 60, 40),
        recurrent(RecurrentParams("gru", 16, 16, results=GRU, before=True), 0, 2),
    )
