"""Tuning the workloads of one model: here alone, or together with other machines."""

from __future__ import annotations

from collections.abc import Iterable

from tracea_graph.config import Environment
from tracea_graph.tuning.events import Listener, Tuned, ignore
from tracea_graph.tuning.machine import Task, tuner
from tracea_graph.tuning.problem import Workload
from tracea_graph.tuning.schedule_space import Tunable
from tracea_graph.tuning.tuner import Pin, Propose

__all__ = ["tune"]


def tune(
    workloads: Iterable[Workload],
    task: Task,
    backend: Tunable,
    environment: Environment | None = None,
    *,
    listen: Listener = ignore,
    propose: Propose = lambda case, ranked: ranked,
    pin: Pin = lambda case: None,
) -> list[Tuned]:
    """What became of every case of a model's workloads; nothing without a schedule space.

    Raises BuildError when there is no working compiler, UsageError for a storage that cannot be
    used.  After KeyboardInterrupt all that was measured is in the cache.
    """
    if backend.schedule_space is None:
        return []
    with tuner(task, backend, environment, listen=listen, propose=propose, pin=pin) as made:
        if task.storage and task.budget > 0:
            from tracea_graph.tuning.together import tune_together  # optuna takes its time

            return tune_together(made, tuple(workloads), task)
        return made.run(tuple(workloads), task.budget, task.rest_us)
