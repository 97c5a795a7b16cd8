"""The way back: a result as plain ONNX, bodies in place of the custom operators."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import DataPool, Model, Written, load, write
from tracea_graph.onnx_io.inlining import calls_of
from tracea_graph.ttg import Region, TileGraph

__all__ = ["strip", "write_inlined"]

_OURS = "tracea."


def strip(path: Path, out: Path, single_file: bool = False) -> Written:
    """Write ``path`` with the body of every custom operator in its place, and no library.

    Weights are unpacked to what the bodies make of them.  Raises UsageError if the model has no
    custom operator of this tool or was written without bodies, ModelError if it is no model.
    """
    if not calls_of(load(path)):
        raise UsageError(f"{path} has no operator of a tracea library: it is plain ONNX already")
    model = load(path, inline=True)
    if left := calls_of(model):
        raise UsageError(
            f"{path} was written without bodies (--require-library): what {left[0].op} stands for "
            "is not in it"
        )
    return write_inlined(model, out, single_file=single_file)


def write_inlined(
    model: Model,
    out: Path,
    kept: Container[str] = (),
    *,
    single_file: bool = False,
    pool: DataPool | None = None,
) -> Written:
    """Write a model that was loaded with bodies in place of all custom operators but ``kept``.

    With none kept it no longer speaks of a library.
    """
    _forget(model, kept)
    regions = [r for r in model.graph.regions() if not _is_constant(model.graph, r)]
    nodes = [node for region in regions for node in region.nodes]
    made = {v for node in nodes for v in node.outputs}
    weights = {n: w for n, w in model.graph.weights.items() if n not in made}
    return write(model, nodes, weights, out, single_file=single_file, pool=pool)


def _is_constant(graph: TileGraph, region: Region) -> bool:
    """True for what only unpacks a weight: its results are stored instead."""
    return not any(map(graph.is_output, region.writes)) and all(
        v in graph.weights for v in region.writes
    )


def _forget(model: Model, kept: Container[str]) -> None:
    """Drop the bodies of operators that are gone; with the last one all talk of a library."""
    proto = model.skeleton
    bodies = [f for f in proto.functions if not f.domain.startswith(_OURS) or f.name in kept]
    proto.ClearField("functions")
    proto.functions.extend(bodies)
    if any(f.domain.startswith(_OURS) for f in bodies):
        return
    for field, name in (("opset_import", "domain"), ("metadata_props", "key")):
        others = [e for e in getattr(proto, field) if not getattr(e, name).startswith(_OURS)]
        proto.ClearField(field)
        getattr(proto, field).extend(others)
