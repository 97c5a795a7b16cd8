"""Choose lossy transforms of weights before planning, by their error on calibration data."""

from tracea_graph.compress.calibration_data import DataSplit, Samples, split_data
from tracea_graph.compress.compressible_layers import Layer, layers_of
from tracea_graph.compress.error_budget import (
    LayerOption,
    allocate_budget,
    search_within_budget,
    total_error,
)
from tracea_graph.compress.error_metric import Metric, load_metric, relative_max_error
from tracea_graph.compress.gram_matrices import (
    Calibration,
    ObservedValue,
    accumulate_outputs,
    calibrate,
    output_names,
)
from tracea_graph.compress.layer_compression_choices import LayerOptions, option_of_median_error
from tracea_graph.compress.layer_sensitivity import output_errors, perturbations_of

__all__ = [
    "Calibration",
    "DataSplit",
    "Layer",
    "LayerOption",
    "LayerOptions",
    "Metric",
    "ObservedValue",
    "Samples",
    "accumulate_outputs",
    "allocate_budget",
    "calibrate",
    "layers_of",
    "load_metric",
    "option_of_median_error",
    "output_errors",
    "output_names",
    "perturbations_of",
    "relative_max_error",
    "search_within_budget",
    "split_data",
    "total_error",
]  # fmt: skip
