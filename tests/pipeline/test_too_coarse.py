"""Rounding that adds up to too much is given up from the front, as far as needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from tracea_graph.check.verify import Verification
from tracea_graph.config import Options
from tracea_graph.pipeline.judging import Judge

COUNTS = {"bf16-conv": 20, "bf16": 8, "int16": 8}


class Shop:
    """A model with 20 convolutions and 8 products in bf16, which integers could take."""

    def lowered(self, rule: str) -> tuple[str, ...]:
        return tuple(f"{rule} {i + 1}" for i in range(COUNTS.get(rule, 0)))


@dataclass
class Strict(Judge):
    """Within tolerance without the first ``needed`` regions of ``rule``, and of all of ``too``."""

    rule: str = "bf16-conv"
    needed: int = 1
    too: str = ""
    asked: int = 0

    def _wrong(self, dropped: frozenset[str]) -> bool:
        self.asked += 1
        ends = {key.split()[0]: int(key.split()[1]) for key in dropped}
        whole = not self.too or ends.get(self.too) == COUNTS[self.too]
        return ends.get(self.rule, 0) < self.needed or not whole


def judge(precision: str = "bf16", **more: Any) -> Strict:
    nothing = cast(Any, None)
    options = Options(precision=precision)
    failed = Verification("failed", "it was wrong", (), {}, 1e-2)
    more["verification"] = failed
    return Strict(nothing, cast(Any, Shop()), nothing, options, ("avx512",), **more)


@pytest.mark.parametrize("needed", range(1, 21))
def test_the_front_stays_exact_as_far_as_needed(needed: int) -> None:
    one = judge(needed=needed)
    (key,) = one._too_coarse()
    kept = int(key.split()[1])
    assert needed <= kept <= needed + 1
    assert one.asked <= 7
    places = f" in {kept} of 20 places" if kept < 20 else ""
    assert one.warnings == [f"without bf16-conv{places}: with all of it, it was wrong"]


def test_another_rule_where_the_first_is_not_to_blame() -> None:
    (key,) = judge(rule="bf16", needed=3)._too_coarse()
    assert key == "bf16 3"


def test_two_rules_where_neither_is_enough() -> None:
    one = judge(rule="bf16-conv", needed=6, too="bf16")
    assert one._too_coarse() == {"bf16 8", "bf16-conv 6"}
    assert one.warnings[0].startswith("without bf16, bf16-conv in 6 of 20 places: ")


def test_float32_where_integers_are_too_coarse_as_well() -> None:
    found = judge(rule="int16", needed=8, too="bf16-conv")._too_coarse()
    assert found == {"bf16 8", "bf16-conv 20", "int16 8"}


def test_nothing_where_no_rule_is_enough() -> None:
    assert not judge(needed=21)._too_coarse()
    assert not judge("fp32")._too_coarse()
