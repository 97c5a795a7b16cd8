"""Functions of quantized numbers are looked up, exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.test_chain_kernel import evaluate
from tests.runtime.int8_cases import BYTES, TWICE, to_bytes
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.byte_lookup_tables import looked_up_rows, rounded_twice, with_tables
from tracea_graph.ops.chain import Chain, Step

QUANTIZED = (Step("div", (0, 0.05)), Step("round", (1,)), Step("saturate", (2, -118.0, 137.0)))
GELU = (Step("mul", (3, 0.05)), Step("gelu", (4,)), Step("div", (5, 0.03)), Step("round", (6,)))


def chain(dtype: DType, more: tuple[Step, ...] = GELU) -> Chain:
    low, high = (0.0, 255.0) if dtype is DType.U8 else (-128.0, 127.0)
    steps = (*QUANTIZED, *more, Step("add", (3 + len(more), 7.0)))
    count = len(steps)
    return Chain(
        ("full",), (*steps, Step("saturate", (count, low, high))), (count + 1,), (), (dtype,)
    )


@pytest.mark.parametrize("dtype", [DType.U8, DType.I8], ids=lambda d: d.short)
def test_tables_hold_what_the_steps_compute(isa: str, dtype: DType) -> None:
    whole = chain(dtype)
    assert with_tables(whole)[1]
    x = (np.arange(-200, 201) * np.float32(0.05)).astype(np.float32)
    x = np.concatenate([x, [np.nan, np.inf, -np.inf, 1e30, -1e30]]).astype(np.float32)[None]
    (got,), (want,) = evaluate(isa, whole, [x], *x.shape), whole.reference([x])
    np.testing.assert_array_equal(got, want)


def test_only_long_functions_of_one_value() -> None:
    short = (Step("mul", (3, 0.05)), Step("div", (4, 0.03)), Step("round", (5,)))
    assert not with_tables(chain(DType.U8, short))[1]
    two = (Step("mul", (3, 0.05)), Step("gelu", (4,)), Step("add", (5, 0)), Step("round", (6,)))
    assert not with_tables(chain(DType.U8, two))[1]
    kept, tables = with_tables(chain(DType.U8))
    assert [step.op for step in kept.steps] == ["div", "round", "saturate", "sub"]
    assert len(tables[0].values) == 256


def test_products_round_and_look_up_in_registers() -> None:
    twice, once, both = BYTES
    zero, how, table = rounded_twice(twice) or pytest.fail("not recognized")
    assert (zero, table) == (9, ()) and (how.low, how.high, how.times) == (-121.0, 134.0, 0.25)
    assert how.added_times + how.offset == pytest.approx(
        1 / np.float64(np.float32(0.3)), rel=1e-12
    )
    assert looked_up_rows(twice) is None and rounded_twice(once) is None
    zero, table = looked_up_rows(once) or pytest.fail("not recognized")
    assert zero == 100 and len(table) == 256
    assert rounded_twice(both) == (100, how, table) and looked_up_rows(both) is None


def test_other_bytes_take_a_chain() -> None:
    added_first = (
        Step("mul", (0, 1)), Step("add", (3, 2)), Step("round", (4,)),
        Step("saturate", (5, -120.0, 135.0)), Step("mul", (6, 0.25)), Step("div", (7, 0.3)),
        Step("round", (8,)),
    )  # fmt: skip
    for chain_of in (TWICE[:-1], (*TWICE[:4], Step("add", (1, 6)), *TWICE[5:]), added_first):
        assert rounded_twice(to_bytes(chain_of)) is None
    assert rounded_twice(replace(to_bytes(TWICE), operands=("full", "col", "row"))) is None


@pytest.mark.parametrize("dtype", [DType.U8, DType.I8], ids=lambda d: d.short)
@pytest.mark.parametrize("cols", [1, 15, 16, 33, 48, 64, 127, 528])
def test_bytes_of_all_widths_are_stored_in_order(isa: str, dtype: DType, cols: int) -> None:
    """A requantization: operands of every kind, bytes beyond both bounds, rows of any length."""
    low, high = (0.0, 255.0) if dtype is DType.U8 else (-128.0, 127.0)
    steps = (
        Step("mul", (0, 1)), Step("add", (5, 2)), Step("add", (6, 3)), Step("mul", (7, 4)),
        Step("div", (8, 0.37)), Step("round", (9,)), Step("add", (10, 3.0)),
        Step("saturate", (11, low, high)),
    )  # fmt: skip
    whole = Chain(
        ("full", "row", "full", "col", "scalar"), steps, (12,),
        (DType.F32, DType.F32, dtype, DType.F32, DType.F32), (dtype,),
    )  # fmt: skip
    rng, rows = np.random.default_rng(cols), 7
    operands = [
        rng.integers(-2000, 2000, (rows, cols)).astype(np.float32),
        rng.uniform(0.01, 0.02, (1, cols)).astype(np.float32),
        rng.integers(int(low), int(high), (rows, cols)).astype("u1" if low == 0 else "i1"),
        rng.integers(-9, 9, (rows, 1)).astype(np.float32),
        np.full((1, 1), 0.5, np.float32),
    ]
    operands[0][0, 0] = np.nan
    (got,), (want,) = evaluate(isa, whole, operands, rows, cols), whole.reference(operands)
    np.testing.assert_array_equal(got, want)
