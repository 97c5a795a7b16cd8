"""The products of a planned graph whose matrix could be another: what they read and hold.

Products that share a stored matrix are one layer, for what becomes of it becomes of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Node, Weight
from tracea_graph.ops.gemm import PANEL, GemmParams, unpack_panels
from tracea_graph.policy import CostModel
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Layer", "layers_of"]

Floats = npt.NDArray[np.floating[Any]]
_LEAST = 1 << 14
"""Elements below which a matrix is not worth another form."""


@dataclass(frozen=True)
class Layer:
    """A stored matrix ``[k, n]`` and the original operators that multiply by it.

    ``starts`` says at which of its columns each operator's own begin; ``inputs`` are the values
    they read, ``us`` is the predicted time of all of them.  What takes the matrix's place is
    stored under names that begin with one of its ``marks``.
    """

    name: str
    k: int
    n: int
    panels: Weight
    nodes: tuple[Node, ...]
    starts: tuple[int, ...]
    widths: tuple[int, ...]
    inputs: tuple[str, ...]
    us: float
    marks: tuple[str, ...]

    def matrix(self) -> Floats:
        """``[k, n]`` in double precision."""
        return unpack_panels(np.asarray(self.panels.array(), np.float64), self.n)

    @property
    def title(self) -> str:
        """What the first of its operators is called."""
        return self.nodes[0].name or self.nodes[0].outputs[0]


def layers_of(graph: TileGraph, cost: CostModel) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Layers in graph order, and a sentence for each product that cannot be one."""
    found: dict[str, list[Region]] = {}
    notes = []
    for region in graph.regions():
        params = region.params
        if not isinstance(params, GemmParams):
            continue
        weight = graph.weight(region.operands[1])
        if weight is None:
            notes.append(f"{region.operands[1]!r} is not constant: its product stays as it is")
        elif params.layout != "panels" or weight.dtype is not DType.F32:
            notes.append(f"{weight.name!r} is not stored as float32 panels: it stays as it is")
        elif params.k * params.n >= _LEAST:
            found.setdefault(weight.name, []).append(region)
    layers = [_layer(graph, name, regions, cost) for name, regions in found.items()]
    return tuple(layers), tuple(dict.fromkeys(notes))


def _layer(graph: TileGraph, name: str, regions: list[Region], cost: CostModel) -> Layer:
    params: GemmParams = regions[0].params
    nodes = tuple(n for r in regions for n in _products(r))
    widths = tuple(_own(graph, n).shape[1] for n in nodes)
    starts = tuple(_start(graph, name, r, n) for r in regions for n in _products(r))
    reads = tuple(dict.fromkeys(n.inputs[0] for n in nodes))
    marks = (f"{name}_pruned", *(f"{r.results[0]}_rank" for r in regions))
    us = sum(cost(graph, r) for r in regions)
    return Layer(
        name, params.k, params.n, graph.weights[name], nodes, starts, widths, reads, us, marks
    )


def _products(region: Region) -> list[Node]:
    return [n for n in region.nodes if n.op in ("MatMul", "Gemm")]


def _own(graph: TileGraph, node: Node) -> Floats:
    """An operator's own matrix, as it multiplies by it but for a factor."""
    array = np.asarray(graph.weights[node.inputs[1]].array(), np.float64)
    array = array.reshape(array.shape[-2:])
    return array.T if node.attrs.get("transB", 0) else array


def _start(graph: TileGraph, name: str, region: Region, node: Node) -> int:
    """The column of the stored matrix at which an operator's own columns begin."""
    if len(_products(region)) == 1:
        return 0
    own = _own(graph, node)
    whole = unpack_panels(np.asarray(graph.weights[name].array()), region.params.n)
    ends = range(0, whole.shape[1] - own.shape[1] + 1, PANEL)
    return next(s for s in ends if np.array_equal(whole[:, s : s + own.shape[1]], own))
