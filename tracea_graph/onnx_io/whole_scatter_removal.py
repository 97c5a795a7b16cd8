"""Removal of ScatterND nodes that write every element, as PyTorch exports ``x[:, :n] = y``.

    ScatterND(x, Concat(each axis's Range, broadcast to all), y)    ->    y

Such nodes occur in decoder masks; their indices take more memory and time than the data.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto

from tracea_graph.onnx_io.graph_editor import GraphEditor
from tracea_graph.onnx_io.shape_values import slice_parameters
from tracea_graph.onnx_io.value_facts import INTEGERS, Shape, ValueFacts, attribute

__all__ = ["drop_whole_scatters"]


def drop_whole_scatters(editor: GraphEditor) -> int:
    """Replace a ScatterND that overwrites every element by the values that it writes."""
    excluded = editor.captured() | editor.kept
    makers = {v: call.proto for call in editor.calls() for v in call.proto.output}
    dropped = 0
    for call in list(editor.calls()):
        if call.op != "ScatterND" or call.proto.output[0] in excluded:
            continue
        updates = call.proto.input[2]
        if updates in editor.tensors and _writes_all(call.proto, makers, editor.facts):
            editor.bypass(call, updates)
            dropped += 1
    return dropped


def _writes_all(node: NodeProto, makers: Mapping[str, NodeProto], facts: ValueFacts) -> bool:
    data, indices, updates = node.input
    shape = facts.shape(data)
    if not shape or shape != facts.shape(updates) or facts.dtype(data) != facts.dtype(updates):
        return False
    if attribute(node, "reduction", b"none") not in (b"none", "none"):
        return False
    joined = makers.get(indices)
    if joined is None or joined.op_type != "Concat" or len(joined.input) != len(shape):
        return False
    if attribute(joined, "axis") not in (-1, len(shape)):
        return False
    return all(
        facts.shape(part) == (*shape, 1) and _counts(part, axis, makers, facts)
        for axis, part in enumerate(joined.input)
    )


def _counts(value: str, axis: int, makers: Mapping[str, NodeProto], facts: ValueFacts) -> bool:
    """Whether an integer tensor counts up from 0 along an axis, and only along that axis."""
    node, shape = makers.get(value), facts.shape(value)
    if shape is None or facts.dtype(value) not in INTEGERS:
        return False
    if (numbers := facts.numbers(value)) is not None:
        sizes = [d for d in shape if isinstance(d, int)]
        return numbers == [int(i) for i in np.indices(sizes)[axis].flat]
    if node is None or not node.input:
        return False
    if node.op_type == "Range":
        return [facts.numbers(node.input[i]) for i in (0, 2)] == [[0], [1]]
    before = facts.shape(node.input[0])
    place = None if before is None else _place(node, before, shape, axis, facts)
    return place is not None and _counts(node.input[0], place, makers, facts)


def _place(
    node: NodeProto, before: Shape, after: Shape, axis: int, facts: ValueFacts
) -> int | None:
    """Operand axis that corresponds to ``axis`` of a node's result; None if elements move."""
    if node.op_type == "Cast":
        return axis
    if node.op_type == "Slice":
        parts = slice_parameters(node, facts)
        return axis if parts and all((p[0], p[3]) == (0, 1) for p in parts) else None
    if node.op_type == "Expand":
        place = axis - len(after) + len(before)
        return place if place >= 0 and before[place] == after[axis] else None
    if node.op_type not in ("Reshape", "Unsqueeze", "Squeeze"):
        return None
    old, new = ([i for i, d in enumerate(shape) if d != 1] for shape in (before, after))
    if [before[i] for i in old] != [after[i] for i in new]:
        return None  # axes longer than one were added or removed
    if axis in new:
        return old[new.index(axis)]
    return next((i for i, d in enumerate(before) if d == 1), None)
