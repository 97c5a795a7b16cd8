"""Reading and writing ONNX: the only package that touches protobuf."""

from __future__ import annotations

from tracea_graph.onnx_io.functions import Function
from tracea_graph.onnx_io.model import Model
from tracea_graph.onnx_io.original import library_digest, write_original
from tracea_graph.onnx_io.reader import load
from tracea_graph.onnx_io.writer import Written, write

__all__ = [
    "Function", "Model", "Written", "library_digest", "load", "write", "write_original",
]  # fmt: skip
