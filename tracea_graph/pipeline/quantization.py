"""Choose how products round their operands, from real inputs, before planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from threadpoolctl import threadpool_limits

from tracea_graph.compress import split_data
from tracea_graph.compress.rounding import choose_int8
from tracea_graph.compress.row_samples import sample_rows
from tracea_graph.passes.quantized.calibrated import UNCALIBRATED, Calibrated
from tracea_graph.pipeline.compression import CompressionContext, observable_layers

__all__ = ["Quantization", "calibrate_products"]


@dataclass(frozen=True)
class Quantization:
    """The choices by stored matrix, and sentences for the report."""

    products: Mapping[str, Calibrated] = field(default_factory=lambda: UNCALIBRATED)
    notes: tuple[str, ...] = ()


def calibrate_products(context: CompressionContext) -> Quantization:
    """Choose for every product that reads a named value; none without ``--data``.

    Raises UsageError for data that does not fit the model.
    """
    options, model, inputs = context.options, context.model, context.inputs
    if options.precision not in CALIBRATED or options.data is None:
        return Quantization()
    samples = split_data(options.data, None, model, inputs.verification).calibrate
    layers, _ = observable_layers(context, options, inputs)
    layers = tuple(layer for layer in layers if not layer.written and layer.observed)
    if samples is None or not layers:
        return Quantization()
    context.timer.step("calibrating")
    values = list({seen.key: seen for layer in layers for seen in layer.observed}.values())
    threads, found = max(options.thread_counts), dict[str, Calibrated]()
    rows = sample_rows(model.in_float32, values, samples, context.progress, threads)
    with threadpool_limits(threads, user_api="blas"):
        for i, layer in enumerate(layers):
            context.progress(f"choosing scales of matmul {i + 1} of {len(layers)}")
            found[layer.name] = choose_int8(rows[layer.observed[0].key], layer.matrix())
    return Quantization(found, (_note(found),))


CALIBRATED = ("int8",)
"""Precisions that real inputs choose scales for."""


def _note(found: Mapping[str, Calibrated]) -> str:
    fixed = sum(c.scale > 0 for c in found.values())
    moved = sum(c.factors is not None for c in found.values())
    worst = max(c.error for c in found.values())
    return (
        f"of {len(found)} calibrated matmuls, {fixed} round with one scale and the others row by "
        f"row, {moved} after moving ranges into the matrix; their own errors are up to {worst:.2g}"
    )
