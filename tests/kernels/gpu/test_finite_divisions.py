"""Which divisions of epilogues of integers need no test of infinity."""

from __future__ import annotations

from dataclasses import replace

from tests.kernels.gpu.integer_cases import DIVIDED, REQUANTIZED
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.chain_parameters import chain_template_parameters
from tracea_graph.kernels.gpu.finite_divisions import finite_divisions
from tracea_graph.ops.chain import Chain, Step


def test_sums_of_integers_and_rows_are_finite() -> None:
    assert finite_divisions(DIVIDED) == {2}
    assert finite_divisions(REQUANTIZED) == set()
    made = chain_template_parameters(DIVIDED, near=True)
    assert made["bounded_rows"] and "divided_finite(" in made["steps"][2]
    made = chain_template_parameters(DIVIDED)
    assert not made["bounded_rows"] and "divided(" in made["steps"][2]


def test_matrices_of_floats_may_be_infinite() -> None:
    for dtype, found in ((DType.F32, set()), (DType.F16, set()), (DType.U8, {2})):
        chain = replace(DIVIDED, operands=("full", "full"), dtypes=(DType.F32, dtype))
        assert finite_divisions(chain) == found


def test_quotients_may_overflow() -> None:
    twice = (Step("mul", (0, 1)), Step("mul", (2, 1)), Step("div", (3, 3.0)), *DIVIDED.steps[3:])
    assert finite_divisions(replace(DIVIDED, steps=twice)) == set()
    tiny = tuple(Step("div", (3, 2.0**-63)) if s.op == "div" else s for s in DIVIDED.steps)
    assert finite_divisions(replace(DIVIDED, steps=tiny)) == set()


def test_rows_of_results_without_bounds_stay() -> None:
    chain = Chain(DIVIDED.operands, DIVIDED.steps[:3], (4,), DIVIDED.dtypes)
    assert finite_divisions(chain) == set()
    unknown = (*DIVIDED.steps[:2], Step("exp", (3,)), Step("div", (4, 3.0)), Step("round", (5,)),
               Step("saturate", (6, 0.0, 255.0)))  # fmt: skip
    assert finite_divisions(replace(DIVIDED, steps=unknown, results=(7,))) == set()
