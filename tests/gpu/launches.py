"""The launches of a run of a model, and their grids, at the sizes it is timed at; without a GPU.

What depends on weights alone is done once, when a session opens, and is not a launch of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from models.make import make
from tracea_graph import Options
from tracea_graph.check.bindings import bindings
from tracea_graph.ir import evaluate
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernels import launch_for
from tracea_graph.kernels.program import Buffer, Call, Program, View
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel

__all__ = ["Run", "launches", "listed"]


@dataclass(frozen=True)
class Run:
    """A kernel that a run launches: its symbol, blocks, threads and what it computes."""

    symbol: str
    blocks: int
    threads: int
    what: str


def launches(name: str, precision: str, folder: Path) -> tuple[list[Run], list[str]]:
    """What a run of a model of the zoo launches, and the operators that are left to the CPU."""
    path = make(name, folder, hollow=True)
    model = load(path)
    path.unlink()
    sizes = bindings(model.graph, (), model.inputs)[0][0].symbols
    cost = CostModel(GPU.machine(()), sizes)
    options = Options(target="cuda:sm_90", keep="legal", precision=precision, max_error=1.0)
    planner = Planner(model.graph, options, sizes, cost=cost)
    assembly, _ = planner.assembled(planner.plan)
    found = list[Run]()
    for item in assembly.placed:
        operands = item.region.operands
        specs = [assembly.graph.spec(v).shape or () for v in operands]
        bound = {s: evaluate(specs[i][a], sizes) for s, (i, a) in item.program.symbols.items()}
        fixed = {i for i, v in enumerate(operands) if assembly.graph.weight(v)}
        found += _runs(item.program, bound, fixed)
    left = [n.op for r in assembly.graph.regions() if not r.fused for n in r.nodes]
    return found, left


def _runs(program: Program, sizes: dict[str, int], fixed: set[int]) -> Iterator[Run]:
    once = _once(program.calls, fixed)
    for call, done in zip(program.calls, once, strict=True):
        launch, symbol = launch_for(call)
        x, y, z = launch.blocks(sizes)
        if not done and x * y * z:
            seen = [_shape(v, sizes) for v in call.views if v is not None]
            yield Run(symbol, x * y * z, launch.threads, " ".join(seen))


def _shape(view: View, sizes: dict[str, int]) -> str:
    return "×".join(str(evaluate(d, sizes)) for d in view.dims)


def _once(calls: tuple[Call, ...], fixed: set[int]) -> list[bool]:
    """Which calls depend on constants alone, as the runtime finds them."""
    once, changing = [True] * len(calls), True
    while changing:
        changing = False
        varying = set[Buffer]()
        for call, done in zip(calls, once, strict=True):
            for operand, view in CALLS.of(call).each(call):
                if view is not None and operand.written and not done:
                    varying.add(view.buffer)
        for i, call in enumerate(calls):
            touched = {v.buffer for v in call.views if v is not None}
            moves = any(b.kind == "output" or (b.kind == "input" and b.index not in fixed)
                        for b in touched)  # fmt: skip
            sized = any(not isinstance(e, int) for v in call.views if v is not None
                        for e in (*v.dims, *v.strides, v.offset))  # fmt: skip
            if once[i] and (moves or sized or touched & varying):
                once[i], changing = False, True
    return once


def listed(name: str, precision: str, folder: Path) -> str:
    """The launches as lines, their number first; equal ones that follow each other in one."""
    found, left = launches(name, precision, folder)
    few = sum(run.blocks < 132 for run in found)
    kinds = Counter(run.symbol.split("_")[2] for run in found)
    lines = [f"{name} {precision}: {len(found)} launches, {few} of them below 132 blocks; "
             + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()),
             f"  left to the CPU: {', '.join(left) or 'nothing'}"]  # fmt: skip
    lines += [f"  {run.blocks:6} × {run.threads:3}  {run.symbol:60} {run.what}" for run in found]
    return "\n".join(lines)
