"""Programs of products of sums of two numbers in bf16, and what NumPy makes of them."""

from __future__ import annotations

from dataclasses import replace

from tests.runtime.sparse_cases import SPARSE_CHAIN
from tests.runtime.support import Case, bf16_product, dense, normal
from tracea_graph.kernels.cpu.panels import BF16X2, pack_bf16x2
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.gemm import GemmParams

__all__ = ["bf16x2_cases"]


def _case(
    name: str, m: int, k: int, n: int, chain: Chain | None = None, parts: tuple[int, ...] = ()
) -> Case:
    """The program the passes write for one product."""
    params = GemmParams(k, n, BF16X2, True, chain, splits=parts)
    return bf16_product(f"bf16x2_{name}", m, params, pack_bf16x2(normal(k, n, seed=1)))


def _with_half_turns(case: Case) -> Case:
    """The case with a plan whose panels end within a turn."""
    program = case.program
    *calls, product = program.calls
    x, w, *rest = product.views
    assert x is not None and w is not None
    views = (replace(x, dims=(x.dims[0], 96)), dense("input", 1, w.dims[0], 48, 16, 2), *rest)
    wrong = replace(program, calls=(*calls, replace(product, views=views)))
    return replace(
        case, name=f"{case.name}_half_turns", program=wrong, expected=(),
        error="views of a gemm do not fit together",
    )  # fmt: skip


def bf16x2_cases() -> tuple[Case, ...]:
    plain = _case("plain", 37, 64, 72)
    none = replace(
        plain, name="bf16x2_none", feeds=(plain.feeds[0][:0], *plain.feeds[1:]),
        expected=(plain.expected[0][:0],),
    )  # fmt: skip
    return (
        plain,
        none,
        _with_half_turns(plain),
        *(_case(f"{m}x{k}x{n}", m, k, n)
          for m, k, n in ((1, 1, 1), (3, 7, 33), (16, 300, 48), (130, 515, 97), (70, 9001, 40))),
        _case("chain", 37, 131, 72, SPARSE_CHAIN),
        _case("chain_wide", 70, 600, 200, SPARSE_CHAIN),
        _case("parts", 37, 24, 160, parts=(48, 16, 96)),
    )  # fmt: skip
