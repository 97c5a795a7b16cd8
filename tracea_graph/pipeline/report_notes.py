"""Notes of a report about what a model is: its precision, its initializers, its size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tracea_graph.ir import DType
from tracea_graph.onnx_io import Model
from tracea_graph.onnx_io.subgraph_flattening import is_subgraph_entry
from tracea_graph.ttg import TileGraph

__all__ = ["count_nodes", "guard_notes", "precision_notes"]

_HALF_NAMES: Mapping[DType, str] = MappingProxyType({DType.F16: "fp16", DType.BF16: "bf16"})


def count_nodes(graph: TileGraph) -> int:
    """Return the number of ONNX nodes that a graph of original and fused regions becomes."""
    return sum(not any(is_subgraph_entry(n.name) for n in r.nodes[:1]) for r in graph.regions())


def guard_notes(improved: bool, model: Model) -> tuple[str, ...]:
    """Explain how initializers that are also inputs are handled."""
    if not improved or not model.guarded:
        return ()
    size = sum(weight.nbytes for weight in model.guarded.values())
    return (
        f"{len(model.guarded)} initializers that are also inputs ({size / 1e6:.3g} MB) are now "
        "constants, which ONNX Runtime can fold too; every run compares the inputs with them, and "
        "runs the original's nodes if one differs",
    )


def precision_notes(improved: bool, model: Model) -> Iterator[str]:
    """Say where the result computes in types other than the model's."""
    for dtype, name in _HALF_NAMES.items():
        if dtype in model.widened and (improved or dtype is DType.BF16):
            yield (
                f"{name} arithmetic is done in float32; inputs, outputs and "
                "stored weights keep their type"
            )
    if DType.BF16 in model.widened:
        yield (
            "ONNX Runtime runs no bf16 operators on CPUs: the result is compared with the same "
            "graph in float32"
        )
    if any(spec.dtype is DType.F64 for spec in map(model.graph.spec, _computed(model.graph))):
        yield "operators that compute in float64 are left as they are"


def _computed(graph: TileGraph) -> Iterator[str]:
    """Yield the values that operators compute, other than by a conversion."""
    for region in graph.regions():
        if region.op not in ("Cast", "Constant"):
            yield from region.writes
