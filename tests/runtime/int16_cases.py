"""Programs of products in 16-bit integers, and what NumPy makes of the rounded operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.runtime.sparse_cases import SPARSE_CHAIN
from tests.runtime.support import Case, dense, normal, operator_case, spec
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.panels import INT16, pack_int16
from tracea_graph.kernels.program import Program
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.gemm import GemmParams

__all__ = ["int16_cases"]

Array = npt.NDArray[Any]


def integers_case(
    name: str,
    m: int,
    k: int,
    n: int,
    chain: Chain | None = None,
    parts: tuple[int, ...] = (),
    spoilt: bool = False,
) -> Case:
    """The program the passes write for one product, its matrix in integers."""
    params = GemmParams(k, n, INT16, True, chain, splits=parts)
    x, (weight, scale) = normal(m, k, seed=0), pack_int16(normal(k, n, seed=1))
    if spoilt:
        x[1, 0], x[m - 1, k - 1] = np.nan, np.inf
    epilogue_inputs = [normal(m, n, seed=3), normal(n, seed=4)] if chain else []
    feeds = (x, weight, normal(n, seed=2), *epilogue_inputs, scale)
    specs = [
        spec("m", k), spec(*weight.shape, dtype=DType.I16), spec(n),
        *([spec("m", n), spec(n)] if chain else []), spec(len(scale)),
    ]  # fmt: skip
    # rounded in float32, as the kernel does
    operands = [x, *(a.astype(np.float64) if a.dtype == np.float32 else a for a in feeds[1:])]
    return operator_case(f"int16_{name}", "FusedGemm", params, specs, feeds, operands)


def _with_scales_of(case: Case, count: int) -> Case:
    """The case with a plan that reads another number of columns' scales."""
    program = case.program
    *calls, product = program.calls
    views = list(product.views)
    views[4] = dense("input", len(program.inputs) - 1, count)
    wrong = replace(program, calls=(*calls, replace(product, views=tuple(views))))
    assert isinstance(wrong, Program)
    return replace(
        case, name=f"{case.name}_{count}_scales", program=wrong, expected=(),
        error="views of a gemm do not fit together",
    )  # fmt: skip


def int16_cases() -> tuple[Case, ...]:
    plain = integers_case("plain", 37, 64, 72)
    none = replace(
        plain, name="int16_none", feeds=(plain.feeds[0][:0], *plain.feeds[1:]),
        expected=(plain.expected[0][:0],),
    )  # fmt: skip
    return (
        plain,
        none,
        _with_scales_of(plain, 79),
        *(integers_case(f"{m}x{k}x{n}", m, k, n)
          for m, k, n in ((1, 1, 1), (3, 7, 33), (16, 300, 48), (130, 515, 97), (70, 9001, 40))),
        integers_case("chain", 37, 131, 72, SPARSE_CHAIN),
        integers_case("chain_wide", 70, 600, 200, SPARSE_CHAIN),
        integers_case("parts", 37, 24, 160, parts=(48, 16, 96)),
        integers_case("spoilt", 5, 40, 33, spoilt=True),
    )  # fmt: skip
