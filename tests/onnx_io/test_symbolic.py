"""Extent arithmetic: equal sizes get equal forms."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable

import pytest

from tracea_graph.ir import Expr, Extent, evaluate
from tracea_graph.onnx_io import symbolic_arithmetic as sym

NUMBERS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv,
    "ceil_div": lambda a, b: -(-a // b), "minimum": min, "maximum": max,
}  # fmt: skip


def test_normal_form_makes_equal_sizes_equal() -> None:
    a = sym.mul(sym.add("s", 3), "b")
    b = sym.add(sym.mul("b", "s"), sym.mul(3, "b"))
    assert a == b
    assert sym.sub(sym.add("past", "s"), "past") == "s"
    assert sym.div(sym.mul(sym.mul("b", "s"), 384), sym.mul("b", 12)) == sym.mul("s", 32)
    assert sym.sub("s", "s") == 0
    assert sym.div(sym.mul(sym.add("b", "s"), 6), sym.mul(2, sym.add("s", "b"))) == 3


def test_divisions_have_one_form() -> None:
    half = sym.div("h", 2)
    assert sym.div(sym.add(sym.mul("h", 2), 5), 2) == sym.add("h", 2)
    assert sym.add(sym.div(sym.sub("h", 1), 2), 1) == sym.ceil_div("h", 2)
    assert sym.div(sym.add(half, 1), 2) == sym.div(sym.add("h", 2), 4)
    assert sym.div(sym.add(sym.mul("h", 4), 6), 8) == sym.div(sym.add(sym.mul("h", 2), 3), 4)
    assert sym.div(half, 2) == sym.div("h", 4)
    # Going down and up again loses a row of an odd height: not equal, and never above it.
    up = sym.mul(half, 2)
    assert up != "h"
    assert sym.is_at_least(sym.sub("h", up), 0) and sym.is_at_least(
        sym.sub(sym.add(up, 1), "h"), 0
    )
    lost = sym.sub(sym.div("h", 8), sym.mul(sym.div("h", 16), 2))
    assert sym.is_at_least(lost, 0)
    both = sym.add(sym.div(lost, 2), sym.sub(lost, sym.div(lost, 2)))
    assert sym.add(sym.mul(sym.div("h", 16), 2), both) == sym.div("h", 8)


def test_extremes_have_one_form() -> None:
    assert sym.minimum(sym.minimum("s", 512), 77) == sym.minimum(77, "s")
    assert sym.minimum("s", "t") == sym.minimum("t", "s")
    assert sym.maximum("s", 0) == "s" and sym.maximum("s", 1) == Expr("max", ("s", 1))


@pytest.mark.parametrize(
    ("text", "sum_"),
    [("past + s", sym.add("past", "s")), ("2*s+1", sym.add(sym.mul(2, "s"), 1)), ("past_s", None)],
)
def test_sums_in_names(text: str, sum_: Extent | None) -> None:
    assert sym.parse_dimension(text, ["past", "s"]) == sum_


@pytest.mark.parametrize("seed", range(300))
def test_arithmetic_agrees_with_numbers(seed: int) -> None:
    rng = random.Random(seed)
    bound = {s: rng.randint(1, 9) for s in "abc"}

    def grow(depth: int) -> tuple[Extent, int]:
        if not depth:
            leaves: list[Extent] = ["a", "b", "c", 1, 2, 5]
            leaf = rng.choice(leaves)
            return leaf, evaluate(leaf, bound)
        (x, m), (y, n) = grow(depth - 1), grow(depth - 1)
        name = rng.choice(list(NUMBERS))
        if "div" in name and n <= 0:
            name = "add"
        result: Extent = getattr(sym, name)(x, y)
        return result, NUMBERS[name](m, n)

    extent, number = grow(4)
    assert evaluate(extent, bound) == number
    assert sym.is_at_least(extent, number + 1) is False


@pytest.mark.parametrize(
    ("a", "b", "size"),
    [
        ("s", "s", "s"), (1, "s", "s"), ("s", 1, "s"), (8, "s", 8), ("s", 8, 8), ("s", "t", None),
        ("s", Expr("min", ("s", 512)), "s"), (Expr("min", ("s", 512)), "s", "s"),
        ("s", Expr("min", ("t", 512)), None),
        ("s", sym.sub(sym.minimum(sym.add("s", "p"), 512), "p"), "s"),
    ],
)  # fmt: skip
def test_broadcast(a: Extent, b: Extent, size: Extent | None) -> None:
    assert sym.broadcast_size(a, b) == size


def test_bounds_hold_for_sizes_of_nothing() -> None:
    assert sym.is_at_least("s", 0) and not sym.is_at_least(sym.sub("s", 1), 0)
    assert sym.is_at_least(sym.sub("s", 1), 0, least=1)
    assert not sym.is_at_least(sym.sub("s", 2), 0, least=1)
    assert not sym.is_at_least(sym.sub("s", "t"), 0)


def test_the_least_of_a_size_and_one_that_covers_it() -> None:
    twice = sym.maximum(sym.sub(sym.mul("s", 2), 1), 0)
    assert sym.minimum(twice, "s") == sym.minimum("s", twice) == "s"
    less, other = sym.maximum(sym.sub("s", 1), 0), sym.maximum(sym.sub(sym.mul("t", 2), 1), 0)
    assert sym.minimum(less, "s") != "s" and sym.minimum(other, "s") != "s"
    for s in range(5):
        assert evaluate(sym.minimum(twice, "s"), {"s": s}) == min(max(2 * s - 1, 0), s)
    frames = sym.sub(sym.div(sym.add("s", 1), 4), 1)
    places = sym.maximum(sym.sub(sym.mul(frames, 2), 1), 0)
    assert sym.minimum(places, frames) == sym.minimum(frames, places) == frames
