"""Tune a model without writing it: results go to the cache, where optimizing finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tracea_graph.onnx_io import load
from tracea_graph.options import Options
from tracea_graph.pipeline.model_inputs import gather_inputs
from tracea_graph.pipeline.planning import Planner
from tracea_graph.pipeline.result_assembly import untuned_ops_us
from tracea_graph.policy import SearchSpace
from tracea_graph.target import target_of, tile_setting_names
from tracea_graph.toolchain.object_cache import check_object_cache
from tracea_graph.tuning import (
    Case,
    Listener,
    Propose,
    TuningOptions,
    TuningResult,
    ignore_event,
    tune,
)
from tracea_graph.tuning.schedule_hints import hinted_schedule, parse_hints
from tracea_graph.tuning.task_priority import MIN_GAIN

__all__ = ["TunedModel", "tune_model"]


@dataclass(frozen=True)
class TunedModel:
    """Tuning results of a model's cases.

    ``counts`` maps each case with a requested row count to the number of nodes that have it.
    """

    path: Path
    tuned: tuple[TuningResult, ...]
    counts: Mapping[Case, int]

    @property
    def saved(self) -> float:
        """Share of the model's predicted time saved by better schedules, at requested sizes."""
        return sum(t.share * (1 - 1 / t.gain) for t in self.tuned if t.case in self.counts)


def tune_model(
    path: Path,
    options: Options,
    *,
    lost_after: float = 60.0,
    min_gain: float = MIN_GAIN,
    selective: bool = False,
    within: SearchSpace | None = None,
    listen: Listener = ignore_event,
    propose: Propose = lambda case, ranked: ranked,
) -> TunedModel:
    """Tune the kernels that a model is compiled to under ``options``, within their budget.

    * ``lost_after``: seconds after which a trial of a silent worker on another machine is given
      up.
    * ``min_gain``: cases with a smaller predicted end-to-end gain are not tuned.
    * ``selective``: tune only the requested row counts, not representative ones.
    * ``within``: axes that replace those of the search space.
    * ``listen``: called with every event of the tuner.
    * ``propose``: filters the candidates of a case, or puts others before them.

    Raises ModelError, UsageError and BuildError as optimizing does.
    """
    check_object_cache(options.environment)
    model = load(path, freeze=options.freeze_initializers, unrolled=True)
    inputs = gather_inputs(model, options)
    target = target_of(options.target, options.precision)
    planner = Planner(model.graph, options, inputs.timed[0].symbols, target)
    assembly, plan = planner.assembled(planner.plan)
    bindings = [binding.symbols for binding in inputs.timed]
    loads = assembly.workloads(bindings)
    tuning = TuningOptions(
        target.levels, options.thread_counts, options.budget,
        untuned_ops_us(plan.graph, planner.cost) * len(bindings), options.seed, options.storage,
        lost_after, min_gain, selective, within,
        None if options.storage else assembly.weight_bytes,
    )  # fmt: skip
    found = tune(
        loads, tuning, target.backend, options.environment, listen=listen, propose=propose,
        pin=partial(hinted_schedule, parse_hints(options.patterns, tile_setting_names())),
    )  # fmt: skip
    counts = {Case(w.problem, rows): w.count for w in loads for rows in w.rows}
    return TunedModel(path, tuple(found), counts)
