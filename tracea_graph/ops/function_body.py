"""ONNX function bodies of custom ops.

A body becomes the model-local function of the op's type, which lets a runtime without the library
compute the op.  Its structural hash is part of the type's name: equal bodies share a type, and
different bodies never do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from tracea_graph.ir import Attr, Blob, DType, Node

__all__ = [
    "HALF_EVEN",
    "Body",
    "BodyBuilder",
    "attribute_text",
    "bind_body",
    "splice_body",
    "structural_key",
]

HALF_EVEN = 1.5 * 2.0**52
"""Added to a number in float64 and subtracted again, it leaves the nearest integer, ties to even.

What is as large as it was an integer before, and stays one as float32.
"""
_ANY_CONSTANT = 9
"""Opset from which ``Constant`` holds other numbers than floating-point ones."""
_INTEGERS: Mapping[str, Mapping[int, DType]] = MappingProxyType(
    {
        "i": {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64},
        "u": {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64},
        "b": {1: DType.BOOL},
    }
)
"""Types that are not floating-point ones, by NumPy's kind and number of bytes."""


@dataclass(frozen=True)
class Body:
    """Formal inputs and outputs of an ONNX function, and the nodes between them."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]

    @property
    def key(self) -> str:
        """Structural hash over operators, attributes, literals, def-use edges and arity."""
        return structural_key(self.nodes, self.inputs, self.outputs)


class BodyBuilder:
    """Builds a body one node per call: ``b("Add", x, y)`` returns the result's name."""

    def __init__(self, inputs: int, opset: int) -> None:
        self.inputs = tuple(f"i{i}" for i in range(inputs))
        self.opset = opset
        self.nodes: list[Node] = []

    def __call__(self, op: str, *inputs: str, **attrs: Attr) -> str:
        value = attrs.get("value")
        early = op == "Constant" and self.opset < _ANY_CONSTANT
        if early and isinstance(value, np.ndarray) and value.dtype.kind in _INTEGERS:
            wide = self("Constant", value=value.astype(np.float64))
            return self("Cast", wide, to=_INTEGERS[value.dtype.kind][value.itemsize].onnx)
        name = f"t{len(self.nodes)}"
        self.nodes.append(Node(op, inputs, (name,), attrs))
        return name

    def node(
        self, op: str, inputs: Sequence[str], results: Sequence[str], attrs: Mapping[str, Attr]
    ) -> list[str]:
        """Write a node with several results; an empty name stands for an unused result."""
        names = [f"t{len(self.nodes)}_{name}" if name else "" for name in results]
        while not names[-1]:
            names.pop()
        self.nodes.append(Node(op, tuple(inputs), tuple(names), attrs))
        return names

    def ints(self, *values: int) -> str:
        """Return the name of a 1-D int64 constant."""
        return self("Constant", value=np.asarray(values, np.int64))

    def number(self, value: float) -> str:
        """Return the name of a scalar float32 constant."""
        return self("Constant", value=np.asarray(value, np.float32))

    def round(self, x: str) -> str:
        """Write float32 ``x`` rounded to integers, ties to even; before opset 11 by additions."""
        if self.opset >= 11:
            return self("Round", x)
        number = self("Constant", value=np.asarray(HALF_EVEN, np.float64))
        wide = self("Add", self("Cast", x, to=DType.F64.onnx), number)
        return self("Cast", self("Sub", wide, number), to=DType.F32.onnx)

    def at_least(self, x: str, low: float) -> str:
        """Write the larger of float32 ``x`` and ``low``; before opset 8, Max cannot broadcast."""
        if self.opset < 8:
            return self("Clip", x, min=low)
        return self("Max", x, self.number(low))

    def integer_product(self, x: str, y: str, x_zero: str, y_zero: str = "") -> str:
        """Write the exact product of 8-bit integers less their zero points, rounded to float32.

        Before opset 10 ONNX has no ``MatMulInteger``: float64 holds all sums of 32 bits exactly.
        """
        if self.opset >= 10:
            zeros = (x_zero, y_zero) if y_zero else (x_zero,)
            return self("Cast", self("MatMulInteger", x, y, *zeros), to=DType.F32.onnx)
        left, right, x_wide, *y_wide = (
            self("Cast", v, to=DType.F64.onnx) for v in (x, y, x_zero, y_zero) if v
        )
        right = self("Sub", right, *y_wide) if y_wide else right
        product = self("MatMul", self("Sub", left, x_wide), right)
        return self("Cast", product, to=DType.F32.onnx)

    def slice_last(self, x: str, start: int, end: int, axis: int = -1) -> str:
        """Write ``x[..., start:end]`` along ``axis``."""
        if self.opset < 10:
            return self("Slice", x, axes=(axis,), starts=(start,), ends=(end,))
        return self("Slice", x, self.ints(start), self.ints(end), self.ints(axis))

    def split_last(self, x: str, rank: int, count: int) -> str:
        """Reshape the last axis of ``x`` into ``count`` rows.

        From opset 14 on, the other axes may have size 0.
        """
        if self.opset < 14:
            return self("Reshape", x, self.ints(*[0] * (rank - 1), count, -1))
        sizes, zero, last = self("Shape", x), self.ints(0), self.ints(rank - 1)
        outer = self("Slice", sizes, zero, last, zero)
        rows = self.ints(count)
        columns = self("Div", self("Slice", sizes, last, self.ints(rank), zero), rows)
        target = self("Concat", outer, rows, columns, axis=0)
        return self("Reshape", x, target, allowzero=1)

    def pad(self, x: str, before: Sequence[int], after: Sequence[int]) -> str:
        """Pad ``x`` with zeros; returns ``x`` itself if there is no padding."""
        if not any((*before, *after)):
            return x
        if self.opset < 11:
            return self("Pad", x, pads=(*before, *after))
        return self("Pad", x, self.ints(*before, *after))

    def reduce(self, op: str, x: str, axes: tuple[int, ...], keepdims: bool = True) -> str:
        """Write a reduction, with its axes as attribute or operand, depending on the opset."""
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


def bind_body(body: Body, inputs: Sequence[str], result: str) -> tuple[Node, ...]:
    """Return the nodes of a body with one output, reading ``inputs`` and writing ``result``."""
    names = {**dict(zip(body.inputs, inputs, strict=True)), body.outputs[0]: result}
    for node in body.nodes:
        names |= {v: f"{result}.{v}" for v in node.outputs if v not in names}
    return tuple(_rename(node, names) for node in body.nodes)


def splice_body(nodes: list[Node], body: Body, operands: Sequence[str]) -> list[str]:
    """Append a body's nodes to ``nodes``; return the names that its outputs get.

    ``operands`` take the place of the body's inputs; values in the body get new names.
    """
    names = {"": "", **dict(zip(body.inputs, operands, strict=True))}
    for node in body.nodes:
        for value in node.outputs:
            names.setdefault(value, f"t{len(nodes)}_{len(names)}" if value else "")
        reads = tuple(names[v] for v in node.inputs)
        writes = tuple(names[v] for v in node.outputs)
        nodes.append(Node(node.op, reads, writes, node.attrs, node.domain))
    return [names[v] for v in body.outputs]


def structural_key(nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Return the SHA-256 of a subgraph, independent of the names of its values and nodes."""
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
    """Return a text that is equal for equal attribute values."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Blob):
        return f"{value.kind}{hashlib.sha256(value.data).hexdigest()}"
    return repr(value)
