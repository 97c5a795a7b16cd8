"""Find the matrices of a planned graph that may be replaced, and what is known of each.

    product        x […, K]        ·  [K, N]      Gram matrix of its input
    convolution    x [B, C, …]     ·  [C·taps, N] Gram matrix of its output
    lookup         ids [rows of V] ·  [V, N]      Gram matrix of its output

Products and lookups that share a stored matrix are one layer, since they change together;
convolutions are layers of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.compress.gram_matrices import ObservedValue
from tracea_graph.ir import DType, Extent, Node, TensorSpec, Weight
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.filter_layouts import PLAIN
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import ALIGNED, PlainMatrix
from tracea_graph.passes.matmul.constant_matrices import matrix_of
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.passes.sparse.dead_channels import channel_producers
from tracea_graph.passes.sparse.low_rank import LowRankGemm, conv_of, conv_output, table_key
from tracea_graph.passes.sparse.prune_heads import prunable_heads
from tracea_graph.policy import CostModel
from tracea_graph.rewrite import Proposal
from tracea_graph.rewrite.proposal import ProposalPreview
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Layer", "LayerUse", "layers_of"]

Floats = npt.NDArray[np.floating[Any]]
_LEAST = 1 << 14
"""Elements below which a matrix is not worth compressing."""


@dataclass(frozen=True)
class LayerUse:
    """An original operator that multiplies ``x`` by a layer's matrix and writes ``result``.

    The operator uses the ``width`` columns of the matrix from ``start`` on; None: all from there
    on.  Its own weight is these columns, transposed and reshaped to ``shape``, or unchanged if
    ``shape`` is None.
    """

    x: str
    result: str
    op: str = "MatMul"
    start: int = 0
    width: int | None = None
    shape: tuple[int, ...] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """A stored matrix ``[k, n]`` and the original operators that use it.

    * ``observed``: the values whose Gram matrix determines the error of a changed matrix: inputs
      of the operators, or their outputs if ``written``.
    * ``us``: predicted time of all the operators.
    * ``last_us``: predicted time of second products ``[n, n]``, one after each operator.
    * ``nodes``: names of original nodes; the name of a replacement begins with one of them.
    * ``producer``: the layer that computes the channels this layer reads, if some may be removed;
      ``group`` of them are removed together (a head).
    * ``producer_us``: predicted time of everything that is smaller if channels are removed.
    """

    name: str
    title: str
    k: int
    n: int
    load: Callable[[], Floats]
    observed: tuple[ObservedValue, ...]
    written: bool
    uses: tuple[LayerUse, ...]
    us: float
    last_us: float
    nodes: tuple[str, ...]
    producer: str = ""
    producer_us: float = 0.0
    group: int = 1

    def matrix(self) -> Floats:
        """Return the matrix ``[k, n]`` in double precision."""
        return self.load()

    @property
    def known(self) -> int:
        """Number of data rows that a Gram matrix of full rank needs."""
        return self.n if self.written else self.k

    @property
    def even(self) -> float:
        """Rank at which two factors break even with the matrix.

        They then take as long as the matrix.  For a lookup, which factors cannot speed up, they
        take as many bytes.
        """
        if not self.us:
            return self.k * self.n / (self.k + self.n)
        return self.n * self.us / (self.us + self.last_us)

    def saved_us(self, rank: int) -> float:
        """Return the time in µs that two factors of this rank are predicted to save."""
        return self.us - (self.us + self.last_us) * rank / self.n


def layers_of(graph: TileGraph, cost: CostModel) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Return the layers in graph order, and a note on each product that cannot be compressed."""
    products: dict[str, list[Region]] = defaultdict(list)
    tables: dict[str, list[Node]] = defaultdict(list)
    convolutions, notes = list[Layer](), list[str]()
    for region in graph.regions():
        params = region.params
        if isinstance(params, GemmParams):
            if params.integers:
                continue
            if reason := _reason(graph, region):
                notes.append(f"{reason}: it stays as it is")
            elif params.k * params.n >= _LEAST:
                products[region.operands[1]].append(region)
        elif isinstance(params, ConvParams):
            if (layer := _convolution(graph, region, cost)) is not None:
                convolutions.append(layer)
        elif isinstance(params, EmbeddingParams):
            for node in (n for n in region.nodes if n.op == "Gather"):
                tables[node.inputs[0]].append(node)
    found = [_product(graph, name, regions, cost) for name, regions in products.items()]
    for name, nodes in tables.items():
        if name in graph.weights and (looked := _look_up(graph, name, nodes, cost)) is not None:
            found.append(looked)
    return (*found, *convolutions), tuple(dict.fromkeys(notes))


# ---- products --------------------------------------------------------------------------


def _reason(graph: TileGraph, region: Region) -> str:
    """Return why a product's matrix cannot be replaced; empty if it can."""
    weight = graph.weight(region.operands[1])
    if weight is None:
        return f"the matrix {region.operands[1]!r} is not constant"
    if not isinstance(region.params.layout, PlainMatrix) or weight.dtype is not DType.F32:
        return f"{weight.name!r} is not stored as a float32 matrix"
    return ""


def _product(graph: TileGraph, name: str, regions: list[Region], cost: CostModel) -> Layer:
    params: GemmParams = regions[0].params
    weight = graph.weights[name]
    starts = [(n, _start(graph, name, r, n)) for r in regions for n in _products(r)]
    uses = tuple(
        LayerUse(n.inputs[0], n.outputs[0], start=start, width=_own(graph, n).shape[1])
        for n, start in starts
    )
    nodes = (f"{name}_pruned", *(f"{r.results[0]}_rank" for r in regions))
    us = sum(cost(graph, r) for r in regions)
    observed = tuple(dict.fromkeys(ObservedValue(p.x) for p in uses))
    producers, group = _producers(graph, regions[0]) if len(regions) == 1 else ((), 1)
    nodes += tuple(f"{m.results[0]}_{mark}" for m in producers for mark in ("alive", "heads"))
    return Layer(
        name, _title(starts[0][0]), params.k, params.n, lambda: _matrix(params, weight), observed,
        False, uses, us, us * params.n / params.k, nodes,
        producers[0].operands[1] if producers else "", sum(cost(graph, m) for m in producers),
        group,
    )  # fmt: skip


def _producers(graph: TileGraph, region: Region) -> tuple[tuple[Region, ...], int]:
    """Return the producers of a product's channels, if some may be removed, and the group size."""
    if (behind := prunable_heads(graph, region)) is not None:
        return behind, behind[1].params.head_v
    return channel_producers(graph, region), 1


def _matrix(params: GemmParams, weight: Weight) -> Floats:
    array = np.asarray(weight.array(), np.float64)
    return params.layout.matrix([array], params.k, params.n)


def _products(region: Region) -> list[Node]:
    return [n for n in region.nodes if n.op in ("MatMul", "Gemm")]


def _own(graph: TileGraph, node: Node) -> Floats:
    """Return an operator's original matrix, without its scale factor."""
    array = np.asarray(graph.weights[node.inputs[1]].array(), np.float64)
    array = array.reshape(array.shape[-2:])
    return array.T if node.attrs.get("transB", 0) else array


def _start(graph: TileGraph, name: str, region: Region, node: Node) -> int:
    """Return the column of the stored matrix at which an operator's columns begin."""
    if len(_products(region)) == 1:
        return 0
    own = _own(graph, node)
    whole = matrix_of(region.params, graph.weights[name])
    ends = range(0, whole.shape[1] - own.shape[1] + 1, ALIGNED)
    return next(s for s in ends if np.array_equal(whole[:, s : s + own.shape[1]], own))


# ---- convolutions and lookups ----------------------------------------------------------


def _convolution(graph: TileGraph, region: Region, cost: CostModel) -> Layer | None:
    """Return filters ``[O, C, taps…]`` as a layer; None if two convolutions cannot replace it."""
    params: ConvParams = region.params
    node, weight = conv_of(region), graph.weight(region.operands[1])
    shape = graph.spec(region.results[0]).shape
    if node is None or weight is None or shape is None or prod(params.shape) < _LEAST:
        return None
    if params.groups > 1 or params.layout == PLAIN:
        return None
    bias = params.split(region.operands)[2]
    shift = graph.weight(bias) if bias else None
    if bias and shift is None:
        return None
    written, window = conv_output(region), params.window
    attrs = {
        "kernel_shape": window.kernel, "strides": window.strides, "pads": window.pads,
        "dilations": window.dilations,
    }  # fmt: skip

    def load() -> Floats:
        filters = params.layout.filters([np.asarray(weight.array())], params.shape)
        return filters.reshape(params.filters, -1).T.astype(np.float64)

    place = LayerUse(region.operands[0], written, "Conv", shape=params.shape, attrs=attrs)
    rows = (shape[0], *shape[2:])
    return Layer(
        written, _title(node), params.taps, params.filters, load,
        (ObservedValue(written, 1, shift),), True,
        (place,), cost(graph, region), _square_us(graph, region, rows, params.filters, cost),
        (f"{region.results[0]}_rank",),
    )  # fmt: skip


def _look_up(graph: TileGraph, name: str, nodes: Sequence[Node], cost: CostModel) -> Layer | None:
    """Return a table that only lookups read; None if it has other readers or is small."""
    weight, readers = graph.weights[name], graph.uses(name)
    if weight.count < _LEAST or any(
        not isinstance(u.region.params, EmbeddingParams) for u in readers
    ):
        return None
    k, n = weight.shape
    uses = tuple(LayerUse(node.inputs[1], node.outputs[0], "Gather") for node in nodes)
    last = sum(
        _square_us(graph, readers[0].region, graph.spec(node.inputs[1]).shape or (), n, cost)
        for node in nodes
    )
    return Layer(
        table_key(name), _title(nodes[0]), k, n, lambda: np.asarray(weight.array(), np.float64),
        tuple(ObservedValue(p.result) for p in uses), True, uses, 0.0, last, (f"{name}_rank",),
    )  # fmt: skip


def _square_us(
    graph: TileGraph, region: Region, rows: tuple[Extent, ...], n: int, cost: CostModel
) -> float:
    """Return the predicted µs of a product by ``[n, n]`` for the rows of a region."""
    x, y = (TensorSpec(DType.F32, (*rows, n)) for _ in range(2))
    matrix = Weight("priced", DType.F32, (n, n), lambda: np.zeros(0))
    new = fused_region(
        LowRankGemm.name, GemmParams(n, n), ("priced_x", matrix.name), ("priced_y",), [region]
    )
    specs, weights = {"priced_x": x, "priced_y": y}, {matrix.name: matrix}
    return cost(
        ProposalPreview(graph, Proposal(LowRankGemm.name, (), (new,), specs, weights)), new
    )


def _title(node: Node) -> str:
    return node.name or node.outputs[0]
