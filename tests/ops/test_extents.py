"""Arithmetic over sizes: what is the same size has the same form, and the value it had."""

from __future__ import annotations

import random

import pytest

from tracea_graph.ir import Extent, combine, evaluate


def test_what_is_added_back_was_never_subtracted() -> None:
    whole, part, half = "n", combine("mul", "k", 2), combine("floordiv", "n", 2)
    more = combine("sub", whole, part)
    assert combine("add", part, more) == combine("add", more, part) == whole
    behind = combine("sub", more, half)
    assert combine("add", combine("add", part, half), behind) == whole
    assert combine("add", combine("add", half, part), behind) == whole
    assert evaluate(combine("add", half, more), {"n": 9, "k": 3}) == 4 + 3


@pytest.mark.parametrize("seed", range(50))
def test_no_form_changes_a_value(seed: int) -> None:
    chance = random.Random(seed)
    sizes = {name: chance.randint(1, 40) for name in "nkh"}
    made: list[tuple[Extent, int]] = list(sizes.items())
    made += [(0, 0), (1, 1), (2, 2)]
    for _ in range(40):
        (a, x), (b, y) = chance.choice(made), chance.choice(made)
        ops = {"add": x + y, "sub": x - y, "mul": x * y, "max": max(x, y), "min": min(x, y)}
        op, value = chance.choice(list(ops.items()))
        extent = combine(op, a, b)
        assert evaluate(extent, sizes) == value
        if abs(value) < 1000:
            made.append((extent, value))
