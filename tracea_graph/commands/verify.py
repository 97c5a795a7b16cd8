"""Verify that one model computes what another does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tracea_graph.check.output_errors import index_outputs, quantized_caches, rounding_of
from tracea_graph.check.reference_outputs import run_reference
from tracea_graph.check.verify_outputs import compare_with_reference
from tracea_graph.errors import ModelError, UsageError
from tracea_graph.onnx_io import library_of, load
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes
from tracea_graph.onnx_io.initializer_guards import result_nodes
from tracea_graph.options import Options
from tracea_graph.pipeline.candidate_models import write_float32_reference
from tracea_graph.pipeline.model_inputs import gather_inputs
from tracea_graph.target import target_of
from tracea_graph.views.verify import VerifyReport

__all__ = ["verify_models"]


def verify_models(
    original: Path,
    candidate: Path,
    options: Options,
    library: Path | None = None,
    tolerances: Mapping[str, float] | None = None,
) -> VerifyReport:
    """Run both models on equal inputs and compare every output.

    A candidate with a library and function bodies runs with and without the library.

    ``library`` is that of ``candidate`` (:func:`~tracea_graph.onnx_io.library_of`); ``tolerances``
    (shares of ``max|y|``) go by output name and override the options'.  Raises ModelError for a
    file that is no model, UsageError for an unknown output or a library of another model.
    """
    model, other = load(original, inline=True), load(candidate)
    outputs = [p.name for p in model.skeleton.graph.output]
    for name in tolerances or {}:
        if name not in outputs:
            raise UsageError(
                f"{original.name} has no output {name!r}; it has {', '.join(outputs)}"
            )
    library, before = library_of(candidate, library), model.node_count
    inputs = gather_inputs(model, options)
    feeds = inputs.verification
    chosen = dict(index_outputs(model.graph))
    threads = max(options.thread_counts)
    with TemporaryDirectory() as folder:
        # what a model computes in fp16 or bf16 is compared in float32 too
        backend = target_of(options.target, options.precision).backend
        model = write_float32_reference(model, backend, Path(folder))
        wanted = run_reference(
            model.runnable, feeds, index_outputs=chosen,
            quantized=quantized_caches(model.graph), rounding=rounding_of(model.widened),
            spare=inputs.spare,
            trouble=inputs.trouble, threads=threads, float32_form=model.float32_form,
            sensitivity=inputs.sensitivity(model.graph, options.limits.tolerance),
        )  # fmt: skip
        if wanted.unloadable:
            raise ModelError(wanted.trouble)
        found = compare_with_reference(
            wanted,
            candidate,
            library,
            feeds,
            limits=replace(options.limits, by_output=tolerances or {}),
            index_outputs=chosen,
            threads=threads,
            bodies=bool(other.skeleton.functions),
        )
    calls, nodes = len(custom_op_nodes(other)), len(result_nodes(other.skeleton))
    return VerifyReport(
        str(original), str(candidate), str(library or ""), found, calls if library else 0, nodes,
        before,
    )  # fmt: skip
