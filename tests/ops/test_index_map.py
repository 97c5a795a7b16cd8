"""Index maps: strides, NumPy and ONNX say the same, whatever the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from tests.graphs import run_body
from tracea_graph.ir import Extent, evaluate
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.index_map import HUGE, IndexMap, StridedLayout, ViewMove

Shape = tuple[Extent, ...]


def map_of(*moves: tuple[str, tuple[int, ...]]) -> IndexMap:
    return IndexMap(tuple(ViewMove(*m) for m in moves))


def strided(array: np.ndarray, layout: StridedLayout, symbols: dict[str, int]) -> np.ndarray:
    """The view a layout describes; every element it may touch lies inside the array."""
    dims = [evaluate(d, symbols) for d in layout.dims]
    strides = [evaluate(s, symbols) for s in layout.strides]
    offset, flat = evaluate(layout.offset, symbols), array.reshape(-1)
    if 0 in dims:
        return np.zeros(dims, array.dtype)
    spans = [(d - 1) * s for d, s in zip(dims, strides, strict=True)]
    assert offset + sum(s for s in spans if s < 0) >= 0
    assert offset + sum(s for s in spans if s > 0) < array.size
    return as_strided(flat[offset:], dims, [s * array.itemsize for s in strides])


def numbered(shape: Sequence[int]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


CASES: dict[str, tuple[IndexMap, Shape]] = {
    "transpose": (map_of(("transpose", (2, 0, 1))), ("b", "s", 12)),
    "heads": (map_of(("reshape", (0, 0, 3, 4)), ("transpose", (0, 2, 1, 3))), ("b", "s", 12)),
    "heads, symbol after": (map_of(("reshape", (0, 3, 4, -1))), ("b", 12, "s")),
    "merge": (map_of(("reshape", (-1, 12))), ("b", "s", 12)),
    "merge of a slice's inner axes": (
        map_of(("slice", (0, 0, 1, 1)), ("reshape", (0, -1))), ("b", "s", 12)
    ),
    "ones come and go": (
        map_of(("unsqueeze", (0, 3)), ("reshape", (-1, 1, 12)), ("squeeze", (1,))),
        ("s", 12),
    ),
    "front": (map_of(("slice", (1, 0, 3, 1))), ("b", "s", 12)),
    "back": (map_of(("slice", (1, -3, HUGE, 1))), ("b", "s", 12)),
    "middle": (map_of(("slice", (1, 2, -2, 1))), ("b", "s", 12)),
    "but the last": (map_of(("slice", (1, 0, -1, 1))), ("b", "s")),
    "every second": (map_of(("slice", (2, 1, HUGE, 2))), ("b", "s", 12)),
    "every third": (map_of(("slice", (1, 1, 9, 3))), ("b", "s", 12)),
    "reversed": (map_of(("slice", (1, -1, -HUGE, -1))), ("b", "s", 12)),
    "reversed from a number": (map_of(("slice", (1, 3, -HUGE, -1))), ("b", "s")),
    "reversed from before the front": (map_of(("slice", (1, -4, -HUGE, -1))), ("b", "s")),
    "reversed to a number": (map_of(("slice", (1, HUGE, 1, -2))), ("b", "s")),
    "reversed to the front": (map_of(("slice", (1, -1, 0, -1))), ("b", "s")),
    "reversed numbers": (map_of(("slice", (2, 9, 1, -3))), ("b", "s", 12)),
    "nothing": (map_of(("slice", (2, 5, 5, 1))), ("b", "s", 12)),
    "one": (map_of(("select", (2, -1)), ("unsqueeze", (0,))), ("b", "s", 12)),
    "repeated": (
        map_of(("unsqueeze", (1,)), ("expand", (1, 3, 1)), ("transpose", (2, 1, 0))), ("s", 12)
    ),
}  # fmt: skip


@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize("s", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", CASES)
def test_strides_say_what_numpy_does(name: str, s: int, b: int) -> None:
    index_map, shape = CASES[name]
    symbols = {"b": b, "s": s}
    x = numbered([evaluate(d, symbols) for d in shape])
    want = index_map.reference(x)
    np.testing.assert_array_equal(
        strided(x, index_map.layout(StridedLayout.dense(shape)), symbols), want
    )
    np.testing.assert_array_equal(
        strided(x, index_map.layout(StridedLayout.dense(x.shape)), {}), want
    )
    assert index_map.shape(x.shape) == want.shape


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
@pytest.mark.parametrize("s", [1, 2, 5])
@pytest.mark.parametrize("name", CASES)
def test_the_body_says_what_numpy_does(name: str, s: int, opset: int) -> None:
    index_map, shape = CASES[name]
    x = numbered([evaluate(d, {"b": 2, "s": s}) for d in shape])
    b = BodyBuilder(1, opset)
    (got,) = run_body(b.done(index_map.to_onnx(b, *b.inputs)), [x], opset)
    np.testing.assert_array_equal(got, index_map.reference(x))


@pytest.mark.parametrize("name", CASES)
def test_an_empty_axis_stays_inside(name: str) -> None:
    index_map, shape = CASES[name]
    layout = index_map.layout(StridedLayout.dense(shape))
    dims = [evaluate(d, {"b": 2, "s": 0}) for d in layout.dims]
    assert 0 in dims and min(dims) == 0


@st.composite
def _maps(draw: Any) -> tuple[IndexMap, tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    index_map, at = IndexMap(), shape
    for _ in range(draw(st.integers(1, 4))):
        axis = draw(st.integers(0, len(at) - 1))
        ends = st.integers(-7, 7)
        move = draw(st.sampled_from([
            ViewMove("transpose", tuple(draw(st.permutations(range(len(at)))))),
            ViewMove("slice",
                (axis, draw(ends), draw(ends), draw(st.sampled_from([-2, -1, 1, 3])))),
            ViewMove("unsqueeze", (axis,)),
            ViewMove("reshape", (*at[:axis], -1, 1, *at[axis + 1 :])),
            ViewMove("reshape", (*at[:axis], *_split(at[axis]), *at[axis + 1 :])),
        ]))  # fmt: skip
        if 0 in (after := index_map.then(move).reference(numbered(shape)).shape) or len(after) > 6:
            break
        index_map, at = index_map.then(move), after
    return index_map, shape


def _split(dim: int) -> tuple[int, ...]:
    return (2, dim // 2) if dim % 2 == 0 else (dim,)


@settings(deadline=None, max_examples=200)
@given(_maps())
def test_any_moves_in_any_order(case: tuple[IndexMap, tuple[int, ...]]) -> None:
    index_map, shape = case
    x = numbered(shape)
    got = strided(x, index_map.layout(StridedLayout.dense(shape)), {})
    np.testing.assert_array_equal(got, index_map.reference(x))


@pytest.mark.parametrize(
    ("index_map", "shape", "reason"),
    [
        (map_of(("transpose", (1, 0)), ("reshape", (-1,))), ("b", "s"), "evenly strided"),
        (map_of(("reshape", (6, 4))), (4, 6), "splits and merges the same axes"),
        (map_of(("reshape", (-1, 5))), ("b", 12), "symbols do not determine"),
        (map_of(("reshape", (0, -1, 4))), ("b", "s"), "symbols do not determine"),
        (map_of(("slice", (0, 0, HUGE, 2)), ("reshape", (-1,))), (8, 6), "evenly strided"),
        (map_of(("squeeze", (0,))), ("b", 4), "a squeezed axis does not have size 1"),
        (map_of(("expand", (3, 1))), (2, 1), "an expanded axis does not have size 1"),
        (map_of(("select", (0, 4))), (4,), "outside its axis"),
    ],
)
def test_what_no_strides_say_is_refused(index_map: IndexMap, shape: Shape, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        index_map.layout(StridedLayout.dense(shape))


def test_an_unknown_move_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown view move 'rotate'"):
        ViewMove("rotate", ())


def test_transpositions_that_undo_each_other_go() -> None:
    there = map_of(("transpose", (0, 2, 1, 3)))
    assert there.then(ViewMove("transpose", (0, 2, 1, 3))) == IndexMap()
    assert there.then(ViewMove("transpose", (1, 0, 2, 3))) == map_of(("transpose", (2, 0, 1, 3)))
