"""Sequences that a loop only appends to become scan outputs.

    s = SequenceEmpty()
    s = Loop(…, s) { …; s = SequenceInsert(s, x) }        =>   t = Loop(…) { …; t = x }
    y = ConcatFromSequence(s)                             =>   y = Transpose, Reshape of t

TorchScript writes ``rows.append(x)`` this way.  Sequences keep the body out of every program, and
are copied in every iteration.  A scan output needs equal sizes in all iterations: the sizes of
``x`` are numbers, or symbols of the model's inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from tracea_graph.onnx_io.node_conversion import all_nodes, subgraphs_of
from tracea_graph.onnx_io.value_facts import attribute

__all__ = ["replace_appended_sequences"]

Types = Mapping[str, ValueInfoProto]


def replace_appended_sequences(model: ModelProto) -> int:
    """Replace the sequences of all loops that allow it, in place; return how many."""
    ops = {node.op_type for node in all_nodes(model.graph)}
    if not {"Loop", "SequenceInsert"} <= ops:
        return 0
    inferred = onnx.shape_inference.infer_shapes(model)
    symbols = {
        dim.dim_param for v in model.graph.input for dim in v.type.tensor_type.shape.dim
    } - {""}  # fmt: skip
    return _replace_in(model.graph, inferred.graph, symbols)


def _replace_in(graph: GraphProto, inferred: GraphProto, symbols: set[str]) -> int:
    found = 0
    for node, twin in zip([*graph.node], [*inferred.node], strict=True):
        for body, other in zip(subgraphs_of(node), subgraphs_of(twin), strict=True):
            found += _replace_in(body, other, symbols)
            if node.op_type == "Loop":
                types = {v.name: v for v in (*other.value_info, *other.output, *other.input)}
                found += _replace_states(graph, node, body, types, symbols)
    return found


def _replace_states(
    graph: GraphProto, loop: NodeProto, body: GraphProto, types: Types, symbols: set[str]
) -> int:
    found = 0
    for state in reversed(range(len(loop.input) - 2)):
        appended = _Appended.of(graph, loop, body, state, types, symbols)
        if appended is not None:
            appended.replace()
            found += 1
    return found


@dataclass(frozen=True)
class _Appended:
    """The state ``state`` of a loop, a sequence to which each iteration appends ``item``."""

    graph: GraphProto
    loop: NodeProto
    body: GraphProto
    state: int
    insert: NodeProto
    item: ValueInfoProto
    readers: Sequence[NodeProto]

    @classmethod
    def of(
        cls,
        graph: GraphProto,
        loop: NodeProto,
        body: GraphProto,
        state: int,
        types: Types,
        symbols: set[str],
    ) -> _Appended | None:
        """Return what to replace; None for a state that is used in any other way."""
        first, result = loop.input[2 + state], loop.output[state]
        before, after = body.input[2 + state].name, body.output[1 + state].name
        empty = any(n.op_type == "SequenceEmpty" and first in n.output for n in graph.node)
        insert = next((n for n in body.node if after in n.output), None)
        if not empty or insert is None or insert.op_type != "SequenceInsert":
            return None
        inside, outside = Counter(_reads(body)), Counter(_reads(graph))
        if list(insert.input[:1]) != [before] or len([v for v in insert.input if v]) != 2:
            return None
        if inside[before] != 1 or inside[after] != 1:  # its result is the body's alone
            return None
        item, readers = types.get(insert.input[1]), [n for n in graph.node if result in n.input]
        if item is None or not _is_constant_size(item, symbols) or outside[result] != len(readers):
            return None
        found = cls(graph, loop, body, state, insert, item, readers)
        return found if all(map(found.reads_tensor, readers)) else None

    def reads_tensor(self, reader: NodeProto) -> bool:
        """Return whether :meth:`_read` can replace a reader of the sequence."""
        if reader.op_type != "ConcatFromSequence" or attribute(reader, "new_axis", 0):
            return reader.op_type in ("ConcatFromSequence", "SequenceAt")
        shape = self.item.type.tensor_type.shape.dim
        axis = attribute(reader, "axis", 0) % max(len(shape), 1)
        return bool(shape) and all(d.HasField("dim_value") for d in shape[axis + 1 :])

    def replace(self) -> None:
        """Let the loop write one tensor, with the iterations first, under the sequence's name."""
        result, written = self.loop.output[self.state], self.insert.output[0]
        for reader in self.readers:
            self._read(reader, result)
        self.insert.CopyFrom(
            helper.make_node("Identity", [self.item.name], [written], name=self.insert.name)
        )
        outputs, results = list(self.body.output), list(self.loop.output)
        moved = outputs.pop(1 + self.state)
        moved.type.CopyFrom(self.item.type)
        outputs.append(moved)
        results.append(results.pop(self.state))
        kept = [ValueInfoProto.FromString(v.SerializeToString()) for v in outputs]
        del self.body.output[:], self.loop.output[:]
        self.body.output.extend(kept)
        self.loop.output.extend(results)
        del self.body.input[2 + self.state], self.loop.input[2 + self.state]
        _forget(self.graph, result)
        _forget(self.body, written)

    def _read(self, reader: NodeProto, result: str) -> None:
        y, rank = reader.output[0], len(self.item.type.tensor_type.shape.dim)
        if reader.op_type == "SequenceAt":
            reader.CopyFrom(
                helper.make_node("Gather", [*reader.input], [y], name=reader.name, axis=0)
            )
            return
        merged = not attribute(reader, "new_axis", 0)
        axis = attribute(reader, "axis", 0) % (rank if merged else rank + 1)
        order = [*range(1, axis + 1), 0, *range(axis + 1, rank + 1)]
        apart = f"{y}:iterations" if merged else y
        turned = helper.make_node("Transpose", [result], [apart], name=reader.name, perm=order)
        at = list(self.graph.node).index(reader)
        reader.CopyFrom(turned)
        if merged:
            dims = self.item.type.tensor_type.shape.dim[axis + 1 :]
            sizes = [0] * axis + [-1] + [d.dim_value for d in dims]
            self.graph.initializer.append(
                numpy_helper.from_array(np.array(sizes, np.int64), f"{y}:sizes")
            )
            self.graph.node.insert(
                at + 1,
                helper.make_node("Reshape", [apart, f"{y}:sizes"], [y], name=f"{y}:merged"),
            )


def _is_constant_size(item: ValueInfoProto, symbols: set[str]) -> bool:
    tensor = item.type.tensor_type
    return tensor.HasField("shape") and all(
        dim.HasField("dim_value") or dim.dim_param in symbols for dim in tensor.shape.dim
    )


def _reads(graph: GraphProto) -> Iterator[str]:
    """Yield the values that nodes, subgraphs and outputs of a graph read, as often as they do."""
    for node in all_nodes(graph):
        yield from node.input
        for body in subgraphs_of(node):
            yield from (v.name for v in body.output)
    yield from (v.name for v in graph.output)


def _forget(graph: GraphProto, name: str) -> None:
    """Drop the declared type of a value."""
    kept = [v for v in graph.value_info if v.name != name]
    del graph.value_info[:]
    graph.value_info.extend(kept)
