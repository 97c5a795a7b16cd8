"""Chains mean the same as text, in NumPy and as ONNX nodes."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs import normal, relative_error, run_body
from tests.steps import one_step, typed
from tracea_graph.ir import DType, Expr, TensorSpec
from tracea_graph.ops.chain import ELEMENTARY, Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams, broadcast, is_clipped
from tracea_graph.ops.function_body import BodyBuilder

OPSETS = (11, 13, 17, 18, 21)
POSITIVE = ("sqrt", "log", "div", "reciprocal", "pow")


def operands(op: str, chain: Chain) -> list[np.ndarray]:
    arrays = [normal(3, 7, seed=i) for i in range(len(chain.operands))]
    if op in POSITIVE:
        arrays = [np.abs(a) + np.float32(0.1) for a in arrays]
    return typed(chain, arrays)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("op", ELEMENTARY)
def test_every_step_is_written_as_it_is_computed(op: str, opset: int) -> None:
    chain = one_step(op)
    arrays = operands(op, chain)
    body = ElementwiseParams(chain).body(opset)
    expected = chain.reference([a.astype(np.float64) if a.dtype != bool else a for a in arrays])
    for actual, want in zip(run_body(body, arrays, opset), expected, strict=True):
        assert relative_error(actual, want) < 2e-6


CHAINS = {
    "bias-relu": Chain(("full", "row"), (Step("add", (0, 1)), Step("relu", (2,))), (3,)),
    "scaled residual": Chain(
        ("full", "full"), (Step("mul", (0, 0.125)), Step("add", (2, 1))), (3,)
    ),
    "column factor": Chain(("full", "col"), (Step("mul", (0, 1)),), (2,)),
    "one number": Chain(("full", "scalar"), (Step("sub", (1, 0)), Step("neg", (2,))), (3,)),
    "two results": Chain(("full",), (Step("tanh", (0,)), Step("exp", (1,))), (1, 2)),
    "passes an operand on": Chain(("full", "full"), (Step("max", (0, 1)),), (1, 2)),
    "a gate": Chain(
        ("full", "row"),
        (Step("less", (0, 1)), Step("not", (2,)), Step("where", (3, 0, -1.0))),
        (4,),
    ),
    "the same literal twice": Chain(
        ("full",), (Step("add", (0, 2.0)), Step("mul", (2.0, 1))), (2,)
    ),
}
SHAPES = {"full": (4, 6), "row": (6,), "col": (4, 1), "scalar": (1,)}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_written_as_it_is_computed(name: str) -> None:
    chain = CHAINS[name]
    arrays = [normal(*SHAPES[k], seed=i) for i, k in enumerate(chain.operands)]
    params = ElementwiseParams(chain)
    expected = params.reference([a.astype(np.float64) for a in arrays])
    actual = run_body(params.body(17), arrays, 17)
    assert len(actual) == len(chain.results)
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < 2e-6


def test_a_literal_is_written_once() -> None:
    b = BodyBuilder(1, 17)
    CHAINS["the same literal twice"].to_onnx(b, b.inputs)
    assert [n.op for n in b.nodes].count("Constant") == 1


MASKED = Chain(
    ("full", "row", "scalar"),
    (Step("less", (1, 2)), Step("or", (0, 3)), Step("where", (4, 1, 0.0))),
    (4, 5),
    (DType.BOOL, DType.F32, DType.I64),
)


def test_operands_and_results_have_types() -> None:
    assert MASKED.result_types == (DType.BOOL, DType.F32)
    assert MASKED.text == "full:bool,row,scalar:i64|less(1,2);or(0,3);where(4,1,0.0)|4,5"
    specs = [TensorSpec(d, s) for d, s in zip(MASKED.dtypes, ((3, 4), (4,), ()), strict=True)]
    assert ElementwiseParams(MASKED).infer(specs) == (
        TensorSpec(DType.BOOL, (3, 4)),
        TensorSpec(DType.F32, (3, 4)),
    )


@pytest.mark.parametrize("opset", OPSETS)
def test_typed_operands_are_written_as_they_are_computed(opset: int) -> None:
    arrays = [normal(3, 4) > 0, normal(4, seed=1), np.array(0)]
    params = ElementwiseParams(MASKED)
    for actual, want in zip(
        run_body(params.body(opset), arrays, opset), params.reference(arrays), strict=True
    ):
        np.testing.assert_array_equal(actual, want)


def test_chains_of_float32_have_no_types() -> None:
    plain = Chain(("full",), (), (0,))
    assert Chain(("full",), (), (0,), (DType.F32,)) == plain and plain.dtypes == ()


def test_equal_chains_have_one_text_and_key() -> None:
    def chain(literal: float, kind: str = "row") -> Chain:
        return Chain(("full", kind), (Step("mul", (0, literal)), Step("add", (2, 1))), (3,))

    assert chain(0.5) == chain(0.5)
    assert chain(0.5).text == "full,row|mul(0,0.5);add(2,1)|3"
    assert chain(0.5).key == chain(0.5).key
    others = [chain(0.25), chain(0.5, "col"), CHAINS["bias-relu"]]
    assert len({chain(0.5).key, *(c.key for c in others)}) == 4
    assert all(0 < c.key < 2**62 for c in others)


def test_only_chains_with_a_cheaper_approximation_use_fast_math() -> None:
    silu = Chain(("full",), (Step("silu", (0,)),), (1,), fast_math=True)
    assert silu.text == "full|silu(0)|1|fast-math"
    assert silu.key != Chain(("full",), (Step("silu", (0,)),), (1,)).key
    relu = Chain(("full",), (Step("relu", (0,)),), (1,), fast_math=True)
    assert relu == Chain(("full",), (Step("relu", (0,)),), (1,))


def test_an_integer_refers_and_a_float_is_a_number() -> None:
    refers = Chain(("full", "full"), (Step("mul", (0, 1)),), (2,))
    number = Chain(("full", "full"), (Step("mul", (0, 1.0)),), (2,))
    x, y = normal(2, 2), normal(2, 2, seed=1)
    assert refers.key != number.key
    assert np.allclose(refers.reference([x, y])[0], x * y)
    assert np.allclose(number.reference([x, y])[0], x)


def test_the_cost_of_a_chain_is_its_steps() -> None:
    chain = CHAINS["bias-relu"]
    assert chain.flops == ELEMENTARY["add"].flops + ELEMENTARY["relu"].flops


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Step("add", (0,)), "add must have 2 arguments"),
        (lambda: Step("cosh", (0,)), "cosh"),
        (lambda: Chain(("full",) * 9, (), (0,)), "at most 8 operands"),
        (lambda: Chain(("full",), (), ()), "1 or 2 results"),
        (lambda: Step("elu", (0, 1)), "elu: the last 1 arguments must be literals"),
        (lambda: Chain(("full",), (Step("not", (0,)),), (1,)), "arguments of wrong types"),
        (
            lambda: Chain(("full",), (Step("exp", (0,)),), (1,), (DType.BOOL,)),
            "arguments of wrong types",
        ),
        (
            lambda: Chain(("full",), (), (0,), (DType.F64,)),
            "bool or a supported integer",
        ),
        (lambda: Chain(("full",), (), (0,), (DType.BOOL,) * 2), "one element type per operand"),
        (lambda: Chain(("full",), (), (0, 0, 0)), "1 or 2 results"),
        (lambda: Chain(("diagonal",), (), (0,)), "unknown operand kind"),
        (lambda: Chain(("full",), (Step("relu", (1,)),), (1,)), "reads a later value"),
        (lambda: Chain(("full",), (Step("relu", (-1,)),), (1,)), "reads a later value"),
        (lambda: Chain(("full",), (), (1,)), "a result is not a value of the chain"),
        (lambda: Chain(("full",), (), cast("Any", (0.0,))), "not a value of the chain"),
    ],
)
def test_impossible_chains_are_refused(make: object, reason: str) -> None:
    with pytest.raises((ValueError, KeyError), match=reason):
        make()  # type: ignore[operator]


# ---- broadcasting ------------------------------------------------------------------------

SMALL = st.lists(st.integers(1, 3), max_size=4).map(tuple)


@given(st.lists(SMALL, min_size=1, max_size=4))
def test_broadcast_agrees_with_numpy(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        assert broadcast(shapes) is None
    else:
        assert broadcast(shapes) == expected


def test_symbols_broadcast_only_where_they_provably_agree() -> None:
    assert broadcast([("b", "s", 8), (8,), (1, "s", 1)]) == ("b", "s", 8)
    assert broadcast([("b", 8), ("c", 8)]) is None
    assert broadcast([("b", 8), (2, 8)]) is None


def test_a_clipped_symbol_is_the_symbol() -> None:
    clipped = Expr("min", ("s", 512))
    assert is_clipped(clipped, "s") and not is_clipped(clipped, "b") and not is_clipped("s", "s")
    assert broadcast([("b", "s"), (1, clipped)]) == ("b", "s")
    assert broadcast([("b", "b"), (1, clipped)]) is None


def test_a_symbol_clipped_to_one_may_be_repeated() -> None:
    assert broadcast([("b", "s"), (1, Expr("min", ("s", 1)))]) is None
    assert broadcast([("b", "s"), (1, Expr("min", ("s", "b")))]) is None


def test_elementwise_shapes_that_stay_open_are_refused() -> None:
    params = ElementwiseParams(CHAINS["scaled residual"])
    known, other = TensorSpec(DType.F32, ("b", 4)), TensorSpec(DType.F32, ("c", 4))
    assert params.infer([known, known]) == (known,)
    for bad in (other, TensorSpec(DType.F32, None)):
        with pytest.raises(ValueError, match="cannot be proven to broadcast"):
            params.infer([known, bad])


def test_every_operand_is_read_in_a_type_of_its_own() -> None:
    """So many types as operands, even where each is the usual one."""
    chain = Chain(("full", "row"), (Step("add", (0, 1)),), (2,), (DType.F32, DType.I64))
    with pytest.raises(ValueError, match="one element type per operand"):
        dataclasses.replace(chain, operands=("full", "row", "row"))
    with pytest.raises(ValueError, match="one element type per operand"):
        dataclasses.replace(chain, dtypes=(DType.F32,))


def test_every_result_is_stored_in_a_type_of_its_own() -> None:
    """One more result than there are types to store them in is no chain."""
    chain = Chain(("full",), (Step("round", (0,)),), (1,), stores=(DType.I64,))
    with pytest.raises(ValueError, match="one element type per result"):
        dataclasses.replace(chain, results=(1, 0))
    both = dataclasses.replace(chain, results=(1, 0), stores=(DType.I64, DType.F32))
    assert both.result_types == (DType.I64, DType.F32)


@pytest.mark.parametrize("opset", OPSETS)
def test_halves_are_widened_and_rounded(opset: int) -> None:
    """fp16 comes in and goes out as Cast has it; what is too large is infinite."""
    steps = (Step("mul", (0, 1)), Step("add", (2, 0.1)))
    types = (DType.F16, DType.F32)
    chain = Chain(("full", "full"), steps, (3, 3), types, (DType.F16, DType.F32))
    arrays = [np.array([1, 3, 60000], np.float16), np.array([1.5, 1 / 3, 2], np.float32)]
    body = ElementwiseParams(chain).body(opset)
    got = run_body(body, arrays, opset)
    wanted = chain.reference([a.astype(np.float64) for a in arrays])
    assert got[0].dtype == np.float16 and np.isinf(got[0][2])
    assert np.array_equal(got[0].astype(np.float64), wanted[0])
    assert relative_error(got[1], wanted[1]) < 1e-6
    assert wanted[0][0] == np.float16(1.6) != wanted[1][0]


def test_halves_are_stored_from_numbers_alone() -> None:
    with pytest.raises(ValueError, match="a small float"):
        Chain(("full",), (Step("not", (0,)),), (1,), (DType.BOOL,), (DType.F16,))
