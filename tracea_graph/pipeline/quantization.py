"""Choose how products round their operands, from real inputs, before planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from threadpoolctl import threadpool_limits

from tracea_graph.compress import split_data
from tracea_graph.compress.rounding import choose_int8
from tracea_graph.compress.row_samples import sample_rows
from tracea_graph.compress.weight_rounding import choose_int4
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
    fixed = not options.custom_ops  # QuantizeLinear needs scales
    if fixed:  # products keep their own matrices
        options = replace(options, custom_ops=True, skip=(*options.skip, *_MERGING))
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
            x, matrix = rows[layer.observed[0].key], layer.matrix()
            found[layer.name] = CALIBRATED[options.precision](x, matrix, fixed)
    return Quantization(found, (_note(found),))


CALIBRATED = MappingProxyType({"int8": choose_int8, "int4-weights": choose_int4})
"""How real inputs choose the rounding of a product, by precision."""


def _note(found: Mapping[str, Calibrated]) -> str:
    first = f"{len(found)} matmuls were calibrated, their own errors are"
    mean = float(np.mean([c.error for c in found.values()]))
    errors = f"{mean:.2g} on average and up to {max(c.error for c in found.values()):.2g}"
    if any(c.codes is not None for c in found.values()):
        large = sum(c.block > SMALL for c in found.values())
        return f"{first} {errors}: {large} have blocks of 128, the others of {SMALL}"
    fixed = sum(c.scale > 0 for c in found.values())
    moved = sum(c.factors is not None for c in found.values())
    return (
        f"{first} {errors}: {fixed} round x with one scale and the others row by row, "
        f"{moved} after moving ranges into the matrix"
    )


_MERGING = ("merge-qkv", "merge-gemms")
SMALL = 32
"""The smaller size of a block."""
