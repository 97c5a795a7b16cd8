"""Move quantizing and dequantizing past operators that only select or rearrange elements.

To move integers instead of float32 values:
MaxPool(DequantizeLinear(q))         -> DequantizeLinear(MaxPool(q))
QuantizeLinear(MaxPool(x))           -> MaxPool(QuantizeLinear(x))
QuantizeLinear(Concat(x, y))         -> Concat(QuantizeLinear(x), QuantizeLinear(y))
Slice(DequantizeLinear(q))           -> DequantizeLinear(Slice(q)), if all readers quantize the
                                        result with equal scale again; also for Split and Resize
QuantizeLinear(DequantizeLinear(q))  -> q, if scales and zero points are equal; also with views
                                        such as Reshape and Transpose between the two

To put the DequantizeLinear next to the product that will absorb it:
DequantizeLinear(Transpose(q))       -> Transpose(DequantizeLinear(q))

To dequantize only the rows that are looked up:
Gather(DequantizeLinear(table), ids) -> DequantizeLinear(Gather(table, ids))

To give each reader a DequantizeLinear that fuses into it:
f(d), g(d), d = DequantizeLinear(q)  -> f(d), g(d'), d' = DequantizeLinear(q)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.passes.pointwise.read_elementwise import read_chain
from tracea_graph.passes.quantized.rescale import dequantized_sides
from tracea_graph.passes.quantized.scale_checks import ordinary
from tracea_graph.passes.region_helpers import only_read_by, operand_producer
from tracea_graph.reason_codes import other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Match, Miss, Proposal, Rewrite, Rule
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.region import region_of

__all__ = [
    "DEQUANTIZE_EACH", "QUANTIZE_FIRST", "QUANTIZE_PARTS", "CancelQuantize", "DequantizeFirst",
    "GatherFirst", "PoolFirst", "SelectFirst",
]  # fmt: skip

_SCALES = unsuited_reason("it has several scales, or one that is not constant")
_VIEWS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")


class DequantizeFirst:
    """Move a DequantizeLinear with one scale before the view whose result it reads.

    It stays where a product or a convolution of integers will read the view's result instead.
    """

    name = "dequantize-first"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "DequantizeLinear":
            return
        view = graph.producer(region.operands[0])
        if view is None or view.op not in _VIEWS or view.fused or len(view.results) != 1:
            yield Miss(
                self.name, region.id, unsuited_reason("its input does not come from a view")
            )
            return
        if not _one_scale(graph, region):
            yield Miss(self.name, region.id, _SCALES)
            return
        source, result = view.operands[0], region.results[0]
        if _becomes_operand_of_integers(graph, region):
            why = unsuited_reason("a product or convolution reads its integers")
            yield Miss(self.name, region.id, why)
            return
        if graph.spec(source).shape is None or graph.weight(source) is not None:
            why = unsuited_reason(f"{source!r} is constant, or its rank is not known")
            yield Miss(self.name, region.id, why)
            return
        if not only_read_by(graph, view.results[0], region):
            yield Miss(self.name, region.id, other_readers_reason(view.results[0]))
            return
        name = f"{result}_first"
        new = (
            _made(region, (source, *region.operands[1:]), name),
            _made(view, (name, *view.operands[1:]), result),
        )
        specs = {name: TensorSpec(graph.spec(result).dtype, graph.spec(source).shape)}
        yield Proposal(self.name, (view, region), new, specs, step=True)


def _becomes_operand_of_integers(graph: TileGraph, region: Region) -> bool:
    """Whether a product or convolution that reads this DequantizeLinear also reads a dequantized
    constant, so that it can multiply integers."""
    for reader in (use.region for use in graph.uses(region.results[0])):
        if reader.op in ("Conv", "Gemm", "MatMul") and not reader.fused:
            sides = dequantized_sides(graph, reader)
            if sides is not None and sides[0] is region:
                return True
    return False


class GatherFirst:
    """Gather integers of a constant table with one scale, and dequantize the gathered rows."""

    name = "gather-first"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Gather" or region.fused:
            return
        table = operand_producer(graph, region.operands[0], "DequantizeLinear")
        if table is None:
            yield Miss(self.name, region.id, unsuited_reason("its table is not dequantized"))
            return
        if not _one_scale(graph, table):
            yield Miss(self.name, region.id, _SCALES)
            return
        stored = graph.weight(table.operands[0])
        if stored is None or graph.spec(region.results[0]).shape is None:
            why = unsuited_reason(
                f"{table.operands[0]!r} is not constant, or the result's rank is not known"
            )
            yield Miss(self.name, region.id, why)
            return
        result, alone = region.results[0], only_read_by(graph, table.results[0], region)
        name = f"{result}_integers"
        new = (
            _made(region, (stored.name, *region.operands[1:]), name),
            _made(table, (name, *table.operands[1:]), result),
        )
        specs = {name: TensorSpec(stored.dtype, graph.spec(result).shape)}
        old = (table, region) if alone else (region,)
        yield Proposal(self.name, old, new, specs, step=True)


class PoolFirst:
    """Apply a maximum pool to integers, then dequantize its result.

    The maximum does not change, because the scale is positive.
    """

    name = "pool-first"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "MaxPool" or region.fused or len(region.results) != 1:
            return
        source = operand_producer(graph, region.operands[0], "DequantizeLinear")
        if source is None or graph.opset < _BYTES_SINCE:
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(
                    "its input is not dequantized, or the opset has no MaxPool of integers"
                ),
            )
            return
        scale = graph.weight(source.operands[1])
        if not _one_scale(graph, source) or scale is None or not ordinary(scale):
            yield Miss(self.name, region.id, _SCALES)
            return
        stored, result = graph.spec(source.operands[0]), region.results[0]
        if stored.dtype not in (DType.U8, DType.I8) or graph.spec(result).shape is None:
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(
                    "its input is not dequantized from 8 bits, or its rank is not known"
                ),
            )
            return
        name = f"{result}_integers"
        new = (
            _made(region, (source.operands[0], *region.operands[1:]), name),
            _made(source, (name, *source.operands[1:]), result),
        )
        specs = {name: TensorSpec(stored.dtype, graph.spec(result).shape)}
        alone = only_read_by(graph, source.results[0], region)
        old = (source, region) if alone else (region,)
        yield Proposal(self.name, old, new, specs, step=True)


class SelectFirst:
    """Select from integers and then dequantize, instead of the other way round.

    This requires that all readers of the selection quantize it with the scale and zero point that
    the integers had.
    """

    name = "select-first"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in _SELECTIONS or region.fused:
            return
        source = operand_producer(graph, region.operands[0], "DequantizeLinear")
        if source is None or not _one_scale(graph, source):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason("its input is not dequantized with one constant scale"),
            )
            return
        stored, specs = graph.spec(source.operands[0]), [graph.spec(v) for v in region.results]
        if any(s.shape is None for s in specs) or stored.dtype not in (DType.U8, DType.I8):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(
                    "its input is not dequantized from 8 bits, or its rank is not known"
                ),
            )
            return
        if region.op == "Resize" and not _nearest(graph, region):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason("it is a Resize that may interpolate or extrapolate"),
            )
            return
        readers = graph.readers(region)
        if (
            any(map(graph.is_output, region.results))
            or not readers
            or not all(r.op == "QuantizeLinear" and _alike(graph, source, r) for r in readers)
        ):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(
                    "a result is a graph output, or not quantized again with the input's scale"
                ),
            )
            return
        names = tuple(v and f"{v}_integers" for v in region.results)
        node = dataclasses.replace(
            region.node,
            inputs=(source.operands[0], *region.operands[1:]),
            outputs=names,
            source=None,
        )
        selected = Region(f"{region.id}.{names[0]}", node.op, node.inputs, names, (node,))
        back = [_made(source, (n, *source.operands[1:]), v)
                for n, v in zip(names, region.results, strict=True) if v]  # fmt: skip
        made = {n: TensorSpec(stored.dtype, s.shape)
                for n, s in zip(names, specs, strict=True) if n}  # fmt: skip
        alone = only_read_by(graph, source.results[0], region)
        old = (source, region) if alone else (region,)
        yield Proposal(self.name, old, (selected, *back), made, step=True)


_SELECTIONS = ("Resize", "Slice", "Split")
"""Operators whose results are elements of their first operand."""


def _nearest(graph: TileGraph, region: Region) -> bool:
    return region.node.attrs.get("mode", "nearest") in ("nearest", b"nearest") and (
        graph.opset >= _RESIZED_SINCE
        and region.node.attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize"
    )


_RESIZED_SINCE = 11
"""First opset whose Resize has its coordinate modes as attributes."""


def _quantized_parts(op: Any, x: Any) -> Any:
    return op.QuantizeLinear(op.Concat(x, ..., label="concat"), ...)


def _parts_check(m: Match) -> str | None:
    graph, concat = m.graph, m.labels["concat"]
    scale = graph.weight(m.root.operands[1])
    if not _one_scale(graph, m.root) or scale is None or not ordinary(scale):
        return _SCALES
    if graph.spec(m.root.results[0]).dtype not in (DType.U8, DType.I8):
        return unsuited_reason("it does not quantize to 8-bit integers")
    if not any(operand_producer(graph, v, "DequantizeLinear") for v in concat.operands):
        return unsuited_reason("no operand of the concatenation is dequantized")
    if any(graph.weight(v) for v in concat.operands):
        return unsuited_reason("an operand of the concatenation is constant")
    return None


def _quantize_parts(m: Match) -> Rewrite:
    concat, quantized = m.labels["concat"], m.root.results[0]
    parts = {v: f"{quantized}_part_{i}" for i, v in enumerate(dict.fromkeys(concat.operands))}
    dtype = m.graph.spec(quantized).dtype
    new = [_made(m.root, (v, *m.root.operands[1:]), name) for v, name in parts.items()]
    whole = _made(concat, tuple(parts[v] for v in concat.operands), quantized)
    specs = {name: TensorSpec(dtype, m.graph.spec(v).shape) for v, name in parts.items()}
    return Rewrite((*new, whole), specs=specs, step=True)


QUANTIZE_PARTS = Rule("quantize-parts", (_quantized_parts,), _quantize_parts, _parts_check)
"""Quantize the operands of a concatenation instead of its result."""


def _quantized_pool(op: Any, x: Any) -> Any:
    return op.QuantizeLinear(op.MaxPool(x, label="pool"), ...)


def _quantize_first_check(m: Match) -> str | None:
    graph, scale = m.graph, m.graph.weight(m.root.operands[1])
    if not _one_scale(graph, m.root) or scale is None or not ordinary(scale):
        return _SCALES
    if len(m.labels["pool"].results) != 1 or graph.opset < _BYTES_SINCE:
        return unsuited_reason(
            "the pool has an output of indices, or the opset has no MaxPool of integers"
        )
    bytes_of_rank = graph.spec(m.root.results[0]).dtype in (DType.U8, DType.I8)
    if not bytes_of_rank or m.spec("x").shape is None:
        return unsuited_reason(
            "it does not quantize to 8-bit integers, or the rank of x is not known"
        )
    return None


def _quantize_first(m: Match) -> Rewrite:
    pool, quantized = m.labels["pool"], m.root.results[0]
    name = f"{quantized}_first"
    new = (
        _made(m.root, (m.values["x"], *m.root.operands[1:]), name),
        _made(pool, (name, *pool.operands[1:]), quantized),
    )
    specs = {name: TensorSpec(m.graph.spec(quantized).dtype, m.spec("x").shape)}
    return Rewrite(new, specs=specs, step=True)


QUANTIZE_FIRST = Rule("quantize-first", (_quantized_pool,), _quantize_first, _quantize_first_check)
"""Quantize before a MaxPool instead of after it: a positive scale keeps the order of numbers."""

_BYTES_SINCE = 12
"""First opset whose MaxPool takes 8-bit integers."""


class CancelQuantize:
    """Remove a dequantization that is followed by an equal quantization.

    The readers of its result read the original integers.
    """

    name = "cancel-quantize"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "QuantizeLinear" or region.fused:
            return
        views = _private_views(graph, region)
        first = views[0].operands[0] if views else region.operands[0]
        source = operand_producer(graph, first, "DequantizeLinear")
        if source is None or not _alike(graph, source, region):
            yield Miss(
                self.name, region.id, unsuited_reason("it does not undo a DequantizeLinear")
            )
            return
        if views:
            yield self._of_views(graph, source, views, region)
            return
        quantized, value = region.results[0], source.operands[0]
        readers = graph.in_order(graph.readers(region))
        if not readers or graph.is_output(quantized):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(f"{quantized!r} is a graph output or has no readers"),
            )
            return
        if any(r.fused or quantized in r.captures for r in readers):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(f"a reader of {quantized!r} is fused or has a body"),
            )
            return
        alone = only_read_by(graph, source.results[0], region)
        old = (*([source] if alone else []), region, *readers)
        new = tuple(
            _renamed(r, tuple(value if v == quantized else v for v in r.operands)) for r in readers
        )
        yield Proposal(self.name, old, new, step=True)

    def _of_views(
        self, graph: TileGraph, source: Region, views: list[Region], region: Region
    ) -> Proposal:
        """Propose that ``views`` move the integers that ``source`` dequantizes."""
        value, stored = source.operands[0], graph.spec(source.operands[0])
        new, specs = list[Region](), dict[str, TensorSpec]()
        for view in views:
            last = view is views[-1]
            name = region.results[0] if last else f"{view.results[0]}_integers"
            new.append(_made(view, (value, *view.operands[1:]), name))
            specs[name] = TensorSpec(stored.dtype, graph.spec(view.results[0]).shape)
            value = name
        reader = views[0]
        alone = only_read_by(graph, source.results[0], reader)
        old = (*([source] if alone else []), *views, region)
        return Proposal(self.name, old, tuple(new), specs, step=True)


def _private_views(graph: TileGraph, region: Region) -> list[Region]:
    """Return the views that a region reads its first operand through and that nothing else reads,
    first to last."""
    views, reader = list[Region](), region
    while True:
        view = graph.producer(reader.operands[0])
        if view is None or view.fused or view.op not in _VIEWS or len(view.results) != 1:
            return views[::-1]
        if not only_read_by(graph, view.results[0], reader):
            return views[::-1]
        views.append(view)
        reader = view


def _dequantized(op: Any, q: Any) -> Any:
    return op.DequantizeLinear(q, ...)


def _each_check(m: Match) -> str | None:
    source, value, graph = m.values["q"], m.root.results[0], m.graph
    if graph.spec(source).dtype not in (DType.U8, DType.I8) or graph.weight(source):
        return unsuited_reason(f"{source!r} is constant, or does not hold 8-bit integers")
    if any(value in reader.captures for reader in graph.readers(m.root)):
        return unsuited_reason(f"the body of a control-flow operator reads {value!r}")
    return None


def _each_rewrite(m: Match) -> Rewrite | str:
    """Give each elementwise reader a DequantizeLinear of its own.

    If all readers are elementwise, the first one keeps the existing DequantizeLinear.
    """
    graph, value = m.graph, m.root.results[0]
    readers = graph.in_order(graph.readers(m.root))
    moved = [r for r in readers if not r.fused and read_chain(graph, r) is not None]
    if len(moved) == len(readers) and not graph.is_output(value):
        moved = moved[1:]
    if not moved:
        return unsuited_reason(f"no other elementwise op reads {value!r}")
    copies, renamed, specs = list[Region](), list[Region](), dict[str, TensorSpec]()
    for number, reader in enumerate(moved):
        name = f"{value}_for_{number}"
        copies.append(_made(m.root, m.root.operands, name))
        operands = tuple(name if v == value else v for v in reader.operands)
        renamed.append(_renamed(reader, operands))
        specs[name] = graph.spec(value)
    return Rewrite((*copies, *renamed), old=tuple(moved), specs=specs, step=True)


DEQUANTIZE_EACH = Rule("dequantize-each", (_dequantized,), _each_rewrite, _each_check)
"""Dequantize 8-bit integers for each elementwise reader separately, to fuse with that reader."""


def _alike(graph: TileGraph, source: Region, region: Region) -> bool:
    """Return whether a QuantizeLinear has the scale, zero point and type of a DequantizeLinear."""
    if not (_one_scale(graph, source) and _one_scale(graph, region)):
        return False
    scales = [graph.weights[r.operands[1]] for r in (source, region)]
    types = {graph.spec(v).dtype for v in (source.operands[0], region.results[0])}
    if len(types) > 1 or not types <= {DType.U8, DType.I8} or not all(map(ordinary, scales)):
        return False
    zeros = [_zero(graph, r) for r in (source, region)]
    return scales[0].array().item() == scales[1].array().item() and zeros[0] == zeros[1] != ""


def _zero(graph: TileGraph, region: Region) -> int | str:
    """Return a constant zero point; empty if it is not one number."""
    if len(region.operands) < 3 or not region.operands[2]:
        return 0
    weight = graph.weight(region.operands[2])
    return int(weight.array().item()) if weight is not None and weight.count == 1 else ""


def _renamed(region: Region, operands: tuple[str, ...]) -> Region:
    """Return a region with other operands."""
    node = dataclasses.replace(region.node, inputs=operands, source=None)
    return dataclasses.replace(region, operands=operands, nodes=(node,))


def _one_scale(graph: TileGraph, region: Region) -> bool:
    """Return whether a DequantizeLinear has one constant scale for all elements."""
    scale = graph.weight(region.operands[1])
    return not region.fused and scale is not None and scale.count == 1


def _made(region: Region, operands: tuple[str, ...], result: str) -> Region:
    """Return a new region with a region's operator, on other operands and with another result."""
    node = region.node
    made = region_of(Node(node.op, operands, (result,), node.attrs, node.domain, node.label), 0)
    return Region(f"{region.id}.{result}", made.op, made.operands, made.results, made.nodes)
