"""Removal of shape computations that depend on activations.

    Reshape(x, Concat(Gather(Shape(x), 0), …, 12, 32))   ->   Reshape(x, [0, 0, 12, 32])
    Gather(Shape(y), 1), equal to Gather(Shape(input), 1)  ->   the latter

A symbol means one size (see ``input_symbols``), even if the model uses its name for several.
Afterwards only data flow connects activations, and no ``Shape`` blocks a fusion.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from tracea_graph.onnx_io.graph_editor import EditorNode, GraphEditor
from tracea_graph.onnx_io.shape_values import slice_parameters
from tracea_graph.onnx_io.value_facts import INTEGERS, Shape, attribute, elements

__all__ = ["fold_reshape_targets", "read_sizes_from_inputs", "share_sizes"]


def read_sizes_from_inputs(editor: GraphEditor) -> int:
    """Let ``Shape`` read a graph input instead of an activation with equal sizes.

    Only the sizes that are read from the result must be equal.
    """
    captured = editor.captured()
    inputs = [v.name for v in editor.skeleton.graph.input if v.name not in editor.weights]
    rooted = 0
    for call in editor.calls():
        if call.op != "Shape" or call.proto.input[0] in (*inputs, *editor.weights):
            continue
        made, shape = call.proto.output[0], editor.facts.shape(call.proto.input[0])
        if shape is None or made in captured or made in editor.kept:
            continue
        axes = _axes_read(call, len(shape), editor)
        root = next((v for v in inputs if axes and _has(axes, shape, editor.facts.shape(v))), None)
        if root is not None:
            editor.read(call, 0, root)
            rooted += 1
    return rooted


def share_sizes(editor: GraphEditor) -> int:
    """Let readers of a repeated size computation read its first result."""
    first: dict[Hashable, str] = {}
    captured = editor.captured()
    shared = 0
    for call in editor.calls():
        key = _content(call, editor)
        if key is None:
            continue
        name = call.proto.output[0]
        if name in captured or name in editor.kept or key not in first:
            first.setdefault(key, name)
            continue
        editor.bypass(call, first[key])
        shared += 1
    return shared


def fold_reshape_targets(editor: GraphEditor) -> int:
    """Make a computed target of ``Reshape`` constant if all sizes but one are known or copied."""
    settled = 0
    for call in editor.calls():
        if call.op != "Reshape" or call.proto.input[1] in editor.weights:
            continue
        target = _constant_target(call, editor)
        if target is not None:
            editor.feed(call, 1, target)
            settled += 1
    return settled


def _axes_read(call: EditorNode, rank: int, editor: GraphEditor) -> list[int]:
    """Axes whose sizes are read from a Shape, counted from the front; empty if any is unknown."""
    start, end = attribute(call.proto, "start", 0), attribute(call.proto, "end", rank)
    if start or end != rank:
        return list(range(start, end)) if 0 <= start < end <= rank else []
    axes: list[int] = []
    for reader in editor.readers(call):
        numbers: list[int] = []
        if reader.op == "Gather" and not attribute(reader.proto, "axis", 0):
            numbers = editor.facts.numbers(reader.proto.input[1]) or []
        elif reader.op == "Slice" and (parts := slice_parameters(reader.proto, editor.facts)):
            first, last, _, step = parts[0]
            if isinstance(first, int) and isinstance(last, int) and step == 1 and last <= rank:
                numbers = list(range(first, last)) if first >= 0 else []
        if not numbers or min(numbers) < 0:
            return []
        axes += numbers
    return axes


def _has(axes: Sequence[int], shape: Shape, root: Shape | None) -> bool:
    """Whether both shapes have equal sizes at these axes."""
    if root is None or max(axes) >= min(len(root), len(shape)):
        return False
    return all(root[a] is not None and root[a] == shape[a] for a in axes)


def _content(call: EditorNode, editor: GraphEditor) -> Hashable | None:
    if len(call.proto.output) != 1:
        return None
    name = call.proto.output[0]
    value = editor.facts.value(name)
    if value is None or editor.facts.dtype(name) not in INTEGERS:
        return None
    if any(element is None for element in value.flat):
        return None
    return editor.facts.dtype(name), value.shape, tuple(value.flat)


def _constant_target(call: EditorNode, editor: GraphEditor) -> list[int] | None:
    data = editor.facts.shape(call.proto.input[0])
    target = editor.facts.value(call.proto.input[1])
    if data is None or target is None or attribute(call.proto, "allowzero", 0):
        return None
    sizes = [_size(i, element, data) for i, element in enumerate(elements(target))]
    holes = [i for i, size in enumerate(sizes) if size is None]
    if len(holes) > 1 or (holes and -1 in sizes):
        return None
    return [-1 if size is None else size for size in sizes]


def _size(axis: int, element: Any, data: Shape) -> int | None:
    """Target size for ``Reshape``: 0 copies the axis; None if it must be inferred."""
    if isinstance(element, int):
        return element
    return 0 if element is not None and axis < len(data) and data[axis] == element else None
