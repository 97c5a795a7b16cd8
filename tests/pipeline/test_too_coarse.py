"""Rounding that adds up to too much is given up from the front, as far as needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from tracea_graph.config import Options
from tracea_graph.pipeline.judging import Judge

COUNTS = {"bf16-conv": 20, "bf16": 8}


class Shop:
    """A model with 20 convolutions and 8 products in bf16."""

    def lowered(self, rule: str) -> tuple[str, ...]:
        return tuple(f"{rule} {i + 1}" for i in range(COUNTS.get(rule, 0)))


@dataclass
class Strict(Judge):
    """Within tolerance without the first ``needed`` regions of ``rule``."""

    rule: str = "bf16-conv"
    needed: int = 1
    asked: int = 0

    def _wrong(self, dropped: frozenset[str]) -> bool:
        self.asked += 1
        ends = [int(key.split()[1]) for key in dropped if key.split()[0] == self.rule]
        return max(ends, default=0) < self.needed


def judge(precision: str = "bf16", **more: Any) -> Strict:
    nothing = cast(Any, None)
    options = Options(precision=precision)
    return Strict(nothing, cast(Any, Shop()), nothing, options, ("avx512",), **more)


@pytest.mark.parametrize("needed", range(1, 21))
def test_the_front_stays_exact_as_far_as_needed(needed: int) -> None:
    one = judge(needed=needed)
    (key,) = one._too_coarse()
    kept = int(key.split()[1])
    assert needed <= kept <= needed + 1
    assert one.asked <= 6
    places = f" in {kept} of 20 places" if kept < 20 else ""
    assert one.warnings == [f"without bf16-conv{places}: outputs were out of tolerance with it"]


def test_another_rule_where_the_first_is_not_to_blame() -> None:
    (key,) = judge(rule="bf16", needed=3)._too_coarse()
    assert key == "bf16 3"


def test_nothing_where_no_rule_is_enough() -> None:
    assert not judge(needed=21)._too_coarse()
    assert not judge("fp32")._too_coarse()
