"""Functions of quantized numbers are looked up, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.test_chain_kernel import evaluate
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.byte_lookup_tables import with_tables
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
