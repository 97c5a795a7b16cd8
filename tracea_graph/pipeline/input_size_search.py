"""Find input sizes that a model accepts, if it rejects those that its symbols' roles suggest."""

from __future__ import annotations

from collections.abc import Mapping

from tracea_graph.check.memory_limit import largest_oversized_value
from tracea_graph.check.symbol_bindings import fallback_bindings
from tracea_graph.check.worker_pool import AcquireWorker
from tracea_graph.check.worker_process import RejectedByRuntime
from tracea_graph.errors import RejectedSizesError, WorkerError
from tracea_graph.onnx_io import Model, load
from tracea_graph.options import Options
from tracea_graph.pipeline.model_inputs import ModelInputs, synthesized

__all__ = ["check_sizes"]

_SECONDS = 20.0
"""Time limit of one run."""


def check_sizes(
    model: Model,
    inputs: ModelInputs,
    options: Options,
    rejected: Mapping[str, str],
    acquire: AcquireWorker,
) -> None:
    """Raise RejectedSizesError with better sizes if the model rejects every size to be timed.

    Nothing is raised for sizes that the caller gave, nor if the model rejects every guess.
    Guesses under which a value exceeds the memory limit are left out.
    """
    guessed = not (options.shapes or options.data) and inputs.timed[0].symbols
    if not guessed or not inputs.timing.keys() <= rejected.keys():
        return
    if model.guarded:  # read again, it may name sizes differently
        model = load(model.path, unrolled=True)
    with acquire(None, {}) as worker:
        try:
            worker.open("sizes", model.runnable)
        except WorkerError:
            return
        for binding in fallback_bindings(model.with_defaults, model.inputs):
            if largest_oversized_value(model.graph, (binding,)):
                continue
            try:
                worker.run("sizes", synthesized(model, binding, options.seed), limit=_SECONDS)
            except RejectedByRuntime:
                continue
            except WorkerError:
                return
            asked = " and ".join(inputs.labels)
            raise RejectedSizesError(
                f"the original rejects inputs with {asked}: {binding.label} is used instead; "
                "--shape or --data sets other sizes",
                binding.symbols,
            )
