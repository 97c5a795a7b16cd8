"""Boxes and preimages against brute-force enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracea_graph.errors import GraphError
from tracea_graph.ir import combine
from tracea_graph.ttg import AccessMap, Axis, DimIndex, IterationSpace, index_along, index_whole
from tracea_graph.ttg.iteration_space import mixed_radix_digits, mixed_radix_numbers

Tile = dict[str, tuple[int, int]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[IterationSpace, AccessMap, Tile]:
    axes = [Axis(n, draw(st.integers(1, 4))) for n in "abc"[: draw(st.integers(1, 3))]]
    dims = []
    for _ in range(draw(st.integers(1, 2))):
        names = draw(st.lists(st.sampled_from([a.name for a in axes]), unique=True, max_size=2))
        terms = tuple((n, draw(st.integers(-3, 3).filter(bool))) for n in names)
        dims.append(DimIndex(terms, draw(st.integers(-4, 8)), draw(st.integers(1, 3))))
    shape = tuple(draw(st.integers(2, 12)) for _ in dims)
    tile = {}
    for axis in axes:
        start = draw(st.integers(0, axis.extent))
        tile[axis.name] = (start, draw(st.integers(start, axis.extent)))
    return IterationSpace(tuple(axes)), AccessMap("t", tuple(dims), shape), tile


def _touched(access: AccessMap, point: dict[str, int]) -> set[tuple[int, ...]]:
    """Indices inside the tensor and outside of it."""
    spans = []
    for dim in access.dims:
        first = dim.offset + sum(c * point[a] for a, c in dim.terms)
        spans.append(range(first, first + dim.window))
    return set(product(*spans))


def _points(tile: Tile) -> list[dict[str, int]]:
    ranges = [range(*r) for r in tile.values()]
    return [dict(zip(tile, p, strict=True)) for p in product(*ranges)]


@settings(max_examples=400, deadline=None)
@given(cases())
def test_box_is_the_hull_of_the_image(case: tuple[IterationSpace, AccessMap, Tile]) -> None:
    space, access, tile = case
    image = {i for p in _points(tile) for i in _touched(access, p)}
    box = access.box(space, tile)
    if not image:
        assert any(lo >= hi for lo, hi in box)
        return
    for d, (lo, hi) in enumerate(box):
        values = [i[d] for i in image]
        cut = np.clip([min(values), max(values) + 1], 0, access.shape[d])
        assert (lo, hi) == tuple(cut)


@settings(max_examples=400, deadline=None)
@given(cases(), st.data())
def test_preimage_holds_every_point_and_is_tight_for_single_terms(
    case: tuple[IterationSpace, AccessMap, Tile], data: st.DataObject
) -> None:
    space, access, _ = case
    lo = [data.draw(st.integers(0, e - 1)) for e in access.shape]
    hi = [data.draw(st.integers(a + 1, e)) for a, e in zip(lo, access.shape, strict=True)]
    starts, stops = access.bind(space, {}).preimage(np.array([lo]), np.array([hi]))
    everything = {a.name: (0, int(str(a.extent))) for a in space.axes}
    inside = [
        p
        for p in _points(everything)
        if any(
            all(a <= i < b for i, a, b in zip(index, lo, hi, strict=True))
            for index in _touched(access, p)
        )
    ]
    for p in inside:
        assert all(starts[0, i] <= p[n] < stops[0, i] for i, n in enumerate(space.names))
    used = [n for dim in access.dims for n, _ in dim.terms]
    simple = all(len(d.terms) <= 1 for d in access.dims) and len(set(used)) == len(used)
    if simple and inside:
        for i, name in enumerate(space.names):
            values = [p[name] for p in inside]
            assert (starts[0, i], stops[0, i]) == (min(values), max(values) + 1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_digits_of_a_range_are_the_hull_of_its_numbers(
    extents: list[int], data: st.DataObject
) -> None:
    size = int(np.prod(extents))
    lo = data.draw(st.integers(0, size - 1))
    hi = data.draw(st.integers(lo + 1, size))
    digits = mixed_radix_digits(np.array([lo]), np.array([hi]), np.array(extents))
    numbers = np.array(np.unravel_index(np.arange(lo, hi), extents))
    for (a, b), row in zip(digits, numbers, strict=True):
        assert (a[0], b[0]) == (row.min(), row.max() + 1)
    starts, stops = (np.array([[d[i][0] for d in digits]]) for i in (0, 1))
    first, end = mixed_radix_numbers(starts, stops, np.array(extents))
    assert first[0] <= lo and hi <= end[0]


def test_merged_heads_map_both_ways() -> None:
    space = IterationSpace((Axis("s", 5), Axis("h", 12), Axis("d", 64)))
    access = AccessMap("x", (index_along("s"), index_along("h", "d", extents=(12, 64))), (5, 768))
    assert access.box(space, {"h": (2, 3)}) == ((0, 5), (128, 192))
    assert access.box(space, {"h": (2, 4), "d": (8, 16)}) == ((0, 5), (136, 208))
    starts, stops = access.bind(space, {}).preimage(np.array([[1, 130]]), np.array([[2, 140]]))
    assert starts.tolist() == [[1, 2, 2]] and stops.tolist() == [[2, 3, 12]]


def test_convolution_has_a_halo() -> None:
    space = IterationSpace((Axis("y", 8), Axis("k", 3, True)))
    access = AccessMap("x", (DimIndex((("y", 2), ("k", 1)), -1),), (16,))
    assert access.box(space, {"y": (0, 4)}) == ((0, 8),)
    assert access.box(space, {"y": (4, 8)}) == ((7, 16),)


def test_symbols_are_bound_by_name() -> None:
    space = IterationSpace((Axis("s", "seq"), Axis("n", 4)))
    shape = (combine("mul", "seq", 2), 1)
    access = AccessMap("x", (DimIndex((("s", 2),)), index_along("n")), shape)
    assert access.box(space, {"s": (1, 3)}, {"seq": 7}) == ((2, 5), (0, 1))
    with pytest.raises(GraphError, match="no binding for 'seq'"):
        access.box(space, {})


def test_a_symbol_that_is_one_broadcasts() -> None:
    space = IterationSpace((Axis("s", 6),))
    access = AccessMap("x", (index_along("s"),), ("rows",))
    assert access.box(space, {"s": (3, 5)}, {"rows": 1}) == ((0, 1),)
    assert access.box(space, {"s": (3, 5)}, {"rows": 6}) == ((3, 5),)


def test_indirect_touches_one_row_for_each_index() -> None:
    space = IterationSpace((Axis("s", 8), Axis("e", 4)))
    table = AccessMap("t", (index_whole(1000, ("s",)), index_along("e")), (1000, 4)).bind(
        space, {}
    )
    tile = np.array([[0, 0]]), np.array([[3, 4]])
    assert table.touched(*tile).tolist() == [12]
    assert [b.tolist() for b in table.box(*tile)] == [[[0, 0]], [[1000, 4]]]


def test_mistakes_are_named() -> None:
    with pytest.raises(GraphError, match="names an axis twice"):
        IterationSpace((Axis("a", 1), Axis("a", 2)))
    with pytest.raises(GraphError, match="has rank 1, not 2"):
        AccessMap("x", (DimIndex(), DimIndex()), (3,))
    with pytest.raises(GraphError, match="no axis 'z'"):
        AccessMap("x", (index_along("z"),), (3,)).box(IterationSpace((Axis("a", 1),)), {})
