"""Tune the workloads of one model, on this machine alone or distributed over several."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace

from tracea_graph.config import Environment
from tracea_graph.tuning.machine_tuner import Building, TuningOptions, machine_tuner
from tracea_graph.tuning.schedule_space import Tunable
from tracea_graph.tuning.tuner import Pin, Propose
from tracea_graph.tuning.tuner_events import Listener, TuningResult, ignore_event
from tracea_graph.tuning.tuning_problem import Workload

__all__ = ["tune"]


def tune(
    workloads: Iterable[Workload],
    options: TuningOptions,
    backend: Tunable,
    environment: Environment | None = None,
    *,
    listen: Listener = ignore_event,
    propose: Propose = lambda case, ranked: ranked,
    pin: Pin = lambda case: None,
    building: Building = nullcontext,
) -> list[TuningResult]:
    """Tune all cases of a model's workloads and return their results.

    There are none if the backend has no schedule space.  If the backend cannot measure on this
    machine, results that were imported from other machines are used.  The budget does not include
    compiling, which happens inside ``building()``.  On a KeyboardInterrupt, all measurements so
    far are in the cache.  Raises BuildError without a working compiler, and UsageError for a
    storage that cannot be used.
    """
    if backend.schedule_space is None:
        return []
    if not backend.schedule_space.can_measure:
        options = replace(options, budget=0.0)
    with machine_tuner(
        options, backend, environment, listen=listen, propose=propose, pin=pin, building=building
    ) as made:
        if options.storage and options.budget > 0:
            from tracea_graph.tuning.distributed_tuning import (
                tune_distributed,  # optuna imports slowly
            )

            return tune_distributed(made, tuple(workloads), options)
        return made.run(tuple(workloads), options.budget, options.rest_us)
