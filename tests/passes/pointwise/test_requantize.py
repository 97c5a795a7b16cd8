"""Shortened expressions give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tracea_graph.ir import DType
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.passes.pointwise.bound_expressions import inline_producer
from tracea_graph.passes.pointwise.requantize import shorten_requantization

X = np.concatenate(
    [np.linspace(-90, 90, 4001), [0.0, -0.0, 0.5, 1.5, np.inf, -np.inf, np.nan, 1e30]]
).astype(np.float32)


def there_and_back(zero: float, relu: bool = False, back: float | None = None) -> Chain:
    """x, perhaps above 0, rounded to integers and dequantized."""
    first = [Step("relu", (0,))] if relu else []
    at = len(first)
    steps = (
        *first, Step("div", (at, 0.3)), Step("round", (at + 1,)), Step("add", (at + 2, zero)),
        Step("saturate", (at + 3, 0.0, 255.0)),
        Step("sub", (at + 4, zero if back is None else back)), Step("mul", (at + 5, 0.3)),
    )  # fmt: skip
    return Chain(("full",), steps, (at + 6,))


@pytest.mark.parametrize(
    ("chain", "steps"),
    [
        (there_and_back(7.0), 4),
        (there_and_back(0.0), 4),
        (there_and_back(0.0, relu=True), 4),
        (there_and_back(7.0, relu=True), 5),
        (there_and_back(7.0, back=6.0), 6),
    ],
)
def test_fewer_steps_give_the_same_numbers(chain: Chain, steps: int) -> None:
    short = shorten_requantization(chain)
    assert len(short.steps) == steps
    np.testing.assert_array_equal(short.reference([X])[0], chain.reference([X])[0])


def test_zero_points_of_operands() -> None:
    chain = Chain(("full",), (Step("sub", (0, 0.0)), Step("mul", (1, 0.5))), (2,), (DType.U8,))
    assert [s.op for s in shorten_requantization(chain).steps] == ["mul"]
    added = Chain(("full",), (Step("add", (0, 0.0)), Step("mul", (1, 0.5))), (2,))
    assert shorten_requantization(added) is added  # it makes +0 of -0


def test_a_result_that_is_kept_stays_what_it_was() -> None:
    """Also where the chain behind it takes its zero point off, which makes a step needless."""
    quantize = (
        Step("div", (0, 0.5)), Step("round", (1,)), Step("add", (2, 3.0)),
        Step("saturate", (3, 0.0, 255.0)),
    )  # fmt: skip
    before = Chain(("full",), quantize, (4,), (), (DType.U8,))
    after = Chain(("full",), (Step("sub", (0, 3.0)), Step("mul", (1, 0.5))), (2,), (DType.U8,))
    joined = inline_producer((after, ("q",)), ("q",), (before, ("x",)), kept=(0,))
    assert joined is not None and joined[1] == ("x",)
    assert joined[0].result_types == (DType.F32, DType.U8)
    with np.errstate(invalid="ignore"):
        (kept,) = before.reference([X])
        number, same = joined[0].reference([X])
        np.testing.assert_array_equal(number, after.reference([kept])[0])
    np.testing.assert_array_equal(same, kept)


def test_equal_steps_are_one() -> None:
    """As where two operators dequantize the same integers, which a table can then replace."""
    steps = (
        Step("round", (0,)), Step("saturate", (1, -3.0, 252.0)), Step("sigmoid", (2,)),
        Step("saturate", (1, -3.0, 252.0)), Step("mul", (3, 4)),
    )  # fmt: skip
    chain = Chain(("full",), steps, (5,))
    short = shorten_requantization(chain)
    assert [step.op for step in short.steps] == ["round", "saturate", "sigmoid", "mul"]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(short.reference([X])[0], chain.reference([X])[0])
