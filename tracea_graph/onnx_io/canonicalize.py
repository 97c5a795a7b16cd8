"""Canonicalization: equal computations get one form, and constant values become weights.

Every step keeps the graph valid and the names of its outputs.  A node that no step touches is
written out exactly as it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from tracea_graph.ir import RANDOM_OPS
from tracea_graph.onnx_io.common_subexpressions import share_duplicates
from tracea_graph.onnx_io.constant_folding import fold_constants
from tracea_graph.onnx_io.graph_editor import EditorNode, GraphEditor
from tracea_graph.onnx_io.remove_shape_computations import (
    fold_reshape_targets,
    read_sizes_from_inputs,
    share_sizes,
)
from tracea_graph.onnx_io.shape_values import slice_parameters
from tracea_graph.onnx_io.subgraph_flattening import live_subgraph_entries
from tracea_graph.onnx_io.tensor_data import constant_value, in_memory_weight
from tracea_graph.onnx_io.value_facts import attribute
from tracea_graph.onnx_io.whole_scatter_removal import drop_whole_scatters

__all__ = ["STEPS", "canonicalize"]

Array = npt.NDArray[Any]

Step = Callable[[GraphEditor], int]
"""Changes an editor's graph and returns how many nodes it changed or removed."""

ROUNDS = 32
"""Maximum number of rounds of all steps; each may find sizes that the next one needs."""


def canonicalize(editor: GraphEditor) -> None:
    """Bind the symbols of the inputs, then apply all steps until nothing changes."""
    lift_constants(editor)
    remove_dead_nodes(editor)
    editor.bind_symbols()
    for _ in range(ROUNDS):
        editor.study()
        if not sum([step(editor) for step in STEPS]):
            return
    editor.study()


def lift_constants(editor: GraphEditor) -> int:
    """Turn ``Constant`` nodes into weights; return how many."""
    lifted = 0
    for call in editor.calls():
        name = call.proto.output[0] if call.proto.output else ""
        if call.op != "Constant" or name in editor.facts.types:
            continue
        if name not in editor.weights:
            array = constant_value(call.proto)
            if array is None:
                continue  # strings and sparse tensors stay nodes
            editor.weights[name] = in_memory_weight(name, array)
            editor.facts.weight(editor.weights[name])
        editor.remove(call)
        lifted += 1
    return lifted


def remove_dead_nodes(editor: GraphEditor) -> int:
    """Remove nodes that no graph output needs."""
    return editor.cleanup()


def remove_identities(editor: GraphEditor) -> int:
    """Remove nodes whose first output equals their first input, unless a name must be kept."""
    captured = editor.captured()
    entries = live_subgraph_entries(call.proto for call in editor.calls())
    removed = 0
    for call in editor.calls():
        if not _is_identity(call, editor) or call.proto.name in entries:
            continue
        source, result = call.proto.input[0], call.proto.output[0]
        if result in captured or result in editor.kept - editor.outputs:
            continue
        if result not in editor.outputs:
            editor.bypass(call, source)
        elif _renamable(source, editor, captured):
            editor.hand_over(call, source)
        else:
            continue
        removed += 1
    return removed


def inline_known_branches(editor: GraphEditor) -> int:
    """Replace an ``If`` of known condition whose branch only returns values from outside."""
    taken = 0
    for call in editor.calls():
        chosen = _passed_through(call, editor) if call.op == "If" else []
        if chosen and editor.tensors.keys() >= {*chosen} and _replaceable(call, chosen, editor):
            editor.hand_over(call, *chosen)
            taken += 1
    return taken


def _replaceable(call: EditorNode, values: Sequence[str], editor: GraphEditor) -> bool:
    """Whether readers may read ``values`` instead of a node's results, and their writers may give
    them the names of those results that are outputs of the model."""
    captured = {v for other in editor.calls() if other.index != call.index for v in other.captures}
    results = dict(zip(call.proto.output, values, strict=False))
    outputs = [value for result, value in results.items() if result in editor.outputs]
    fixed = captured | (editor.kept - editor.outputs)
    return (
        fixed.isdisjoint(results)
        and len({*outputs}) == len(outputs)
        and all(_renamable(value, editor, captured) for value in outputs)
    )


def _passed_through(call: EditorNode, editor: GraphEditor) -> list[str]:
    """Outer values that the branch taken returns unchanged; empty if it returns others too."""
    flag = editor.facts.numbers(call.proto.input[0])
    if flag is None or len(flag) != 1:
        return []
    body = attribute(call.proto, "then_branch" if flag[0] else "else_branch")
    inner = {tensor.name for tensor in body.initializer}
    writers = {v: node for node in body.node for v in node.output}
    values = []
    for output in body.output[: len(call.proto.output)]:
        value = str(output.name)
        while (node := writers.get(value)) is not None and node.op_type == "Identity":
            value = str(node.input[0])
        values.append(value)
    return [] if (writers.keys() | inner) & {*values} else values


def _renamable(value: str, editor: GraphEditor, captured: set[str]) -> bool:
    """Whether the writer of a value may rename it; random values depend on their name."""
    writers = editor.tensors[value].inputs
    random = any(writer.op in RANDOM_OPS for writer in writers)
    return bool(writers) and not random and value not in captured and value not in editor.kept


def _is_identity(call: EditorNode, editor: GraphEditor) -> bool:
    test = IDENTITIES.get(call.op)
    if test is None or not call.proto.input or not call.proto.input[0]:
        return False
    return test(call, editor)


def _always(call: EditorNode, editor: GraphEditor) -> bool:
    return True


def _single(call: EditorNode, editor: GraphEditor) -> bool:
    return len(call.proto.input) == 1


def _inactive_dropout(call: EditorNode, editor: GraphEditor) -> bool:
    masks = [t for t in call.handle.outputs[1:] if t.name]
    if any(t.outputs or t.name in editor.kept for t in masks):
        return False
    training = call.proto.input[2] if len(call.proto.input) > 2 else ""
    return not training or editor.facts.numbers(training) == [0]


def _same_type(call: EditorNode, editor: GraphEditor) -> bool:
    dtype = editor.facts.dtype(call.proto.input[0])
    return dtype is not None and dtype.onnx == attribute(call.proto, "to", 0)


def _same_shape(call: EditorNode, editor: GraphEditor) -> bool:
    before = editor.facts.shape(call.proto.input[0])
    return before is not None and before == editor.facts.shape(call.proto.output[0])


def _same_order(call: EditorNode, editor: GraphEditor) -> bool:
    shape = editor.facts.shape(call.proto.input[0])
    if shape is None:
        return False
    axes = list(range(len(shape)))
    return list(attribute(call.proto, "perm", axes[::-1])) == axes


def _whole_slice(call: EditorNode, editor: GraphEditor) -> bool:
    parts = slice_parameters(call.proto, editor.facts)
    forward = parts is not None and all(step == 1 for *_, step in parts)
    return forward and _same_shape(call, editor)


def _no_padding(call: EditorNode, editor: GraphEditor) -> bool:
    inputs = call.proto.input
    pads = attribute(call.proto, "pads") or (
        editor.facts.numbers(inputs[1]) if inputs[1:] else None
    )
    return pads is not None and not any(pads) and _same_shape(call, editor)


IDENTITIES: Mapping[str, Callable[[EditorNode, GraphEditor], bool]] = MappingProxyType(
    {
        "Identity": _always,
        "Dropout": _inactive_dropout,
        "Cast": _same_type,
        "Transpose": _same_order,
        "Slice": _whole_slice,
        "Pad": _no_padding,
        **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _single),
        **dict.fromkeys(
            ("Reshape", "Expand", "Flatten", "Squeeze", "Unsqueeze", "Tile"), _same_shape
        ),
    }
)

STEPS: tuple[Step, ...] = (
    lift_constants,  # first: the following steps ask which inputs are weights
    remove_dead_nodes,
    fold_constants,  # before identities: a folded size may show that a Reshape is one
    share_duplicates,
    share_sizes,
    fold_reshape_targets,
    remove_identities,
    inline_known_branches,
    drop_whole_scatters,
    read_sizes_from_inputs,  # last: it changes which value a Shape reads
    remove_dead_nodes,
)
