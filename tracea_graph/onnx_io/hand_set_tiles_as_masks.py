"""Hand-set tiles written as an ONNX model: elements outside the tiles are masked.

    y = MatMul(x, W)     ->    y = MatMul(x, W with zeros outside the tiles)
    p = Softmax(s)       ->    p = Softmax(Where(tiles, s, −∞))

This model defines what an optimized model has to compute.  Its metadata holds the tiles, so that
planning finds them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from tracea_graph.errors import GraphError, ModelError, UsageError
from tracea_graph.ir import Array, DType, Node, Weight
from tracea_graph.onnx_io import tensor_data
from tracea_graph.onnx_io.imported_model import Model
from tracea_graph.onnx_io.model_writer import WrittenModel, write
from tracea_graph.ops.values_masked_by_tiles import is_transposed
from tracea_graph.ttg.hand_set_tiles import PatternKind, TilePattern
from tracea_graph.ttg.tile_set import TILE, TileSet

__all__ = ["patterns_of", "write_masked"]

_KEY = "tracea.tiles"
"""Metadata key of the tiles."""
_SLICE_INPUTS = 10
"""First opset whose Slice reads its ends from an operand; masks of symbolic size need it."""
_IS_NAN = 9
"""First opset with IsNaN and Where."""


def write_masked(model: Model, patterns: Mapping[str, TilePattern], out: Path) -> WrittenModel:
    """Write a model masked by the tiles of ``patterns``.

    A pattern whose constant the model already has was applied before, and is only recorded.
    Raises UsageError if the file cannot be written or the opset lacks what a mask needs,
    GraphError if an operator of a pattern is not in the model.
    """
    nodes = [n for r in model.graph.regions() for n in r.nodes]
    made = _MaskedNodes(model, {n.outputs[0]: n for n in nodes if n.outputs})
    for constant, pattern in patterns.items():
        if constant not in model.graph.weights:
            made.mask(constant, pattern)
    masked = [m for n in nodes for m in made.replaced.get(n.outputs[0] if n.outputs else "", (n,))]
    weights = {**model.graph.weights, **made.weights}
    text = json.dumps({name: _to_json(p) for name, p in patterns.items()}, separators=(",", ":"))
    return write(model, masked, weights, out, metadata={_KEY: text})


def patterns_of(skeleton: ModelProto) -> dict[str, TilePattern]:
    """Return the tiles that a model was masked by; raises ModelError if they are damaged."""
    text = next((p.value for p in skeleton.metadata_props if p.key == _KEY), "{}")
    try:
        return {name: _from_json(item) for name, item in json.loads(text).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the model's tiles ({_KEY} in its metadata) are damaged") from error


def _to_json(pattern: TilePattern) -> dict[str, object]:
    tiles = pattern.tiles
    return {
        "kind": pattern.kind.value,
        "value": pattern.value,
        "grid": tiles.grid,
        "tile": tiles.tile,
        "tiles": tiles.table[tiles.order].tolist(),
    }


def _from_json(item: Mapping[str, Any]) -> TilePattern:
    rows = np.array([tuple(row) for row in item["tiles"]], TILE)
    (m, n), (a, b, c) = item["grid"], item["tile"]
    order = np.arange(len(rows), dtype=np.int32)
    tiles = TileSet(rows, order, (int(m), int(n)), (int(a), int(b), int(c)))
    return TilePattern(PatternKind(item["kind"]), str(item["value"]), tiles)


@dataclass
class _MaskedNodes:
    """Nodes that replace an operator, by its first result, and their constants."""

    model: Model
    nodes: Mapping[str, Node]
    replaced: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    def mask(self, constant: str, pattern: TilePattern) -> None:
        node = self.nodes.get(pattern.value)
        if node is None:
            raise GraphError(f"no operator of the model writes {pattern.value!r}")
        make = self._matrix if pattern.kind is PatternKind.MATRIX else self._scores
        self.replaced[pattern.value] = tuple(make(constant, pattern, node))

    def _matrix(self, constant: str, pattern: TilePattern, node: Node) -> Iterator[Node]:
        stored, across = self.model.graph.weights[node.inputs[1]], is_transposed(node)
        load = partial(_masked, stored, pattern, across)
        self.weights[constant] = Weight(constant, stored.dtype, stored.shape, load)
        inputs = (node.inputs[0], constant, *node.inputs[2:])
        yield replace(node, inputs=inputs, source=None)

    def _scores(self, constant: str, pattern: TilePattern, node: Node) -> Iterator[Node]:
        graph, (scores, *_) = self.model.graph, node.inputs
        spec = graph.spec(scores)
        rows, columns = (spec.shape or ("", ""))[-2:]
        sizes = [e if isinstance(e, int) else most
                 for e, most in zip((rows, columns), pattern.extents, strict=True)]  # fmt: skip
        mask = pattern.mask(sizes[0], sizes[1])
        self._constant(constant, mask)
        kept = constant
        if (rows, columns) != tuple(sizes):
            self._needs(_SLICE_INPUTS, "scores of any size")
            yield from self._cut(constant, scores)
            kept = f"{constant}_cut"
        self._needs(_IS_NAN, "scores")
        low, masked = f"{constant}_low", f"{constant}_scores"
        kind = tensor_data.numpy_dtype(spec.dtype or DType.F32)
        self._constant(low, np.array(-np.inf, kind))
        yield Node("Where", (kept, scores, low), (masked,), name=masked)
        if mask.any(1).all():
            yield replace(node, inputs=(masked,), source=None)
            return
        # a query without a tile has no weights
        result, zero = node.outputs[0], f"{constant}_zero"
        self._constant(zero, np.array(0, kind))
        yield replace(node, inputs=(masked,), outputs=(f"{constant}_shares",), source=None)
        yield Node("IsNaN", (f"{constant}_shares",), (f"{constant}_empty",))
        yield Node("Where", (f"{constant}_empty", zero, f"{constant}_shares"), (result,))

    def _cut(self, constant: str, scores: str) -> Iterator[Node]:
        """The mask's first rows and columns, as many as the scores have."""
        zero, far, axes = (f"{constant}_{part}" for part in ("zero_axes", "far", "axes"))
        self._constant(zero, np.zeros(2, np.int64))
        self._constant(axes, np.array([0, 1]))
        self._constant(far, np.array([np.iinfo(np.int64).max]))
        self._constant(f"{constant}_two", np.array([-2]))
        self._constant(f"{constant}_first", np.array([0]))
        yield Node("Shape", (scores,), (f"{constant}_shape",))
        last = (f"{constant}_shape", f"{constant}_two", far, f"{constant}_first")
        yield Node("Slice", last, (f"{constant}_sizes",))
        yield Node("Slice", (constant, zero, f"{constant}_sizes", axes), (f"{constant}_cut",))

    def _needs(self, opset: int, what: str) -> None:
        if self.model.graph.opset < opset:
            raise UsageError(
                f"tiles of {what} need opset {opset}, but the model has {self.model.graph.opset}"
            )

    def _constant(self, name: str, array: Array) -> None:
        self.weights[name] = tensor_data.in_memory_weight(name, array)


def _masked(stored: Weight, pattern: TilePattern, across: bool) -> Array:
    """The matrix, as stored, with zeros outside the tiles."""
    matrix = stored.array()
    k, n = matrix.shape[::-1] if across else matrix.shape
    mask = pattern.mask(k, n)
    return np.where(mask.T if across else mask, matrix, np.zeros((), matrix.dtype))
