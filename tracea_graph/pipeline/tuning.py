"""Tuning a model without writing one: results go to the cache, where optimizing finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tracea_graph.config import Options
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.assembly import assemble
from tracea_graph.pipeline.inputs import gather_inputs
from tracea_graph.pipeline.planning import Planner
from tracea_graph.pipeline.targets import levels_of
from tracea_graph.tuning import Case, Listener, Propose, Task, Tuned, ignore, tune
from tracea_graph.tuning.hints import hinted, hints_from

__all__ = ["TunedModel", "tune_model"]


@dataclass(frozen=True)
class TunedModel:
    """What became of a model's cases; ``counts`` are the nodes that have each
    of those at the sizes asked for."""

    path: Path
    tuned: tuple[Tuned, ...]
    counts: Mapping[Case, int]

    @property
    def saved(self) -> float:
        """The share of the model's predicted time that better drivers save, at sizes asked for."""
        return sum(t.share * (1 - 1 / t.gain) for t in self.tuned if t.case in self.counts)


def tune_model(
    path: Path,
    options: Options,
    *,
    lost_after: float = 60.0,
    listen: Listener = ignore,
    propose: Propose = lambda case, ranked: ranked,
) -> TunedModel:
    """Tune what has drivers in a model as ``options`` would write it, within their budget.

    Raises ModelError, UsageError and BuildError as optimizing does.
    """
    model = load(path, freeze=options.freeze_initializers)
    inputs = gather_inputs(model, options)
    isas = levels_of(options.target, options.precision)
    planner = Planner(model.graph, options, inputs.timed[0].symbols, isas)
    graph = planner.plan().graph
    assembly = assemble(graph)
    bindings = [binding.symbols for binding in inputs.timed]
    loads = assembly.workloads(bindings)
    whole = sum(planner.cost(graph, region) for region in graph.regions())
    task = Task(
        isas, options.thread_counts, options.budget, whole * len(bindings), options.seed,
        options.storage, lost_after,
    )  # fmt: skip
    found = tune(
        loads, task, options.environment, listen=listen, propose=propose,
        pin=partial(hinted, hints_from(options.patterns)),
    )  # fmt: skip
    counts = {Case(w.problem, rows): w.count for w in loads for rows in w.rows}
    return TunedModel(path, tuple(found), counts)
