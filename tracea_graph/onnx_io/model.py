"""What an imported model is: its tile graph, and the envelope export needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onnx import ModelProto

from tracea_graph.ir import Weight
from tracea_graph.ttg import TileGraph

__all__ = ["Model"]


@dataclass(frozen=True, eq=False)
class Model:
    """An imported model.

    ``graph`` is in canonical form.  ``inputs`` are the true feeds; ``overridable`` the
    initializers a caller may feed too (IR ≥ 4), which are inputs of the graph and no weights.
    ``size`` counts the bytes of the file and of the external data in use.  ``skeleton`` (the
    model without large tensor data) and ``defaults`` (values of overridable initializers) belong
    to this package.
    """

    path: Path
    graph: TileGraph
    opsets: Mapping[str, int]
    ir_version: int
    inputs: tuple[str, ...]
    overridable: frozenset[str]
    size: int
    skeleton: ModelProto = field(repr=False)
    defaults: Mapping[str, Weight] = field(default_factory=dict, repr=False)
