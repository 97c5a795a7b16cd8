"""The early stages alone: what ``--until`` and ``tracea inspect`` show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracea_graph.check.bindings import bindings
from tracea_graph.kernels.program import Program
from tracea_graph.kernels.source import Source
from tracea_graph.onnx_io import load
from tracea_graph.options import Options
from tracea_graph.pipeline.guarding import guarded_if_it_pays
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel
from tracea_graph.rewrite import Trace
from tracea_graph.target import Target, settle_precision, target_of
from tracea_graph.ttg import MemoryLevel, TileGraph

__all__ = ["Stages", "appraise_by"]


def appraise_by(cost: CostModel, graph: TileGraph) -> None:
    """Let the graph say what its regions cost."""
    graph.appraise = lambda region: {
        "microseconds": cost(graph, region),
        "bound": cost.bound(graph, region),
    }


@dataclass(frozen=True)
class Stages:
    """What each stage made of one model; later fields are empty before their stage.

    ``imported`` is the graph before the passes; programs are planned for the memory ``levels``;
    ``overridable`` initializers may be fed too, and no kernel can hold them.
    """

    graph: TileGraph
    trace: Trace
    imported: TileGraph
    levels: tuple[MemoryLevel, ...]
    programs: tuple[tuple[str, Program], ...] = ()
    sources: tuple[Source, ...] = ()
    overridable: int = 0

    @classmethod
    def run(
        cls, path: Path, options: Options, until: str, measured: Target | None = None
    ) -> Stages:
        """Run the pipeline up to and including ``until``; nothing is written.

        Gains are predicted for a fixed machine, or for this one as ``measured`` for a target.
        """
        precision, _ = settle_precision(options.target, options.precision)
        options = replace(options, precision=precision)
        model = load(path, freeze=options.freeze_initializers)
        symbols = bindings(model.graph, options.shapes, model.inputs)[0][0].symbols
        if until == "import":
            planner = Planner(model.graph, options, symbols, measured)
        else:
            model, planner = guarded_if_it_pays(model, options, symbols, measured)
        graph = model.graph
        graph.bindings = symbols
        levels = planner.cost.machine.levels
        appraise_by(planner.cost, graph)
        if until == "import":
            return cls(graph, Trace(), graph, levels)
        if until == "passes":
            plan = planner.plan()
            appraise_by(planner.cost, plan.graph)
            overridable = len(model.unknown)
            return cls(plan.graph, plan.trace, graph, levels, overridable=overridable)
        assembly, plan = planner.assembled(planner.plan)
        planned, trace = plan.graph, plan.trace
        appraise_by(planner.cost, planned)
        programs = tuple((item.type, item.program) for item in assembly.placed)
        if until == "lower":
            return cls(planned, trace, graph, levels, programs)
        target, chains = target_of(options.target, options.precision), assembly.chains.values()
        sources = target.backend.sources(assembly.kernels, chains, target.levels)
        return cls(planned, trace, graph, levels, programs, tuple(sources))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: regions, types with their kernels, sources by symbol."""
        graph = self.graph
        return {
            "regions": [
                {
                    "op": r.op,
                    "rule": r.rule,
                    "reads": list(r.reads),
                    "writes": {v: str(graph.spec(v)) for v in r.writes},
                }
                for r in graph.regions()
            ],
            "programs": {name: [c.name for c in p.calls] for name, p in self.programs},
            "sources": {source.symbol: source.text for source in self.sources},
        }
