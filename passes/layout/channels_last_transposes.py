"""Remove the transposes around operators with channels last.

ONNX defines operators with channels first, so converters of channels-last models put transposes
around them.  Rules here put transposes around convolutions of integers, which need channels last.
Transposes are sunk through operators until they meet their inverse:

add(Transpose(x), c)                  ->  Transpose(add(x, c'))
Concat(Transpose(x), Transpose(y))    ->  Transpose(Concat(x, y)) over another axis
Slice, Split(Transpose(x))            ->  Transpose(Slice, Split(x)) along other axes
Pad(Transpose(x))                     ->  Transpose(Pad(x)) of other axes
ReduceMean(Transpose(x))              ->  ReduceMean(x) over other axes, transposed if axes stay
GlobalAveragePool(Transpose(x))       ->  Transpose(ReduceMean(x)), if x has channels last
MaxPool(Transpose(x))                 ->  Transpose(FusedPool(x)), if x has channels last
Resize(Transpose(x))                  ->  Transpose(Resize(x)) along other axes, for integers
Transpose(QuantizeLinear(x))          ->  QuantizeLinear(Transpose(x)), if to channels last
silu(Transpose(x))                    ->  Transpose(silu(x))
op(Transpose(Transpose(x)))           ->  op(x)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from tracea_graph.ir import Array, Attr, DType, Node, TensorSpec, Weight
from tracea_graph.ops.chain import FULL
from tracea_graph.passes.convolution.pool import windowed_pool
from tracea_graph.passes.pointwise.read_elementwise import read_chain
from tracea_graph.passes.region_helpers import attribute, fused_region, only_read_by
from tracea_graph.reason_codes import other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["TRANSPOSED", "CancelTransposes", "QuantizeLast", "SinkTransposes"]

TRANSPOSED = ("_first", "_last")
"""Suffixes of the names of values that are stored with channels first or last."""
_LAST = (0, 2, 3, 1)
_SEVERAL_RESULTS = ("DynamicQuantizeLinear", "Split")
_REDUCTIONS = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum")


class SinkTransposes:
    """Apply an operator before the transposes to channels last of its operands, not after them.

    Operands that are small or constant need not be transposed.  Between convolutions of integers,
    transposes to channels first are sunk instead.
    """

    name = "sink-transposes"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        several = len(region.results) != 1 and region.op not in _SEVERAL_RESULTS
        if several or region.op == "Transpose":
            return
        perm = _reads_channels_last(graph, region)
        if not perm:
            return
        sunk = _Sunk(graph, region, perm)
        new = (_activation if region.fused else _WAYS.get(region.op, _by_element))(sunk)
        if new is None:
            why = unsuited_reason("its other operands or axes cannot be transposed")
            yield Miss(self.name, region.id, why)
            return
        old = (*_dropped(graph, region, region.operands), region)
        yield Proposal(self.name, old, new, sunk.specs, sunk.weights, step=True)


class QuantizeLast:
    """Transpose a float32 value to channels last before it is quantized, not after.

    Both are then one pass over the value.
    """

    name = "quantize-last"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Transpose":
            return
        if _perm(region) != _last(len(_perm(region))):
            yield Miss(
                self.name, region.id, unsuited_reason("it does not transpose to channels last")
            )
            return
        quantize = graph.producer(region.operands[0])
        if quantize is None or not _quantizes_all_alike(graph, quantize):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason("its input is not quantized with one constant scale"),
            )
            return
        if not only_read_by(graph, quantize.results[0], region):
            yield Miss(self.name, region.id, other_readers_reason(quantize.results[0]))
            return
        source, result = quantize.operands[0], region.results[0]
        name = f"{result}_numbers"
        shape = graph.spec(result).shape
        made = Node(
            "Transpose", (source,), (name,), {"perm": _perm(region)}, "", region.node.label
        )
        turned = Region(f"{source}:{name}", "Transpose", made.inputs, made.outputs, (made,))
        outputs = (result, *quantize.results[1:])
        node = dataclasses.replace(
            quantize.node, inputs=(name, *quantize.operands[1:]), outputs=outputs, source=None
        )
        last = Region(f"{quantize.id}:{result}", node.op, node.inputs, outputs, (node,))
        specs = {name: TensorSpec(graph.spec(source).dtype, shape)}
        yield Proposal(self.name, (quantize, region), (turned, last), specs, step=True)


def _quantizes_all_alike(graph: TileGraph, region: Region) -> bool:
    """Return whether a region quantizes all elements with one scale."""
    if region.op != "QuantizeLinear":
        return region.op == "DynamicQuantizeLinear"
    weight = graph.weight(region.operands[1])
    return weight is not None and weight.count == 1


class CancelTransposes:
    """Let readers of a value that was transposed twice read the original value."""

    name = "cancel-transposes"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Transpose":
            return
        transposed = region.results[0]
        if not (value := _there_and_back(graph, transposed)):
            yield Miss(self.name, region.id, unsuited_reason("it undoes no other transpose"))
            return
        readers = graph.in_order(graph.readers(region))
        if not readers or graph.is_output(transposed):
            yield Miss(self.name, region.id, unsuited_reason(f"{transposed!r} is an output"))
            return
        if any(transposed in r.captures for r in readers):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(f"the body of a control-flow operator reads {transposed!r}"),
            )
            return
        old = (*_dropped(graph, region, region.operands), region, *readers)
        yield Proposal(
            self.name, old, tuple(_reading(r, transposed, value) for r in readers), step=True
        )


def _reading(region: Region, old: str, new: str) -> Region:
    """Return the operator with one operand replaced."""
    operands = tuple(new if v == old else v for v in region.operands)
    if region.fused:
        return dataclasses.replace(region, operands=operands)
    node = dataclasses.replace(region.node, inputs=operands, source=None)
    return dataclasses.replace(region, operands=operands, nodes=(node,))


def _perm(region: Region | None) -> tuple[int, ...]:
    """Return the permutation of a Transpose; empty for anything else."""
    if region is None or region.fused or region.op != "Transpose":
        return ()
    perm = attribute(region, "perm", ())
    return tuple(perm) if isinstance(perm, tuple) else ()


def _last(rank: int) -> tuple[int, ...]:
    """Return the permutation to channels last."""
    return (0, *range(2, rank), 1)


def _first(rank: int) -> tuple[int, ...]:
    """Return the permutation to channels first."""
    return (0, rank - 1, *range(1, rank - 1))


def _source(graph: TileGraph, value: str, perm: tuple[int, ...]) -> str:
    """Return the value whose transpose by ``perm`` is ``value``; empty if there is none."""
    source = graph.producer(value) if value else None
    return source.operands[0] if source and _perm(source) == perm else ""


def _reads_channels_last(graph: TileGraph, region: Region) -> tuple[int, ...]:
    """Return the permutation of an operand's Transpose that the operator may move before.

    Empty if there is none.
    """
    for value in region.operands:
        source = graph.producer(value) if value else None
        perm = _perm(source)
        if perm == _LAST:
            return perm
        back = source is not None and len(perm) in (3, 4) and perm == _first(len(perm))
        if source is not None and back and _of_integers(graph, source.operands[0]):
            return perm
    return ()


_MOST_STEPS = 48
"""Number of operators searched between a convolution of integers and a transpose."""


def _of_integers(graph: TileGraph, value: str) -> bool:
    """Return whether a value with channels last comes from a convolution of integers, directly or
    through other operators of the same rank."""
    todo, seen = [value], set[str]()
    while todo and len(seen) < _MOST_STEPS:
        region = graph.producer(todo.pop())
        if region is None or region.id in seen:
            continue
        if region.op == "FusedConvInteger":
            return True
        seen.add(region.id)
        rank = graph.spec(region.results[0]).rank
        todo += [v for v in region.operands if v and graph.spec(v).rank == rank]
    return False


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
    """One operator, rewritten to come before the transposes of its operands, all by ``perm``."""

    graph: TileGraph
    region: Region
    perm: tuple[int, ...]
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return len(self.perm)

    @property
    def inverse(self) -> tuple[int, ...]:
        return tuple(self.perm.index(a) for a in range(self.rank))

    @property
    def spatial(self) -> tuple[int, ...]:
        """The spatial axes before the transpose."""
        return tuple(range(1, self.rank - 1) if self.perm == _LAST else range(2, self.rank))

    def node(self, op: str, inputs: Sequence[str], result: str, **attrs: Attr) -> Region:
        node = Node(op, tuple(inputs), (result,), attrs, "", self.region.node.label)
        return Region(f"{self.region.id}:{result}", op, node.inputs, node.outputs, (node,))

    def transposed(self) -> tuple[str, Region] | None:
        """Return the Transpose that writes the operator's result, and the name of its operand.

        None if the result's rank is not that of the transposed operands.
        """
        result = self.region.results[0]
        spec = self.graph.spec(result)
        if spec.shape is None or len(spec.shape) != self.rank:
            return None
        first = f"{result}{TRANSPOSED[self.perm != _LAST]}"
        self.specs[first] = TensorSpec(spec.dtype, tuple(spec.shape[a] for a in self.inverse))
        return first, self.node("Transpose", (first,), result, perm=self.perm)

    def same(self, inputs: Sequence[str], **attrs: Attr) -> tuple[Region, ...] | None:
        """Return the operator applied to ``inputs``, and the Transpose of its result."""
        return self.other(self.region.op, inputs, **{**self.region.node.attrs, **attrs})

    def other(self, op: str, inputs: Sequence[str], /, **attrs: Attr) -> tuple[Region, ...] | None:
        """Return an operator ``op`` that replaces this one, and the Transpose of its result."""
        back = self.transposed()
        return back and (self.node(op, inputs, back[0], **attrs), back[1])

    def numbers(self, name: str, values: Sequence[int]) -> str:
        array = np.array(values, np.int64)
        name = f"{self.region.results[0]}_{name}"
        self.weights[name] = Weight(name, DType.I64, array.shape, lambda: array)
        return name

    def given(self, place: int, name: str) -> tuple[int, ...] | None:
        """Return integers from the attribute ``name`` or a constant operand; None without them."""
        found = attribute(self.region, name, None)
        if isinstance(found, tuple):
            return tuple(int(v) for v in found)
        value = self.region.operands[place] if place < len(self.region.operands) else ""
        weight = self.graph.weight(value) if value else None
        return None if weight is None else tuple(int(v) for v in weight.load().reshape(-1))


Way = Callable[[_Sunk], "tuple[Region, ...] | None"]


def _dynamic_quantize(sunk: _Sunk) -> tuple[Region, ...] | None:
    """Quantize before the transpose, which does not change the range of values."""
    source, back = _source(sunk.graph, sunk.region.operands[0], sunk.perm), sunk.transposed()
    if not source or back is None:
        return None
    node = dataclasses.replace(
        sunk.region.node, inputs=(source,), outputs=(back[0], *sunk.region.results[1:]),
        source=None,
    )  # fmt: skip
    name = f"{sunk.region.id}:{back[0]}"
    return (Region(name, node.op, node.inputs, node.outputs, (node,)), back[1])


def _by_element(sunk: _Sunk) -> tuple[Region, ...] | None:
    graph, region = sunk.graph, sunk.region
    if read_chain(graph, region) is None:
        return None
    before: list[Region] = []
    inputs: list[str] = []
    for value in region.operands:
        found = (
            _source(graph, value, sunk.perm) or _as_it_is(graph, value) or _constant(sunk, value)
        )
        if not found and _small(sunk, value):
            found = f"{region.results[0]}_first{len(inputs)}"
            spec = graph.spec(value)
            shape = tuple((spec.shape or ())[a] for a in sunk.inverse)
            sunk.specs[found] = TensorSpec(spec.dtype, shape)
            before.append(sunk.node("Transpose", (value,), found, perm=sunk.inverse))
        if value and not found:
            return None
        inputs.append(found)
    made = sunk.same(inputs)
    return made and (*before, *made)


def _as_it_is(graph: TileGraph, value: str) -> str:
    """Return the value if it has one element, else ""."""
    shape = graph.spec(value).shape if value else None
    return value if shape is not None and all(d == 1 for d in shape) else ""


def _constant(sunk: _Sunk, value: str) -> str:
    """Return a constant in the axis order that operands have before their transpose."""
    weight = sunk.graph.weight(value) if value else None
    if weight is None or len(weight.shape) > sunk.rank:
        return ""
    wide = (*(1,) * (sunk.rank - len(weight.shape)), *weight.shape)

    def load() -> Array:
        return np.ascontiguousarray(weight.load().reshape(wide).transpose(sunk.inverse))

    name = f"{weight.name}_first" if sunk.perm == _LAST else f"{weight.name}_last"
    shape = tuple(wide[a] for a in sunk.inverse)
    sunk.weights[name] = Weight(name, weight.dtype, shape, load)
    return name


def _small(sunk: _Sunk, value: str) -> bool:
    """Return whether a value has one number per channel (and image)."""
    shape = sunk.graph.spec(value).shape if value else None
    return (
        shape is not None and len(shape) == sunk.rank and all(shape[a] == 1 for a in sunk.spatial)
    )


def _activation(sunk: _Sunk) -> tuple[Region, ...] | None:
    """Move a chain that reads one full operand."""
    region, back, chain = sunk.region, sunk.transposed(), read_chain(sunk.graph, sunk.region)
    if chain is None or chain[0].operands != (FULL,) or back is None:
        return None
    source = _source(sunk.graph, region.operands[0], sunk.perm)
    name = f"{region.id}:{back[0]}"
    new = dataclasses.replace(region, id=name, operands=(source,), results=(back[0],))
    return new, back[1]


def _concat(sunk: _Sunk) -> tuple[Region, ...] | None:
    inputs = [_source(sunk.graph, v, sunk.perm) for v in sunk.region.operands]
    axis = int(str(attribute(sunk.region, "axis", 0)))
    return sunk.same(inputs, axis=sunk.perm[axis]) if all(inputs) else None


def _pad(sunk: _Sunk) -> tuple[Region, ...] | None:
    source, rank = _source(sunk.graph, sunk.region.operands[0], sunk.perm), sunk.rank
    pads = sunk.given(1, "pads")
    if not source or pads is None or len(pads) != 2 * rank or len(sunk.region.operands) < 2:
        return None
    if sunk.region.operands[3:4] not in ((), ("",)):
        return None
    transposed = [pads[rank * end + a] for end in (0, 1) for a in sunk.inverse]
    return sunk.same((source, sunk.numbers("pads", transposed), *sunk.region.operands[2:3]))


def _slice(sunk: _Sunk) -> tuple[Region, ...] | None:
    region, graph = sunk.region, sunk.graph
    source = _source(graph, region.operands[0], sunk.perm)
    starts, axes = sunk.given(1, "starts"), sunk.given(3, "axes")
    if not source or starts is None or len(region.operands) < 3:
        return None
    places = axes if axes is not None else tuple(range(len(starts)))
    moved = sunk.numbers("axes", [sunk.perm[a % sunk.rank] for a in places])
    return sunk.same((source, *region.operands[1:3], moved, *region.operands[4:5]))


def _split(sunk: _Sunk) -> tuple[Region, ...] | None:
    """Split before the transpose, and transpose each part."""
    graph, region = sunk.graph, sunk.region
    source = _source(graph, region.operands[0], sunk.perm)
    specs = [graph.spec(v) for v in region.results]
    if not source or any(s.rank != sunk.rank for s in specs):
        return None
    end = "first" if sunk.perm == _LAST else "last"
    parts = tuple(f"{v}_{end}" for v in region.results)
    for part, spec in zip(parts, specs, strict=True):
        shape = spec.shape or ()
        sunk.specs[part] = TensorSpec(spec.dtype, tuple(shape[a] for a in sunk.inverse))
    axis = int(str(attribute(region, "axis", 0))) % sunk.rank
    node = dataclasses.replace(
        region.node, inputs=(source, *region.operands[1:]), outputs=parts, source=None,
        attrs={**region.node.attrs, "axis": sunk.perm[axis]},
    )  # fmt: skip
    new = Region(f"{region.id}:{parts[0]}", node.op, node.inputs, parts, (node,))
    back = (
        sunk.node("Transpose", (part,), v, perm=sunk.perm)
        for part, v in zip(parts, region.results, strict=True)
    )
    return new, *back


def _reduce(sunk: _Sunk) -> tuple[Region, ...] | None:
    region = sunk.region
    source, axes = _source(sunk.graph, region.operands[0], sunk.perm), sunk.given(1, "axes")
    if not source or not axes:
        return None
    places = {a % sunk.rank for a in axes}
    transposed = sorted(sunk.perm[a] for a in places)
    attrs: dict[str, Attr] = dict(region.node.attrs)
    inputs = [source]
    if "axes" in attrs:
        attrs["axes"] = tuple(transposed)
    else:
        inputs.append(sunk.numbers("axes", transposed))
    if attribute(region, "keepdims", 1):
        return sunk.same(inputs, **attrs)
    left = [sunk.perm[a] for a in range(sunk.rank) if a not in places]
    if left != sorted(left):
        return None
    return (sunk.node(region.op, inputs, region.results[0], **attrs),)


def _global_average(sunk: _Sunk) -> tuple[Region, ...] | None:
    """Write a global average as a mean over the middle axes."""
    source = _source(sunk.graph, sunk.region.operands[0], sunk.perm)
    axes = tuple(range(1, sunk.rank - 1))
    if sunk.perm == _LAST or not source:
        return None
    if sunk.graph.opset < _AXES_SINCE:
        return sunk.other("ReduceMean", (source,), axes=axes, keepdims=1)
    return sunk.other("ReduceMean", (source, sunk.numbers("axes", axes)), keepdims=1)


_AXES_SINCE = 18
"""First opset whose ReduceMean takes its axes as an operand."""


def _max_pool(sunk: _Sunk) -> tuple[Region, ...] | None:
    """Pool integers with channels last."""
    graph, region = sunk.graph, sunk.region
    source = _source(graph, region.operands[0], sunk.perm)
    shape = graph.spec(region.operands[0]).shape
    if sunk.perm == _LAST or not source or shape is None:
        return None
    if graph.spec(source).dtype not in (DType.U8, DType.I8) or graph.opset < _BYTES_SINCE:
        return None
    params, back = windowed_pool(region, shape[2:], graph.opset), sunk.transposed()
    if isinstance(params, str) or params.window is None or back is None:
        return None
    last = dataclasses.replace(params, channels_last=True)
    return (fused_region("sink-transposes", last, (source,), (back[0],), [region]), back[1])


_BYTES_SINCE = 12
"""First opset whose MaxPool takes 8-bit integers."""


def _resize(sunk: _Sunk) -> tuple[Region, ...] | None:
    """Repeat integers with channels last, by constant scales."""
    graph, region = sunk.graph, sunk.region
    source = _source(graph, region.operands[0], sunk.perm)
    weight = graph.weight(region.operands[2]) if len(region.operands) == 3 else None
    if sunk.perm == _LAST or not source or weight is None or weight.count != sunk.rank:
        return None
    if graph.spec(source).dtype not in (DType.U8, DType.I8) or region.node.attrs.get("axes"):
        return None
    scales = np.asarray(weight.load(), np.float32)[list(sunk.inverse)]
    name = f"{region.results[0]}_scales"
    sunk.weights[name] = Weight(name, DType.F32, scales.shape, lambda: scales)
    return sunk.same((source, "", name))


def _flatten(sunk: _Sunk) -> tuple[Region, ...] | None:
    """Flatten values with one number per channel, whose order is equal in both layouts."""
    graph, region = sunk.graph, sunk.region
    source = _source(graph, region.operands[0], sunk.perm)
    shape, flat = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    if not source or shape is None or flat != shape[:2] or sunk.perm == _LAST:
        return None
    if any(shape[a] != 1 for a in sunk.spatial):
        return None
    return (sunk.node("Flatten", (source,), region.results[0], axis=1),)


_WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "DynamicQuantizeLinear": _dynamic_quantize, "Concat": _concat, "Pad": _pad,
        "Slice": _slice, "Split": _split,
        **dict.fromkeys(_REDUCTIONS, _reduce),
        "GlobalAveragePool": _global_average, "MaxPool": _max_pool,
        "Resize": _resize,
        **dict.fromkeys(("Flatten", "Reshape", "Squeeze"), _flatten),
    }
)  # fmt: skip
