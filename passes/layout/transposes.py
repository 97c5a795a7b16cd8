"""Remove the transposes that converters from channels-last frameworks insert.

Convolutions in ONNX have channels first, so operators written for channels last stand between
transposes.  These are sunk through operators until they meet their inverse:

add(Transpose(x), c)                  ->  Transpose(add(x, c'))
Concat(Transpose(x), Transpose(y))    ->  Transpose(Concat(x, y)) over another axis
Pad(Transpose(x))                     ->  Transpose(Pad(x)) of other axes
ReduceMean(Transpose(x))              ->  ReduceMean(x) over other axes, transposed if axes stay
op(Transpose(Transpose(x)))           ->  op(x)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracea_graph.ir import Array, Attr, DType, Node, TensorSpec, Weight
from tracea_graph.passes.pointwise.read_elementwise import read_chain
from tracea_graph.passes.regions import attribute, only_read_by
from tracea_graph.reasons import unsuited
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["CancelTransposes", "SinkTransposes"]

_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
_REDUCTIONS = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum")


class SinkTransposes:
    """Move an operator before the transposes to channels last of all its large operands."""

    name = "sink-transposes"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or len(region.results) != 1 or region.op == "Transpose":
            return
        if not _reads_channels_last(graph, region):
            return
        sunk = _Sunk(graph, region)
        if region.op == "Concat":
            new = _concat(sunk)
        elif region.op == "Pad":
            new = _pad(sunk)
        elif region.op in _REDUCTIONS:
            new = _reduce(sunk)
        else:
            new = _by_element(sunk)
        if new is None:
            why = unsuited("its other operands or axes cannot be transposed")
            yield Miss(self.name, region.id, why)
            return
        old = (*_dropped(graph, region, region.operands), region)
        yield Proposal(self.name, old, new, sunk.specs, sunk.weights, step=True)


class CancelTransposes:
    """Let readers of a value that was transposed twice read the original value."""

    name = "cancel-transposes"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Transpose":
            return
        transposed = region.results[0]
        if not (value := _there_and_back(graph, transposed)):
            yield Miss(self.name, region.id, unsuited("it undoes no other transpose"))
            return
        readers = graph.in_order(graph.readers(region))
        if not readers or graph.is_output(transposed):
            yield Miss(self.name, region.id, unsuited(f"{transposed!r} is an output"))
            return
        if any(r.fused or transposed in r.captures for r in readers):
            yield Miss(self.name, region.id, unsuited(f"a reader of {transposed!r} is fused"))
            return
        old = (*_dropped(graph, region, region.operands), region, *readers)
        yield Proposal(
            self.name, old, tuple(_reading(r, transposed, value) for r in readers), step=True
        )


def _reading(region: Region, old: str, new: str) -> Region:
    """Return the operator with one operand replaced."""
    operands = tuple(new if v == old else v for v in region.operands)
    node = dataclasses.replace(region.node, inputs=operands, source=None)
    return dataclasses.replace(region, operands=operands, nodes=(node,))


def _perm(region: Region | None) -> tuple[int, ...]:
    """Return the permutation of a Transpose; empty for anything else."""
    if region is None or region.fused or region.op != "Transpose":
        return ()
    perm = attribute(region, "perm", ())
    return tuple(perm) if isinstance(perm, tuple) else ()


def _channels_first(graph: TileGraph, value: str) -> str:
    """Return the channels-first source of a transposed value; empty if there is none."""
    source = graph.producer(value) if value else None
    return source.operands[0] if source and _perm(source) == _LAST else ""


def _reads_channels_last(graph: TileGraph, region: Region) -> bool:
    """Return whether an operand was transposed to channels last."""
    return any(_channels_first(graph, v) for v in region.operands)


def _there_and_back(graph: TileGraph, value: str) -> str:
    """Return the source of two transposes that cancel; else empty."""
    outer = graph.producer(value) if value else None
    inner = graph.producer(outer.operands[0]) if outer and _perm(outer) else None
    first, second = _perm(inner), _perm(outer)
    undone = inner and first and tuple(first[a] for a in second) == tuple(range(len(first)))
    return inner.operands[0] if inner and undone else ""


def _dropped(graph: TileGraph, region: Region, values: Sequence[str]) -> list[Region]:
    """Return transposes without readers once ``region`` no longer reads ``values``."""
    sources = {r.id: r for v in values if v and (r := graph.producer(v)) and _perm(r)}
    return [r for r in sources.values() if only_read_by(graph, r.results[0], region)]


@dataclass
class _Sunk:
    """One operator rewritten to run before its transposes."""

    graph: TileGraph
    region: Region
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    def node(self, op: str, inputs: Sequence[str], result: str, **attrs: Attr) -> Region:
        node = Node(op, tuple(inputs), (result,), attrs, "", self.region.node.name)
        return Region(f"{self.region.id}:{result}", op, node.inputs, node.outputs, (node,))

    def same(self, inputs: Sequence[str], **attrs: Attr) -> tuple[Region, ...] | None:
        """Return the operator with other operands, and its result transposed to channels last."""
        result = self.region.results[0]
        spec = self.graph.spec(result)
        if spec.shape is None or len(spec.shape) != len(_FIRST):
            return None
        first = f"{result}_first"
        self.specs[first] = TensorSpec(spec.dtype, tuple(spec.shape[a] for a in _FIRST))
        kept = {**self.region.node.attrs, **attrs}
        made = self.node(self.region.op, inputs, first, **kept)
        return (made, self.node("Transpose", (first,), result, perm=_LAST))

    def numbers(self, name: str, values: Sequence[int]) -> str:
        array = np.array(values, np.int64)
        name = f"{self.region.results[0]}_{name}"
        self.weights[name] = Weight(name, DType.I64, array.shape, lambda: array)
        return name

    def given(self, place: int, name: str) -> tuple[int, ...] | None:
        """Return integers from an attribute or a constant operand; None if they are neither."""
        found = attribute(self.region, name, None)
        if isinstance(found, tuple):
            return tuple(int(v) for v in found)
        value = self.region.operands[place] if place < len(self.region.operands) else ""
        weight = self.graph.weight(value) if value else None
        return None if weight is None else tuple(int(v) for v in weight.load().reshape(-1))


def _by_element(sunk: _Sunk) -> tuple[Region, ...] | None:
    graph, region = sunk.graph, sunk.region
    if read_chain(graph, region) is None:
        return None
    before: list[Region] = []
    inputs: list[str] = []
    for value in region.operands:
        found = _channels_first(graph, value) or _as_it_is(graph, value) or _constant(sunk, value)
        if not found and _small(graph, value):
            found = f"{region.results[0]}_first{len(inputs)}"
            spec = graph.spec(value)
            shape = tuple((spec.shape or ())[a] for a in _FIRST)
            sunk.specs[found] = TensorSpec(spec.dtype, shape)
            before.append(sunk.node("Transpose", (value,), found, perm=_FIRST))
        if value and not found:
            return None
        inputs.append(found)
    made = sunk.same(inputs)
    return made and (*before, *made)


def _as_it_is(graph: TileGraph, value: str) -> str:
    """Return the value if it has one element."""
    shape = graph.spec(value).shape if value else None
    return value if shape is not None and all(d == 1 for d in shape) else ""


def _constant(sunk: _Sunk, value: str) -> str:
    """Return a constant over channels last, transposed to channels first."""
    weight = sunk.graph.weight(value) if value else None
    if weight is None or len(weight.shape) > len(_FIRST):
        return ""
    wide = (*(1,) * (len(_FIRST) - len(weight.shape)), *weight.shape)

    def load() -> Array:
        return np.ascontiguousarray(weight.load().reshape(wide).transpose(_FIRST))

    name = f"{weight.name}_first"
    shape = tuple(wide[a] for a in _FIRST)
    sunk.weights[name] = Weight(name, weight.dtype, shape, load)
    return name


def _small(graph: TileGraph, value: str) -> bool:
    """Return whether a value has one number per channel (and image)."""
    shape = graph.spec(value).shape if value else None
    return shape is not None and len(shape) == len(_FIRST) and shape[1] == shape[2] == 1


def _concat(sunk: _Sunk) -> tuple[Region, ...] | None:
    inputs = [_channels_first(sunk.graph, v) for v in sunk.region.operands]
    axis = int(str(attribute(sunk.region, "axis", 0)))
    return sunk.same(inputs, axis=_LAST[axis]) if all(inputs) else None


def _pad(sunk: _Sunk) -> tuple[Region, ...] | None:
    source = _channels_first(sunk.graph, sunk.region.operands[0])
    pads = sunk.given(1, "pads")
    if not source or pads is None or len(pads) != 2 * len(_FIRST) or len(sunk.region.operands) < 2:
        return None
    if sunk.region.operands[3:4] not in ((), ("",)):
        return None
    transposed = sunk.numbers("pads", [pads[4 * end + a] for end in (0, 1) for a in _FIRST])
    return sunk.same((source, transposed, *sunk.region.operands[2:3]))


def _reduce(sunk: _Sunk) -> tuple[Region, ...] | None:
    region = sunk.region
    source, axes = _channels_first(sunk.graph, region.operands[0]), sunk.given(1, "axes")
    if not source or not axes:
        return None
    places = {a % len(_LAST) for a in axes}
    transposed = sorted(_LAST[a] for a in places)
    attrs: dict[str, Attr] = dict(region.node.attrs)
    inputs = [source]
    if "axes" in attrs:
        attrs["axes"] = tuple(transposed)
    else:
        inputs.append(sunk.numbers("axes", transposed))
    if attribute(region, "keepdims", 1):
        return sunk.same(inputs, **attrs)
    left = [_LAST[a] for a in range(len(_LAST)) if a not in places]
    if left != sorted(left):
        return None
    return (sunk.node(region.op, inputs, region.results[0], **attrs),)
