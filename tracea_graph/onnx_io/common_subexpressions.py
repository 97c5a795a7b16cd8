"""Common subexpression elimination: equal operators with equal attributes and operands.

    Cos(Gather(t, i)), Cos(Gather(t, i))   ->   one of them, read twice

Two kinds of operators are never shared: random ones, which yield new values each time, and those
with subgraphs, which may contain random ones.
"""

from __future__ import annotations

from collections.abc import Hashable

from tracea_graph.ir import RANDOM_OPS
from tracea_graph.onnx_io.graph_editor import EditorNode, GraphEditor
from tracea_graph.onnx_io.node_conversion import has_subgraph
from tracea_graph.onnx_io.subgraph_flattening import is_subgraph_entry

__all__ = ["share_duplicates"]

SMALL = 4096
"""Maximum bytes of a constant that is compared by content; larger ones are compared by name."""
_APART = frozenset({"Range"})
"""Operators that are not shared: ONNX Runtime turns a Gather along a range into a Slice only if
the range has no other reader, and otherwise gathers element by element.
"""


def share_duplicates(editor: GraphEditor) -> int:
    """Let readers of repeated computations read the first one; return how many were removed."""
    first: dict[Hashable, EditorNode] = {}
    fixed = editor.captured() | editor.kept
    shared = 0
    for call in editor.calls():
        if (key := _content(call, editor)) is None:
            continue
        earlier = first.setdefault(key, call)
        if earlier is not call and fixed.isdisjoint(call.proto.output):
            editor.share(call, earlier)
            shared += 1
    return shared


def _content(call: EditorNode, editor: GraphEditor) -> Hashable | None:
    """Key of what the node computes; None if it may vary between runs or is not standard ONNX."""
    proto = call.proto
    if proto.domain not in ("", "ai.onnx") or has_subgraph(proto):
        return None
    if proto.op_type in RANDOM_OPS | _APART or is_subgraph_entry(proto.name):
        return None
    attributes = sorted((a.name, a.SerializeToString(deterministic=True)) for a in proto.attribute)
    operands = tuple(_operand(name, editor) for name in proto.input)
    present = tuple(bool(name) for name in proto.output)
    return proto.op_type, operands, tuple(attributes), present


def _operand(name: str, editor: GraphEditor) -> Hashable:
    weight = editor.weights.get(name)
    if weight is None or weight.nbytes > SMALL or name in editor.kept:
        return name
    return weight.dtype, weight.shape, weight.digest
