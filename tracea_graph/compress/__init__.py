"""Lossy transforms of weights, chosen before planning: what calibration data says they cost."""

from tracea_graph.compress.budget import Choice, allocate
from tracea_graph.compress.calibrate import Calibration, calibrate
from tracea_graph.compress.layers import Layer, layers_of
from tracea_graph.compress.lowrank import LowRankMenu
from tracea_graph.compress.metric import Metric, load_metric
from tracea_graph.compress.prune import PruneMenu
from tracea_graph.compress.samples import Samples

__all__ = [
    "Calibration", "Choice", "Layer", "LowRankMenu", "Metric", "PruneMenu", "Samples", "allocate",
    "calibrate", "layers_of", "load_metric",
]  # fmt: skip
