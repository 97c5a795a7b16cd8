"""Lossy transforms of weights, chosen before planning: what calibration data says they cost."""

from tracea_graph.compress.budget import Choice, allocate, search, total_error
from tracea_graph.compress.calibrate import Calibration, Seen, add_all, calibrate, names_of
from tracea_graph.compress.layers import Layer, layers_of
from tracea_graph.compress.menus import Menus, middling
from tracea_graph.compress.metric import Metric, load_metric, share_of_largest
from tracea_graph.compress.samples import Samples, Split, split
from tracea_graph.compress.sensitivity import changes_of, output_errors

__all__ = [
    "Calibration", "Choice", "Layer", "Menus", "Metric", "Samples", "Seen", "Split",
    "add_all", "allocate", "calibrate", "changes_of", "layers_of", "load_metric", "middling",
    "names_of", "output_errors", "search", "share_of_largest", "split", "total_error",
]  # fmt: skip
