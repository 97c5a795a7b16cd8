"""Groups of cores by measured hand-overs: two dies, eight caches, one die, noise."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tracea_graph.kernels.cpu import core_measurement as measuring
from tracea_graph.kernels.cpu.core_groups import find_groups

Time = Callable[[int, int], float]


def measured(
    count: int, near: float, far: float, group: Callable[[int], int], noise: float = 0.1
) -> dict[tuple[int, int], float]:
    """Times between all pairs, each up to ``noise`` longer."""
    draw = random.Random(count)
    return {
        (a, b): (near if group(a) == group(b) else far) * (1 + noise * draw.random())
        for b in range(count)
        for a in range(b)
    }


def test_two_dies() -> None:
    found = find_groups(measured(16, 0.10, 0.14, lambda p: p // 8))
    assert str(found) == "0-7/8-15"
    assert 0.10 <= found.near_us <= 0.11 and 0.14 <= found.far_us <= 0.154


def test_dies_that_take_turns() -> None:
    assert str(find_groups(measured(8, 0.1, 0.2, lambda p: p % 2))) == "0,2,4,6/1,3,5,7"


def test_caches_of_two_sockets() -> None:
    """Sixteen caches of four cores: the gap between caches is wider than that between sockets."""
    times = {
        pair: us * (1.5 if pair[0] // 32 != pair[1] // 32 else 1)
        for pair, us in measured(64, 0.03, 0.12, lambda p: p // 4).items()
    }
    groups = find_groups(times).groups
    assert groups == tuple(tuple(range(p, p + 4)) for p in range(0, 64, 4))


@pytest.mark.parametrize(("count", "noise"), [(16, 0.1), (16, 0.5), (64, 0.3), (3, 0.1)])
def test_one_die_has_no_clear_gap(count: int, noise: float) -> None:
    found = find_groups(measured(count, 0.1, 0.1, lambda p: 0, noise))
    assert found.groups == (tuple(range(count)),)
    assert 0.1 <= found.near_us <= found.far_us <= 0.15


def test_a_core_of_a_busy_host_is_no_group() -> None:
    times = measured(16, 0.10, 0.14, lambda p: p // 8)
    late = {pair: us * (3 if 5 in pair else 1) for pair, us in times.items()}
    assert str(find_groups(late)) == "0-7/8-15"
    alone = {pair: us * (3 if 5 in pair else 1) for pair, us in measured(8, 0.1, 0.1, int).items()}
    assert str(find_groups(alone)) == "0-7"


def test_processors_of_one_core_that_nobody_describes_so() -> None:
    times = measured(16, 0.07, 0.07, lambda p: 0, 0.3) | {(12, 14): 0.024, (7, 8): 0.025}
    found = find_groups(times)
    assert (len(found.groups), found.one_core) == (1, ((7, 8), (12, 14)))
    (figure,) = (f for f in measuring._of_groups(found) if "share a core" in f.name)
    assert (figure.value, figure.name.partition(": ")[2]) == (2.0, "7-8 12-14")


def test_pairs_that_were_not_measured() -> None:
    times = measured(32, 0.10, 0.16, lambda p: p // 16)
    few = dict(random.Random(1).sample(sorted(times.items()), len(times) // 2))
    assert str(find_groups(few)) == "0-15/16-31"
    assert find_groups({}).groups == ((),)
