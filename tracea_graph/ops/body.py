"""Bodies: what a custom op means, in plain ONNX operators.

A body becomes the model-local function of the op's type, so that a runtime without the library
still computes the same thing.  Its structural hash is part of the type's name: equal bodies share
a type, different ones never meet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracea_graph.ir import Attr, Blob, Node

__all__ = ["Body", "BodyBuilder", "attribute_text", "placed", "structural_key"]


@dataclass(frozen=True)
class Body:
    """Formal inputs and outputs, and the nodes between them."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]

    @property
    def key(self) -> str:
        """The structural hash: ops, attributes, literals, wiring, arity."""
        return structural_key(self.nodes, self.inputs, self.outputs)


class BodyBuilder:
    """Writes nodes one call at a time: ``b("Add", x, y)`` returns the result's name."""

    def __init__(self, inputs: int, opset: int) -> None:
        self.inputs = tuple(f"i{i}" for i in range(inputs))
        self.opset = opset
        self.nodes: list[Node] = []

    def __call__(self, op: str, *inputs: str, **attrs: Attr) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(Node(op, inputs, (name,), attrs))
        return name

    def node(
        self, op: str, inputs: Sequence[str], results: Sequence[str], attrs: Mapping[str, Attr]
    ) -> list[str]:
        """Writes a node of several results; an empty name stays empty: nobody wants it."""
        names = [f"t{len(self.nodes)}_{name}" if name else "" for name in results]
        while not names[-1]:
            names.pop()
        self.nodes.append(Node(op, tuple(inputs), tuple(names), attrs))
        return names

    def ints(self, *values: int) -> str:
        """A 1-D int64 constant."""
        return self("Constant", value=np.asarray(values, np.int64))

    def number(self, value: float) -> str:
        """A scalar float32 constant."""
        return self("Constant", value=np.asarray(value, np.float32))

    def slice_last(self, x: str, start: int, end: int, axis: int = -1) -> str:
        """``x[..., start:end]`` along ``axis``."""
        if self.opset < 10:
            return self("Slice", x, axes=(axis,), starts=(start,), ends=(end,))
        return self("Slice", x, self.ints(start), self.ints(end), self.ints(axis))

    def split_last(self, x: str, rank: int, count: int) -> str:
        """The last axis of ``x`` as ``count`` rows; of axes without elements since opset 14."""
        if self.opset < 14:
            return self("Reshape", x, self.ints(*[0] * (rank - 1), count, -1))
        sizes, zero, last = self("Shape", x), self.ints(0), self.ints(rank - 1)
        outer = self("Slice", sizes, zero, last, zero)
        rows = self.ints(count)
        columns = self("Div", self("Slice", sizes, last, self.ints(rank), zero), rows)
        target = self("Concat", outer, rows, columns, axis=0)
        return self("Reshape", x, target, allowzero=1)

    def pad(self, x: str, before: Sequence[int], after: Sequence[int]) -> str:
        """Zeros around ``x``; ``x`` itself where there are none to add."""
        if not any((*before, *after)):
            return x
        if self.opset < 11:
            return self("Pad", x, pads=(*before, *after))
        return self("Pad", x, self.ints(*before, *after))

    def reduce(self, op: str, x: str, axes: tuple[int, ...], keepdims: bool = True) -> str:
        """A reduction over axes, which are an attribute or an operand as the opset has it."""
        if self.opset < (13 if op == "ReduceSum" else 18):
            return self(op, x, axes=axes, keepdims=int(keepdims))
        return self(op, x, self.ints(*axes), keepdims=int(keepdims))

    def done(self, *results: str) -> Body:
        """Close the body with these results as outputs ``o0``, ``o1`` …"""
        outputs = tuple(f"o{i}" for i in range(len(results)))
        names = (
            dict(zip(results, outputs, strict=True)) if len(set(results)) == len(results) else {}
        )
        if names and not set(names) & set(self.inputs):
            return Body(self.inputs, outputs, tuple(_rename(n, names) for n in self.nodes))
        copies = (Node("Identity", (r,), (o,)) for r, o in zip(results, outputs, strict=True))
        return Body(self.inputs, outputs, (*self.nodes, *copies))


def _rename(node: Node, names: dict[str, str]) -> Node:
    inputs = tuple(names.get(v, v) for v in node.inputs)
    outputs = tuple(names.get(v, v) for v in node.outputs)
    return Node(node.op, inputs, outputs, node.attrs, node.domain)


def placed(body: Body, inputs: Sequence[str], result: str) -> tuple[Node, ...]:
    """The nodes of a body with one output, between values of a graph; inner names are new."""
    names = {**dict(zip(body.inputs, inputs, strict=True)), body.outputs[0]: result}
    for node in body.nodes:
        names |= {v: f"{result}.{v}" for v in node.outputs if v not in names}
    return tuple(_rename(node, names) for node in body.nodes)


def structural_key(nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """SHA-256 of a subgraph up to the names of its values and nodes."""
    ids: dict[str, int] = {"": -1}
    for value in inputs:
        ids.setdefault(value, len(ids))
    rows: list[Any] = [len(inputs)]
    for node in nodes:
        reads = [ids.setdefault(v, len(ids)) for v in node.inputs]
        writes = [ids.setdefault(v, len(ids)) for v in node.outputs]
        attrs = sorted((k, attribute_text(v)) for k, v in node.attrs.items())
        rows.append([node.domain, node.op, reads, writes, attrs])
    rows.append([ids.get(v, -1) for v in outputs])
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def attribute_text(value: Attr) -> str:
    """An attribute as text that is equal where its value is."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Blob):
        return f"{value.kind}{hashlib.sha256(value.data).hexdigest()}"
    return repr(value)
