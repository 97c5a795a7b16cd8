"""Elementwise chains: every operation, every operand kind, special values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.conformance import (
    Array,
    ChainTile,
    Output,
    close,
    compile_chains,
    guarded,
    kernel,
)
from tests.steps import one_step, typed
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.ops.chain import ELEMENTARY, INTEGERS, Chain, Step

TABLES = (Path(__file__).parents[2] / "docs" / "verification.md").read_text(encoding="utf-8")


def stated(unit: str) -> dict[str, float]:
    """The bounds of the documentation's table in that unit, by step."""
    rows = TABLES.split(f"| step | {unit} |\n|---|---|\n")[1].split("\n\n")[0].splitlines()
    cells = [row.strip("| ").split(" | ") for row in rows]
    return {op: float(bound) for names, bound in cells for op in names.split(", ")}


ULPS = stated("ulp")
"""Largest error where the exact result is a normal number, in units of its last place."""

ABSOLUTE = stated("absolute")
"""Largest absolute error, for x < 12, of what is made to round as ONNX Runtime does."""

SIGNED_ZERO = ("floor", "ceil", "round", "sign", "sqrt", "leaky_relu", "softsign")
"""What keeps the sign of a zero as the reference does."""

STORED = {
    DType.BOOL: np.uint8, DType.I32: np.int32, DType.I64: np.int64, DType.U8: np.uint8,
    DType.I8: np.int8, DType.BF16: np.uint16,
}  # fmt: skip

EXPONENTS = (0.0, 0.5, 1.0, -0.5, -1.0, -2.0, 2.0, 3.0, 2.5, -7.0, np.inf)
PAIRS = [tuple(ELEMENTARY)[i : i + 2] for i in range(0, len(ELEMENTARY), 2)]
SHAPES = {"full": (True, True), "row": (False, True), "col": (True, False), "scalar": (False,) * 2}


@pytest.fixture(scope="module", autouse=True)
def compiled_at_once(request: pytest.FixtureRequest) -> None:
    """Compile the chains of all tests over many operations that will run, many at once."""
    made: dict[str, Callable[[Any], Chain]] = {
        "test_every_operation_over_its_range": lambda p: _side_by_side(map(one_step, p["ops"])),
        "test_special_values": lambda p: one_step(p["op"]),
        "test_powers_with_a_literal_exponent": lambda p: one_step("pow", p["exponent"]),
    }
    asked = [
        (made[item.originalname], item.callspec.params)
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function)
        and item.originalname in made
    ]  # fmt: skip
    compile_chains([emit_unit("chain", p["isa"], chain(p)) for chain, p in asked])


def evaluate(isa: str, chain: Chain, operands: list[Array], rows: int, cols: int) -> list[Array]:
    unit, (name,) = emit_unit("chain", isa, chain), symbols("chain", isa, chain)
    tile = ChainTile(rows=rows, cols=cols)
    inputs = [guarded(x) for x in operands]
    for i, (x, kind) in enumerate(zip(inputs, chain.operands, strict=True)):
        tile.inputs[i] = x.ctypes.data
        tile.in_stride[i] = x.shape[1] if SHAPES[kind][0] else 0
    kinds: list[Any] = [STORED.get(d, np.float32) for d in chain.result_types]
    outs = [Output(rows, cols, gap, kind) for gap, kind in enumerate(kinds)]
    for i, out in enumerate(outs):
        tile.out[i], tile.out_stride[i] = out.address, out.stride
    kernel(unit, name)(tile)
    for out in outs:
        out.check_canaries()
    return [out.view for out in outs]


def _grid() -> Array:
    """Every sign, magnitudes from 1e-20 to 90, dense where the functions bend."""
    fine = np.linspace(-10, 10, 60001)
    wide = np.concatenate([np.geomspace(1e-20, 85, 8001), -np.geomspace(1e-20, 85, 8001)])
    return np.concatenate([fine, wide]).astype(np.float32)[None]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.short)
def test_integers_are_read_and_stored(isa: str, dtype: DType) -> None:
    """Every tail length; halves to even, and clipped to the type's range."""
    kind = STORED[dtype]
    low, high = (0.0, 255.0) if dtype is DType.U8 else (-128.0, 127.0)
    steps = (Step("mul", (0, 0.5)), Step("add", (2, 1)), Step("round", (3,)))
    chain = Chain(
        ("full", "col"), (*steps, Step("clip", (4, low, high))), (5,), (dtype, dtype), (dtype,)
    )
    for cols in (1, 5, 8, 15, 16, 17, 33):
        x = np.arange(3 * cols).reshape(3, cols).astype(kind) * 5
        column = np.array([[1], [0], [100]], kind)
        (got,) = evaluate(isa, chain, [x, column], 3, cols)
        (want,) = chain.reference([x, column])
        assert got.dtype == kind
        np.testing.assert_array_equal(got, want)


BEYOND = np.array(
    [np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 3e9, -3e9, 2.0**31 - 128, 2.0**63,
     -(2.0**63), 2.0**63 - 2.0**39, 1e19, -0.0, -0.5, 0.5, 1.9, -1.9, 300, -129],
    np.float32,
)  # fmt: skip
"""Numbers that casts to integers leave in no range."""


@pytest.mark.parametrize("op,dtype", [("int32", DType.I32), ("int64", DType.I64)])
def test_casts_beyond_integers_give_the_lowest(isa: str, op: str, dtype: DType) -> None:
    """As the processor converts: also where the integer is a number again, and no zero is -0."""
    x = BEYOND[None]
    steps = (Step(op, (0,)), Step("reciprocal", (1,)))
    chain = Chain(("full",), steps, (1, 2), (), (dtype, DType.F32))
    stored, inverse = evaluate(isa, chain, [x], *x.shape)
    lowest = np.iinfo(STORED[dtype]).min
    inside = np.abs(x.astype(np.float64)) < -float(lowest)
    want = np.where(inside, np.trunc(np.where(inside, x, 0)).astype(STORED[dtype]), lowest)
    np.testing.assert_array_equal(stored, want)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(inverse, np.float32(1) / want.astype(np.float32), rtol=1e-6)


def test_what_saturates_makes_the_least_of_nan(isa: str) -> None:
    x = BEYOND[None]
    chain = Chain(("full",), (Step("saturate", (0, -128.0, 127.0)),), (1,), (), (DType.I8,))
    (got,) = evaluate(isa, chain, [x], *x.shape)
    whole = np.trunc(np.clip(np.nan_to_num(x, nan=-128.0), -128, 127))
    np.testing.assert_array_equal(got, whole.astype(np.int8))


def test_every_stated_bound_is_of_a_step_and_within_the_target() -> None:
    assert set(ULPS) | set(ABSOLUTE) <= set(ELEMENTARY)
    assert max(ULPS.values()) <= 4


@pytest.mark.parametrize("ops", PAIRS)
def test_every_operation_over_its_range(isa: str, ops: tuple[str, ...]) -> None:
    """Two in one kernel: most of the time goes to the compiler's start."""
    x = _grid()
    each = [one_step(op) for op in ops]
    given = [typed(one, [x, np.roll(x, 777), np.roll(x, 99)][: len(one.operands)]) for one in each]
    results = evaluate(isa, _side_by_side(each), list(itertools.chain(*given)), 1, x.shape[1])
    for op, one, operands, got in zip(ops, each, given, results, strict=True):
        with np.errstate(all="ignore"):
            (want,) = one.reference(
                [o.astype(np.float64) if o.dtype != bool else o for o in operands]
            )
        _check_over_range(op, operands[0], got, want)


def _side_by_side(each: Iterable[Chain]) -> Chain:
    """A chain of chains of one step, each with operands and a result of its own."""
    each, steps, begin = list(each), list[Step](), 0
    total = sum(len(one.operands) for one in each)
    for one in each:
        (step,) = one.steps
        own = (begin + a if isinstance(a, int) else a for a in step.args)
        steps.append(Step(step.op, tuple(own)))
        begin += len(one.operands)
    return Chain(
        ("full",) * total, tuple(steps), tuple(range(total, total + len(steps))),
        tuple(itertools.chain.from_iterable(one.operand_types for one in each)),
    )  # fmt: skip


def _check_over_range(op: str, x: Array, got: Array, want: Array) -> None:
    if op == "pow":
        want = np.where(np.abs(want) < 2.5e-38, 0, np.where(np.abs(want) > 3.4e38, np.inf, want))
        got = np.where(np.abs(got) < 2.5e-38, 0, got)
    close(got, want)
    if (bound := ABSOLUTE.get(op)) is not None:
        assert np.nanmax(np.abs(got - want)[x < 12]) <= bound
    if (limit := ULPS.get(op)) is not None:
        normal = (np.abs(want) > 1e-36) & (np.abs(want) < 3e38)
        step = np.spacing(np.abs(want[normal]).astype(np.float32))
        assert (np.abs(got[normal] - want[normal]) / step).max() <= limit


@pytest.mark.parametrize("op", ["silu", "gelu", "gelu_tanh"])
def test_results_in_bf16_may_be_rougher(isa: str, op: str) -> None:
    """By an eighth of what rounding puts them off."""
    x = np.concatenate([_grid(), np.array([[np.inf, 1e30, -1e30, 0.0, 3.9, -3.9]])], 1)
    x = x.astype(np.float32)
    chain = replace(one_step(op), stores=(DType.BF16,))
    (bits,) = evaluate(isa, chain, [x], 1, x.shape[1])
    got = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    with np.errstate(all="ignore"):
        (want,) = one_step(op).reference([x.astype(np.float64)])
    near = np.abs(want) * (2.0**-8 + 2.0**-11) + (2.5e-4 if op == "gelu" else 2e-8)
    with np.errstate(all="ignore"):
        assert (np.abs(got - want)[np.isfinite(want)] <= near[np.isfinite(want)]).all()
    assert got[0, -6] == np.inf
    nothing = evaluate(isa, chain, [np.full((1, 3), np.nan, np.float32)], 1, 3)[0]
    assert np.isnan((nothing.astype(np.uint32) << 16).view(np.float32)).all()


@pytest.mark.parametrize("op", ["silu", "gelu", "gelu_tanh"])
def test_results_of_rough_chains_may_be_as_rough(isa: str, op: str) -> None:
    """In float32 too, and only there."""
    x = _grid()
    (got,) = evaluate(isa, replace(one_step(op), fast_math=True), [x], 1, x.shape[1])
    (want,) = one_step(op).reference([x.astype(np.float64)])
    near = np.abs(want) * 2.0**-11 + (2.1e-4 if op == "gelu" else 2e-8)
    assert (np.abs(got - want) <= near).all()
    (exact,) = evaluate(isa, one_step(op), [x], 1, x.shape[1])
    assert np.abs(exact - want).max() < np.abs(got - want).max() / 10


@pytest.mark.parametrize("op", ELEMENTARY)
def test_special_values(isa: str, op: str) -> None:
    """NaN goes through; zeros, infinities and huge numbers give what NumPy gives in fp32."""
    special = np.array(
        [np.nan, -np.inf, np.inf, 0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 89.0, -104.0, 1e-40, -1e-40,
         0.5, -0.5, 1.5, 2.5, -3.0, 8388609.0],
        np.float32,
    )  # fmt: skip
    chain = one_step(op)
    pairs = list(itertools.product(special, repeat=len(chain.operands)))
    columns = [np.array(column, np.float32)[None] for column in zip(*pairs, strict=True)]
    operands = typed(chain, columns)
    (got,) = evaluate(isa, chain, operands, 1, len(pairs))
    with np.errstate(all="ignore"):
        (want,) = chain.reference(operands)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), str(operands))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=3e-38)
    if op in SIGNED_ZERO:
        np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers_with_a_literal_exponent(isa: str, exponent: float) -> None:
    special = [np.nan, -np.inf, np.inf, 0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-40, -2.5, 7.0]
    x = np.concatenate([np.array(special, np.float32), _grid()[0, ::7]])[None]
    (got,) = evaluate(isa, one_step("pow", exponent), [x], 1, x.shape[1])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        want = np.power(wide, np.full_like(wide, exponent)).astype(np.float32)
    small = np.abs(want) < 2.5e-38
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got[~small], want[~small], rtol=3e-7)
    assert (np.abs(got[small]) < 2.6e-38).all()


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_angles_of_any_size(isa: str, op: str) -> None:
    """Every exponent; the float32 numbers nearest to multiples of pi/2; both sides of 2^20."""
    bits = np.arange(0x3F000000, 0x7F800000, 40013, dtype=np.int64).astype(np.uint32)
    near = (np.arange(1, 20000) * (np.pi / 2)).astype(np.float32)
    edge = np.linspace(2.0**20 - 50, 2.0**20 + 50, 801, dtype=np.float32)
    x = np.concatenate([bits.view(np.float32), near, edge])
    x = np.concatenate([x, -x, np.array([np.inf, -np.inf, np.nan], np.float32)])[None]
    (got,) = evaluate(isa, one_step(op), [x], 1, x.shape[1])
    with np.errstate(invalid="ignore"):
        want = getattr(np, op)(x.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want)
    step = np.spacing(np.abs(want[finite]).astype(np.float32))
    assert (np.abs(got[finite] - want[finite]) / step).max() <= 1.8


MASKS = Chain(
    ("full", "full", "row", "col", "full"),
    (
        Step("and", (0, 3)),
        Step("less_equal", (1, 2)),
        Step("xor", (5, 6)),
        Step("where", (7, 1, 4)),
        Step("mul", (8, 2)),
    ),
    (7, 9),
    (DType.BOOL, DType.F32, DType.I32, DType.BOOL, DType.I64),
)


@pytest.mark.parametrize("cols", [1, 7, 8, 9, 15, 16, 17, 33])
def test_truth_values_and_integers(isa: str, cols: int) -> None:
    """Bytes and integers are read and written to the last element, and no further."""
    rng = np.random.default_rng(cols)
    for rows in (1, 3):
        operands = [
            rng.random((rows, cols)) > 0.5,
            rng.standard_normal((rows, cols), np.float32) * 3,
            rng.integers(-4, 4, (1, cols), np.int32),
            rng.random((rows, 1)) > 0.3,
            rng.integers(-(2**40), 2**40, (rows, cols), np.int64),
        ]
        got = evaluate(isa, MASKS, operands, rows, cols)
        for g, want in zip(got, MASKS.reference(operands), strict=True):
            np.testing.assert_array_equal(g, want)


@pytest.mark.parametrize(
    "kinds", [("full", "row"), ("row", "col"), ("col", "scalar"), ("scalar", "full")]
)
@pytest.mark.parametrize("cols", [1, 7, 8, 15, 16, 17, 47, 97])
def test_operand_kinds(isa: str, cols: int, kinds: tuple[str, str]) -> None:
    chain = Chain(kinds, (Step("mul", (0, 1.5)), Step("sub", (2, 1))), (3,))
    rng = np.random.default_rng(cols)
    for rows in (0, 1, 2, 5):
        operands = [
            rng.standard_normal((rows if tall else 1, cols if wide else 1), np.float32)
            for tall, wide in (SHAPES[kind] for kind in kinds)
        ]
        (got,) = evaluate(isa, chain, operands, rows, cols)
        want = operands[0] * np.float32(1.5) - operands[1]
        close(got, np.broadcast_to(want, (rows, cols)))


def test_two_results_and_a_literal_of_each_sort(isa: str) -> None:
    chain = Chain(
        ("full", "row"),
        (Step("add", (0, 1)), Step("max", (2, -0.5)), Step("min", (0.25, 3)), Step("gelu", (2,))),
        (4, 5),
    )
    rng = np.random.default_rng(5)
    operands = [rng.standard_normal((3, 33), np.float32), rng.standard_normal((1, 33), np.float32)]
    operands[0][1, 2] = np.nan
    for got, want in zip(
        evaluate(isa, chain, operands, 3, 33), chain.reference(operands), strict=True
    ):
        close(got, want)


def test_in_place(isa: str) -> None:
    chain = Chain(("full", "full"), (Step("add", (0, 1)), Step("relu", (2,))), (3,))
    x, y = np.random.default_rng(6).standard_normal((2, 4, 21), np.float32)
    want = np.maximum(x + y, 0)
    tile = ChainTile(rows=4, cols=21)
    tile.inputs[:2] = [x.ctypes.data, y.ctypes.data]
    tile.in_stride[:2] = [21, 21]
    tile.out[0], tile.out_stride[0] = x.ctypes.data, 21
    kernel(emit_unit("chain", isa, chain), symbols("chain", isa, chain)[0])(tile)
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("value", [1.0, 0.1, -1e30, 3.4028235e38, 1e39, -np.inf, 1e-45, np.nan])
def test_literals_are_exact(value: float) -> None:
    chain = Chain(("full",), (Step("add", (0, value)),), (1,))
    x = np.array([[0, -0.0]], np.float32)
    (got,) = evaluate("scalar", chain, [x], 1, 2)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x + np.float32(value))


def test_golden(golden: Callable[[str, str], None]) -> None:
    chain = Chain(
        ("full", "row", "full"),
        (Step("add", (0, 1)), Step("gelu", (3,)), Step("add", (4, 2))),
        (5,),
    )
    golden("chain_avx512.cpp", emit_unit("chain", "avx512", chain).text)
