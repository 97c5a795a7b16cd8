"""Reading and writing ONNX models; the only package that touches protobuf."""

from __future__ import annotations

from tracea_graph.onnx_io.external_data import DataFile, DataPool
from tracea_graph.onnx_io.hand_set_tiles_as_masks import write_masked
from tracea_graph.onnx_io.imported_model import Model
from tracea_graph.onnx_io.local_functions import LocalFunction
from tracea_graph.onnx_io.model_reader import load
from tracea_graph.onnx_io.model_writer import WrittenModel, write
from tracea_graph.onnx_io.original_files import (
    BACKEND_KEY,
    PLATFORMS_KEY,
    backend_of,
    files_of,
    is_tracea_result,
    library_of,
    node_count,
    write_original,
)
from tracea_graph.onnx_io.partial_models import write_part
from tracea_graph.onnx_io.shape_check import check_shapes

__all__ = [
    "BACKEND_KEY",
    "PLATFORMS_KEY",
    "DataFile",
    "DataPool",
    "LocalFunction",
    "Model",
    "WrittenModel",
    "backend_of",
    "check_shapes",
    "files_of",
    "is_tracea_result",
    "library_of",
    "load",
    "node_count",
    "write",
    "write_masked",
    "write_original",
    "write_part",
]  # fmt: skip
