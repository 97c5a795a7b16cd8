"""Scratch of whole models: what lives at the same time lies apart, and little is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.make import make
from tracea_graph.ir import assumed_size, evaluate
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.kernels.program import Program
from tracea_graph.onnx_io import load
from tracea_graph.options import Options
from tracea_graph.passes.sparse.dead_channels import DEAD_CHANNELS
from tracea_graph.pipeline.planning import Planner
from tracea_graph.ttg.arena_allocation import Arena, Lifetime, place_values

PLANNED = {"batch": 1, "sequence": 128, "sequence_length": 128}


def arena(program: Program, sizes: dict[str, int]) -> Arena:
    """Laid out in the plan's order, as the library does."""
    return place_values([
        Lifetime(str(i), int(evaluate(t.count, sizes) * t.dtype.size), t.first, t.last)
        for i, t in enumerate(program.temps)
    ])  # fmt: skip


def used_by(program: Program, temp: int) -> list[int]:
    return [
        i
        for i, call in enumerate(program.calls)
        for v in call.views
        if v is not None and (v.buffer.kind, v.buffer.index) == ("temp", temp)
    ]


@pytest.mark.parametrize("name", ["tiny-bert", "mobilenetv2"])
def test_arenas_of_whole_models(name: str, tmp_path: Path) -> None:
    """At the planned sizes and at others the arena is at most 5 % larger than what is alive."""
    graph = load(make(name, tmp_path, hollow=True)).graph
    options = Options(keep="all", skip=(DEAD_CHANNELS,))  # weights are hollow: all are dead
    planned = Planner(graph, options, PLANNED).plan().graph
    programs = [(r, lower(planned, r)) for r in planned.regions() if r.fused]
    assert max(len(p.temps) for _, p in programs) > 8
    for region, program in programs:
        for t, temp in enumerate(program.temps):
            assert (used := used_by(program, t))
            assert temp.first <= used[0] and used[-1] <= temp.last
        for batch, sequence in ((1, 128), (1, 7), (3, 40)):
            symbols = {"batch": batch, "sequence": sequence, "sequence_length": sequence}
            shapes = [planned.spec(v).shape or () for v in region.operands]
            sizes = {
                s: assumed_size(shapes[i][a], symbols) for s, (i, a) in program.symbols.items()
            }
            found = arena(program, sizes)
            placed = list(zip(found.lives, found.offsets, strict=True))
            for i, (a, at) in enumerate(placed):
                for b, start in placed[:i]:
                    apart = at >= start + b.bytes or start >= at + a.bytes
                    assert apart or not a.meets(b) or not a.bytes or not b.bytes
            assert found.least <= found.bytes <= 1.05 * found.least
