"""Unrolling of ``Loop`` and ``Scan`` nodes that have a known, small number of iterations.

    h = Loop(3, true, h0) { h -> f(h, w) }   ->   h = f(f(f(h0, w), w), w)

The number of iterations follows from constants and sizes; a loop's condition is simulated if it
depends on those alone, as counters do.  Rules then see one graph, and its nodes become programs
without the cost of starting an iteration.  If that was not measured faster, the original is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tracea_graph.onnx_io.graph_editor import EditorNode, GraphEditor
from tracea_graph.onnx_io.node_conversion import (
    all_nodes,
    has_subgraph,
    is_random,
    rename_value_info,
    rename_values,
)
from tracea_graph.onnx_io.skeleton_additions import SkeletonAdditions
from tracea_graph.onnx_io.value_facts import SMALL, attribute

__all__ = ["Trips", "evaluate_node", "known_trip_counts", "unroll_loops"]

Array = npt.NDArray[Any]
Trips = Mapping[str, int]
"""Number of iterations by the name of a loop's first output."""

_MAX_TRIPS, _MAX_NODES = 128, 4096
"""Maximum iterations of one loop, and maximum nodes that all loops are unrolled to."""
_OLDEST = 9
"""Opset from which Scan has no batch axis."""


def known_trip_counts(editor: GraphEditor) -> Trips:
    """Return the trip counts of those loops of a canonicalized graph that can be unrolled."""
    found, left = {}, _MAX_NODES
    for call in editor.calls():
        body = attribute(call.proto, "body") if call.op in ("Loop", "Scan") else None
        if body is None or not call.proto.output or not _is_plain(body):
            continue
        count = _loop_trips(call, body, editor) if call.op == "Loop" else _scan_trips(call, editor)
        if count is None or not 0 < count <= _MAX_TRIPS:
            continue
        name = next(filter(None, call.proto.output), "")
        size = count * sum(1 for _ in all_nodes(body))
        if size <= left:
            found[name], left = count, left - size
    return found


def _is_plain(body: GraphProto) -> bool:
    """Whether a body draws no random numbers and returns tensors alone."""
    random = any(map(is_random, all_nodes(body)))
    typed = all(v.type.HasField("tensor_type") for v in (*body.input, *body.output))
    return typed and not random and not body.sparse_initializer


def _scan_trips(call: EditorNode, editor: GraphEditor) -> int | None:
    """Return the length of the sequences that a Scan reads, if it is a number."""
    count = attribute(call.proto, "num_scan_inputs", 0)
    given = ("scan_input_axes", "scan_input_directions", "scan_output_axes",
             "scan_output_directions")  # fmt: skip
    unusual = any(any(attribute(call.proto, name, ())) for name in given)
    if editor.opsets.get("", 0) < _OLDEST or unusual or not count:
        return None
    shapes = [editor.facts.shape(v) for v in call.proto.input[-count:]]
    lengths = {shape[0] if shape else None for shape in shapes}
    length = lengths.pop() if len(lengths) == 1 else None
    return length if isinstance(length, int) else None


def _loop_trips(call: EditorNode, body: GraphProto, editor: GraphEditor) -> int | None:
    """Return a loop's iterations by simulating its condition; None if they are not known."""
    limit, start = (_known(v, editor) if v else None for v in call.proto.input[:2])
    most = _MAX_TRIPS + 1
    if call.proto.input[0]:
        if limit is None:
            return None
        most = min(most, int(limit.reshape(-1)[0]))
    if call.proto.input[1] and (start is None or not start.reshape(-1)[0]):
        return None
    outer = {v: a for v in call.captures if (a := _known(v, editor)) is not None}
    outer |= {t.name: numpy_helper.to_array(t) for t in body.initializer if _is_small(t.dims)}
    states = [_known(v, editor) for v in call.proto.input[2:]]
    for count in range(most):
        values = outer | {body.input[0].name: np.array(count), body.input[1].name: np.array(True)}
        named = zip(body.input[2:], states, strict=True)
        values |= {info.name: state for info, state in named if state is not None}
        _simulate(body, values, editor.opsets)
        again = values.get(body.output[0].name)
        if again is None:
            return None
        if not again.reshape(-1)[0]:
            return count + 1
        states = [values.get(v.name) for v in body.output[1 : 1 + len(states)]]
    return most


def _known(value: str, editor: GraphEditor) -> Array | None:
    """Return a small constant."""
    weight = editor.weights.get(value)
    return np.asarray(weight.array()) if weight is not None and weight.count <= SMALL else None


def _is_small(dims: Sequence[int]) -> bool:
    return int(np.prod(dims, dtype=object)) <= SMALL


def evaluate_node(
    node: NodeProto, given: Mapping[str, Array], opsets: Mapping[str, int]
) -> list[Array | None]:
    """Return the results of a node of ONNX's own operators, None for those that are no tensors.

    Returns nothing for what the reference evaluator does not support.
    """
    try:
        results = ReferenceEvaluator(node, opsets={"": opsets[""]}).run(None, dict(given))
    # the evaluator raises many types for what it does not support; the values stay unknown
    except Exception:
        return []
    arrays = (np.ndarray, np.generic)
    return [np.asarray(r) if isinstance(r, arrays) else None for r in results]


def _simulate(body: GraphProto, values: dict[str, Array], opsets: Mapping[str, int]) -> None:
    """Compute the small values of one iteration that depend on known ones alone."""
    for node in body.node:
        known = all(v in values for v in node.input if v)
        if not known or has_subgraph(node) or node.domain not in ("", "ai.onnx"):
            continue
        results = evaluate_node(node, {v: values[v] for v in node.input if v}, opsets)
        for name, result in zip(node.output, results, strict=False):
            if name and result is not None and result.size <= SMALL:
                values[name] = result


# ---- unrolling -------------------------------------------------------------------------


def unroll_loops(model: ModelProto, trips: Trips) -> bool:
    """Unroll the loops in ``trips``, in place; return whether any was unrolled.

    Existing nodes keep their positions.
    """
    graph, count = model.graph, 0
    opset = next((i.version for i in model.opset_import if i.domain in ("", "ai.onnx")), 1)
    additions = SkeletonAdditions(graph, opset)
    for index in range(len(graph.node)):
        node = graph.node[index]
        name = next(filter(None, node.output), "")
        if node.op_type in ("Loop", "Scan") and name in trips:
            _unroll(node, trips[name], additions)
            count += 1
    return count > 0


def _unroll(node: NodeProto, trips: int, to: SkeletonAdditions) -> None:
    body = GraphProto()
    body.CopyFrom(attribute(node, "body"))
    stem, loop = next(filter(None, node.output)), node.op_type == "Loop"
    scanned = 0 if loop else attribute(node, "num_scan_inputs")
    outer: dict[str, str] = {}
    for tensor in body.initializer:
        made = to.graph.initializer.add()
        made.CopyFrom(tensor)
        made.name = outer[tensor.name] = to.fresh(f"{tensor.name}:once")
    start = 2 if loop else 0
    states = [*node.input[start : len(node.input) - scanned]]
    sequences = [*node.input[len(node.input) - scanned :]]
    results: list[list[str]] = []
    flag = to.constant(f"{stem}:go", np.array(True)) if loop else ""
    for trip in range(trips):
        at = to.constant(f"{stem}:{trip}", np.array(trip, np.int64))
        heads = [at, flag] if loop else []
        slices = [to.add("Gather", [v, at], f"{v}:{trip}", axis=0) for v in sequences]
        given = [*heads, *states, *slices]
        names = outer | {i.name: v for i, v in zip(body.input, given, strict=True)}
        own = [v for n in body.node for v in n.output if v]
        names |= {v: to.fresh(f"{v}:{trip}") for v in own}
        to.graph.node.extend(rename_values(n, names) for n in body.node)
        to.graph.value_info.extend(rename_value_info(v, names) for v in body.value_info)
        made_here = [names.get(v.name, v.name) for v in body.output[int(loop) :]]
        states, stacked = made_here[: len(states)], made_here[len(states) :]
        results.append(stacked)
    to.replace(node, [*states, *(_stack(rows, stem, to) for rows in zip(*results, strict=True))])


def _stack(rows: Sequence[str], stem: str, to: SkeletonAdditions) -> str:
    """Join one value per iteration along a new first axis."""
    return to.add(
        "Concat", [to.with_axes("Unsqueeze", v, [0], f"{v}:row") for v in rows], f"{stem}:rows",
        axis=0,
    )  # fmt: skip
