"""Derive size limits from a model's constants, such as the rows of a position table.

A constant limits a symbol in these ways, found by following sizes and integers forwards:

    Slice(table [1, 77], :sequence)  →  [1, min(sequence, 77)], added to [batch, sequence, …]
    Gather(table [512, 768], Range(0, past + sequence)[past:])     its largest index < 512
    EmbedLayerNormalization(ids [batch, sequence], …, table [512, 768])       sequence ≤ 512
    Add(x [batch, tokens, 768], table [1, 197, 768])               tokens = 197
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from types import MappingProxyType

from tracea_graph.check.input_constraints import small_constant_integers
from tracea_graph.ir import Expr, Extent, combine, evaluate, symbols_of
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["SizeLimit", "clip_sizes", "known_size_limits"]


@dataclass(frozen=True)
class SizeLimit:
    """A limit ``extent ≤ most``; ``why`` is a clause about the constant that causes it.

    If ``exact``, the extent must equal ``most``, or be 1 and broadcast.
    """

    extent: Extent
    most: int
    why: str
    exact: bool = False

    def holds(self, sizes: Mapping[str, int]) -> bool:
        size = evaluate(self.extent, sizes)
        return size in (1, self.most) if self.exact else size <= self.most


def known_size_limits(graph: TileGraph) -> tuple[SizeLimit, ...]:
    """Return every limit that the graph implies, each once, except those that always hold."""
    found: dict[tuple[Extent, int], SizeLimit] = {}
    highest: dict[str, Extent] = {}
    for region in graph.regions():
        top = _highest(graph, region, highest)
        if top is not None:
            highest[region.results[0]] = top
        indexed = _indexed(graph, region, highest)
        for limit in chain(_clipped(graph, region), indexed, _embedded(graph, region)):
            if next(symbols_of(limit.extent), None) is not None:
                found.setdefault((limit.extent, limit.most), limit)
    return tuple(found.values())


def clip_sizes(
    sizes: Mapping[str, int], bounds: Sequence[SizeLimit], fixed: frozenset[str] = frozenset()
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Reduce sizes to the limits; return the sizes and the reasons why they were reduced.

    ``fixed`` symbols keep their sizes.  The other symbols of a limit get a common cap, the largest
    that satisfies the limit; a limit that no cap satisfies, or that has unknown symbols, is
    ignored.
    """
    found, notes = dict(sizes), list[str]()
    for limit in bounds:
        names = {*symbols_of(limit.extent)}
        free = [n for n in names if n not in fixed]
        if not names <= found.keys() or limit.holds(found):
            continue
        under = _cap(found, free, limit)
        if under is None or not limit.holds(under):
            continue
        short = (f"{n} = {under[n]}" for n in sorted(free) if under[n] != found[n])
        notes.append(f"{' and '.join(short)}: {limit.why}")
        found = under
    return found, tuple(notes)


def _cap(sizes: Mapping[str, int], free: list[str], limit: SizeLimit) -> dict[str, int] | None:
    """Cap the free sizes no more than the limit requires, by bisection."""

    if limit.exact:
        return {n: limit.most if n in free and n == limit.extent else s for n, s in sizes.items()}

    def capped(most: int) -> dict[str, int]:
        return {n: min(size, most) if n in free else size for n, size in sizes.items()}

    low, high = 1, max((sizes[n] for n in free), default=1)
    if not limit.holds(capped(low)):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if limit.holds(capped(middle)) else (low, middle)
    return capped(low)


# ---- clipped sizes ---------------------------------------------------------------------

_TOGETHER = frozenset(
    ("Add", "Sub", "Mul", "Div", "Where", "And", "Or", "Equal", "Less", "Greater", "Max", "Min")
)
"""Operators whose operands need equal sizes, or 1."""


def _clipped(graph: TileGraph, region: Region) -> Iterator[SizeLimit]:
    """Return limits under which a clipped or constant size equals the size it is combined with."""
    if region.op not in _TOGETHER:
        return
    for a, b in permutations(dict.fromkeys(v for v in region.operands if v), 2):
        one, other = graph.spec(a).shape or (), graph.spec(b).shape or ()
        for size, meets in zip(reversed(one), reversed(other), strict=False):
            if size == meets or meets == 1:
                continue
            if isinstance(size, int) and size > 1 and isinstance(meets, str):
                yield SizeLimit(
                    meets, size, f"{_table(graph, a)} has size {size} on that axis", exact=True
                )
            elif isinstance(size, Expr) and {*symbols_of(size)} == {*symbols_of(meets)}:
                for inner, most in _clips(size):
                    yield SizeLimit(inner, most, f"{_table(graph, a)} holds no more than {most}")


def _clips(extent: Extent) -> Iterator[tuple[Extent, int]]:
    """Yield every ``min(size, number)`` in an extent."""
    if not isinstance(extent, Expr):
        return
    a, b = extent.args
    if extent.op == "min" and isinstance(b, int):
        yield a, b
    for arg in extent.args:
        yield from _clips(arg)


def _table(graph: TileGraph, value: str) -> str:
    """Describe the nearest constant that a value was sliced from."""
    seen = value
    for _ in range(8):
        producer = graph.producer(seen)
        if producer is None:
            break
        constant = [v for v in producer.operands[:1] if v and graph.weight(v) is not None]
        if constant:
            return f"the constant {constant[0]!r}"
        if not producer.operands or not producer.operands[0]:
            break
        seen = producer.operands[0]
    return f"the constant behind {value!r}"


# ---- largest integers ------------------------------------------------------------------


def _indexed(
    graph: TileGraph, region: Region, highest: Mapping[str, Extent]
) -> Iterator[SizeLimit]:
    """Return the limit on indices into a constant."""
    if region.op != "Gather" or (weight := graph.weight(region.operands[0])) is None:
        return
    top, axis = highest.get(region.operands[1]), region.node.attrs.get("axis", 0)
    if top is None or not isinstance(axis, int) or not weight.shape:
        return
    rows = weight.shape[axis]
    yield SizeLimit(combine("add", top, 1), rows, _has_rows(weight.name, rows))


def _embedded(graph: TileGraph, region: Region) -> Iterator[SizeLimit]:
    """Return the limit on the number of words, if their positions are counted from 0."""
    if region.op != "com.microsoft::EmbedLayerNormalization" or any(region.operands[8:9]):
        return
    shape, weight = graph.spec(region.operands[0]).shape, graph.weight(region.operands[3])
    if shape is not None and len(shape) == 2 and weight is not None and weight.shape:
        rows = weight.shape[0]
        yield SizeLimit(shape[1], rows, _has_rows(weight.name, rows))


def _has_rows(table: str, rows: int) -> str:
    return f"the table {table!r} has {rows} rows"


Top = Callable[[TileGraph, Region, Mapping[str, Extent]], Extent | None]


def _of(graph: TileGraph, value: str, highest: Mapping[str, Extent]) -> Extent | None:
    """Return the largest element of a value, if known."""
    if value in highest:
        return highest[value]
    constant = small_constant_integers(graph, value)
    if constant is None or not constant.size or constant.dtype.kind not in "iub":
        return None
    return int(constant.max())


def _highest(graph: TileGraph, region: Region, highest: Mapping[str, Extent]) -> Extent | None:
    rule = _TOPS.get(region.op)
    return None if rule is None else rule(graph, region, highest)


def _moved(graph: TileGraph, region: Region, highest: Mapping[str, Extent]) -> Extent | None:
    return highest.get(region.operands[0])


def _gathered(graph: TileGraph, region: Region, highest: Mapping[str, Extent]) -> Extent | None:
    """Return the largest element gathered: a dim of a shape, or the table's largest element."""
    source, index = (
        graph.producer(region.operands[0]),
        small_constant_integers(graph, region.operands[1]),
    )
    if source is None or source.op != "Shape" or index is None or index.size != 1:
        return highest.get(region.operands[0])
    shape, attrs = graph.spec(source.operands[0]).shape, source.node.attrs
    if shape is None or "start" in attrs or "end" in attrs:
        return None
    return shape[int(index.flat[0])]


def _range(graph: TileGraph, region: Region, highest: Mapping[str, Extent]) -> Extent | None:
    start, step = (small_constant_integers(graph, region.operands[i]) for i in (0, 2))
    length = (graph.spec(region.results[0]).shape or (None,))[0]
    if length is None or step is None or step.size != 1 or float(step.flat[0]) != 1.0:
        return None
    first = _of(graph, region.operands[0], highest)
    if start is None and first is None:
        return None
    return combine("sub", combine("add", first or 0, length), 1)


def _sum(graph: TileGraph, region: Region, highest: Mapping[str, Extent]) -> Extent | None:
    a, b = (_of(graph, v, highest) for v in region.operands)
    return None if a is None or b is None else combine("add", a, b)


def _difference(graph: TileGraph, region: Region, highest: Mapping[str, Extent]) -> Extent | None:
    a, b = (
        _of(graph, region.operands[0], highest),
        small_constant_integers(graph, region.operands[1]),
    )
    if a is None or b is None or b.dtype.kind not in "iu" or not b.size:
        return None
    return combine("sub", a, int(b.min()))


def _chosen(graph: TileGraph, region: Region, highest: Mapping[str, Extent]) -> Extent | None:
    a, b = (_of(graph, v, highest) for v in region.operands[1:])
    return None if a is None or b is None else combine("max", a, b)


def _product(graph: TileGraph, region: Region, highest: Mapping[str, Extent]) -> Extent | None:
    """Return the limit of a running count times a mask, as in position ids after padding."""
    known = [_of(graph, v, highest) for v in region.operands]
    if None in known:
        return None
    a, b = (k for k in known if k is not None)
    if any(isinstance(k, int) and k < 0 for k in (a, b)):
        return None
    return a if b == 1 else b if a == 1 else combine("mul", a, b)


def _running(graph: TileGraph, region: Region, highest: Mapping[str, Extent]) -> Extent | None:
    """Return the limit of a mask's cumulative sum: its number of elements along the axis."""
    top, axis = (
        _of(graph, region.operands[0], highest),
        small_constant_integers(graph, region.operands[1]),
    )
    shape = graph.spec(region.results[0]).shape
    if top != 1 or axis is None or shape is None:
        return None
    return shape[int(axis.flat[0])]


def _flag(graph: TileGraph, region: Region, highest: Mapping[str, Extent]) -> Extent | None:
    return 1


_TOPS: Mapping[str, Top] = MappingProxyType(
    {
        **dict.fromkeys(
            ("Cast", "Expand", "Flatten", "GatherElements", "Identity", "Reshape", "Slice",
             "Squeeze", "Tile", "Transpose", "Unsqueeze"),
            _moved,
        ),
        **dict.fromkeys(
            ("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or"),
            _flag,
        ),
        "Add": _sum,
        "CumSum": _running,
        "Gather": _gathered,
        "Mul": _product,
        "Range": _range,
        "Sub": _difference,
        "Where": _chosen,
    }
)  # fmt: skip
