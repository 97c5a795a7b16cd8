"""Extent arithmetic: equal sizes get equal forms."""

from __future__ import annotations

import random

import pytest

from tracea_graph.ir import Expr, Extent, evaluate
from tracea_graph.onnx_io import symbolic as sym


def test_normal_form_makes_equal_sizes_equal() -> None:
    a = sym.mul(sym.add("s", 3), "b")
    b = sym.add(sym.mul("b", "s"), sym.mul(3, "b"))
    assert a == b
    assert sym.sub(sym.add("past", "s"), "past") == "s"
    assert sym.div(sym.mul(sym.mul("b", "s"), 384), sym.mul("b", 12)) == sym.mul("s", 32)
    assert sym.sub("s", "s") == 0


@pytest.mark.parametrize("seed", range(50))
def test_arithmetic_agrees_with_numbers(seed: int) -> None:
    rng = random.Random(seed)
    bound = {s: rng.randint(1, 9) for s in "abc"}

    def grow(depth: int) -> tuple[Extent, int]:
        if not depth:
            leaves: list[Extent] = ["a", "b", "c", 1, 2, 5]
            leaf = rng.choice(leaves)
            return leaf, evaluate(leaf, bound)
        (x, m), (y, n) = grow(depth - 1), grow(depth - 1)
        name = rng.choice(["add", "sub", "mul", "div", "minimum"])
        if name == "div" and n <= 0:
            name = "add"
        value = {"add": m + n, "sub": m - n, "mul": m * n, "minimum": min(m, n)}
        result: Extent = getattr(sym, name)(x, y)
        return result, value[name] if name in value else m // n

    extent, number = grow(4)
    assert evaluate(extent, bound) == number
    assert sym.at_least(extent, number + 1) is False


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
    assert sym.broadcast(a, b) == size


def test_bounds_hold_for_sizes_of_at_least_one() -> None:
    assert sym.at_least(sym.sub("s", 1), 0)
    assert not sym.at_least(sym.sub("s", 2), 0)
    assert not sym.at_least(sym.sub("s", "t"), 0)
