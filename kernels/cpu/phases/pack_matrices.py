"""Pack the constant matrices of products into panels.

FusedGemm(x, [K, N])    ->    FusedGemm(x, panels)        alone, or a step of a program

A matrix that other nodes read in its plain form (an embedding table that is also the output head)
is not packed, since that would store it twice; the product reads it in place.  With bf16 it is
packed anyway: the copy has half the size and doubles the speed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, DType, Node, Weight
from tracea_graph.kernels.cpu.panels import PANEL, PANELS, pack_panels
from tracea_graph.ops.function_body import BodyBuilder, bind_body
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import PlainMatrix
from tracea_graph.passes.matmul.constant_matrices import must_stay_plain
from tracea_graph.reason_codes import not_constant_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PACK_MATRICES", "PackMatrices"]

PACK_MATRICES = "pack-matrices"
"""The rule's name."""


@dataclass(frozen=True)
class PackMatrices:
    """Pack a product's matrix into panels.

    With ``twice``, the rule also applies if other nodes need the unpacked matrix.  With
    ``at_load``, nodes of the model pack the matrix when a session opens; the model keeps the
    unpacked one.
    """

    twice: bool = False
    at_load: bool = False
    name: str = PACK_MATRICES

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if isinstance(params, GemmParams):
            made = self._panels(graph, params, region.operands[1])
            if isinstance(made, str):
                yield Miss(self.name, region.id, made)
            elif made is not None:
                operands = (region.operands[0], made.name, *region.operands[2:])
                packed = dataclasses.replace(params, layout=PANELS)
                new = dataclasses.replace(region, params=packed, operands=operands)
                yield Proposal(self.name, (region,), (new,), weights={made.name: made})
        elif isinstance(params, RegionParams):
            yield from self._inside(graph, region, params)

    def _inside(
        self, graph: TileGraph, region: Region, params: RegionParams
    ) -> Iterator[Proposal | Miss]:
        """Propose packing the matrices of all products of one program together."""
        operands, weights, packed = list(region.operands), dict[str, Weight](), set[int]()
        for at, product in _matrices(params).items():
            made = self._panels(graph, product, region.operands[at])
            if isinstance(made, str):
                yield Miss(self.name, region.id, made)
            elif made is not None:
                operands[at], weights[made.name] = made.name, made
                packed.add(at)
        if packed:
            steps = tuple(_packed(s) if {*s.operands[1:2]} & packed else s for s in params.steps)
            whole = dataclasses.replace(params, steps=steps)
            new = dataclasses.replace(region, params=whole, operands=tuple(operands))
            yield Proposal(self.name, (region,), (new,), weights=weights)

    def _panels(self, graph: TileGraph, params: GemmParams, value: str) -> Weight | str | None:
        """The panels of a plain matrix, a reason against packing, or None for another layout."""
        weight = graph.weight(value)
        if not isinstance(params.layout, PlainMatrix):
            return None
        if weight is None:
            return not_constant_reason(value)
        if not (self.twice or self.at_load) and must_stay_plain(graph, value):
            return f"other readers need {value!r} unchanged"
        layout, k, n = params.layout, params.k, params.n

        def load() -> Array:
            return pack_panels(layout.matrix([np.asarray(weight.load(), np.float32)], k, n))

        name = f"{value}{'_t' if layout.transposed else ''}_panels"
        nodes = _packing_nodes(layout, value, name, k, n, graph.opset) if self.at_load else ()
        return Weight(name, DType.F32, PANELS.shape(k, n), load, nodes)


def _packing_nodes(
    layout: PlainMatrix, value: str, name: str, k: int, n: int, opset: int
) -> tuple[Node, ...]:
    """Return the nodes that pack a matrix like :func:`pack_panels`."""
    b = BodyBuilder(1, opset)
    matrix = layout.to_onnx(b, b.inputs, k, n)
    panels = -(-n // PANEL)
    wide = b("Reshape", b.pad(matrix, (0, 0), (0, panels * PANEL - n)), b.ints(k, panels, PANEL))
    return bind_body(b.done(b("Transpose", wide, perm=(1, 0, 2))), [value], name)


def _matrices(params: RegionParams) -> dict[int, GemmParams]:
    """Inputs of a program that its steps read only as a product's matrix, in one layout.

    Maps the input's index to the first product that reads it.
    """
    found, other = dict[int, GemmParams](), set[int]()
    for step in params.steps:
        product = step.params if isinstance(step.params, GemmParams) else None
        for at, value in enumerate(step.operands):
            if (
                product is None
                or at != 1
                or found.setdefault(value, product).layout != product.layout
            ):
                other.add(value)
    return {v: p for v, p in found.items() if v < params.inputs and v not in other}


def _packed(step: RegionStep) -> RegionStep:
    """A product's step with packed panels; any other step unchanged."""
    if not isinstance(step.params, GemmParams):
        return step
    return dataclasses.replace(step, params=dataclasses.replace(step.params, layout=PANELS))
