"""Choose from real inputs how products and convolutions round operands, before planning."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from threadpoolctl import threadpool_limits

from tracea_graph.compress import Samples, split_data
from tracea_graph.compress.activation_samples import sample_rows
from tracea_graph.compress.conv_input_scales import (
    ConvLayer,
    choose_conv_int8,
    conv_rounding_summary,
    sample_convolutions,
)
from tracea_graph.compress.int4_rounding import choose_int4
from tracea_graph.compress.int8_rounding import choose_int8
from tracea_graph.onnx_io import Model
from tracea_graph.passes.quantized.calibrated_rounding import UNCALIBRATED, CalibratedRounding
from tracea_graph.passes.quantized.conv_int8 import constant_conv_window, unpadded, why_no_integers
from tracea_graph.passes.quantized.round_results import values_between
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.pipeline.compression_search import CompressionContext, observable_layers

__all__ = ["RoundingChoices", "calibrate_rounding"]


@dataclass(frozen=True)
class RoundingChoices:
    """How to round inputs to integers, and notes for the report.

    The keys of ``choices`` are names of stored matrices, or of values that are rounded.
    """

    choices: Mapping[str, CalibratedRounding] = field(default_factory=lambda: UNCALIBRATED)
    notes: tuple[str, ...] = ()


def calibrate_rounding(context: CompressionContext) -> RoundingChoices:
    """Choose how to round the inputs of products and convolutions that read named values.

    Nothing is chosen without ``--data``.  Raises UsageError for data that does not fit the model.
    """
    options, model, inputs = context.options, context.model, context.inputs
    if options.precision not in CALIBRATED or options.data is None:
        return RoundingChoices()
    samples = split_data(options.data, None, model, inputs.verification).calibrate
    if samples is None:
        return RoundingChoices()
    context.timer.step("calibrating")
    with threadpool_limits(max(options.thread_counts), user_api="blas"):
        products = _products(context, samples)
        images = (
            _convolutions(context, samples) if options.precision == "int8" else RoundingChoices()
        )
    return RoundingChoices({**products.choices, **images.choices}, products.notes + images.notes)


def _products(context: CompressionContext, samples: Samples) -> RoundingChoices:
    options, threads = context.options, max(context.options.thread_counts)
    fixed = not options.custom_ops  # QuantizeLinear needs scales
    if fixed:  # products keep their own matrices
        options = replace(options, custom_ops=True, skip=(*options.skip, *_MERGING))
    layers, _ = observable_layers(context, options, context.inputs)
    layers = tuple(layer for layer in layers if not layer.written and layer.observed)
    if not layers:
        return RoundingChoices()
    values = list({seen.key: seen for layer in layers for seen in layer.observed}.values())
    found = dict[str, CalibratedRounding]()
    rows = sample_rows(context.model.in_float32, values, samples, context.progress, threads)
    for i, layer in enumerate(layers):
        context.progress(f"choosing scales of matmul {i + 1} of {len(layers)}")
        x, matrix = rows[layer.observed[0].key], layer.matrix()
        found[layer.name] = CALIBRATED[options.precision](x, matrix, fixed)
    return RoundingChoices(found, (_note(found),))


def _convolutions(context: CompressionContext, samples: Samples) -> RoundingChoices:
    named = _named(context.model)
    layers, standard = tuple(_conv_layers(context.model, named)), not context.options.custom_ops
    if not layers:
        return RoundingChoices()
    between = [v for v in values_between(context.model.graph) if v in named] if standard else []
    found = sample_convolutions(
        context.model.in_float32, layers, between, samples, context.progress,
        max(context.options.thread_counts),
    )  # fmt: skip
    choices = choose_conv_int8(layers, found, context.progress)
    return RoundingChoices(choices, (conv_rounding_summary(choices, layers),) if choices else ())


def _named(model: Model) -> frozenset[str]:
    """Return the values that have names in the original."""
    return frozenset((*model.inputs, *(v for n in model.skeleton.graph.node for v in n.output)))


def _conv_layers(model: Model, named: Container[str]) -> Iterator[ConvLayer]:
    """Yield the convolutions of named values that integers can compute."""
    graph = model.graph
    for region in graph.regions():
        if region.op != "Conv" or region.fused or why_no_integers(graph, region) is not None:
            continue
        x, weight = unpadded(graph, region)[0], graph.weights[region.operands[1]]
        window = constant_conv_window(graph, region)
        if x in named and not isinstance(window, str):
            groups = int(str(attribute(region, "group", 1)))
            yield ConvLayer(x, region.results[0], window, groups, weight.load)


CALIBRATED = MappingProxyType({"int8": choose_int8, "int4-weights": choose_int4})
"""By precision, the function that chooses the rounding of a product from real inputs."""


def _note(found: Mapping[str, CalibratedRounding]) -> str:
    first = f"{len(found)} matmuls were calibrated; their own errors are"
    mean = float(np.mean([c.error for c in found.values()]))
    errors = f"{mean:.2g} on average and up to {max(c.error for c in found.values()):.2g}"
    if any(c.codes is not None for c in found.values()):
        large = sum(c.block > SMALL for c in found.values())
        return f"{first} {errors}; {large} have blocks of 128, the others blocks of {SMALL}"
    fixed = sum(c.scale > 0 for c in found.values())
    moved = sum(c.factors is not None for c in found.values())
    return (
        f"{first} {errors}; {fixed} quantize x with one scale, the others with one per row; "
        f"in {moved}, factors move from x into the matrix first"
    )


_MERGING = ("merge-qkv", "merge-gemms")
SMALL = 32
"""The smaller size of a block."""
