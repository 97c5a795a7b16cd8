"""Programs of products of sums of two numbers in bf16, and what NumPy makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from runtime.sparse_cases import SPARSE_CHAIN
from runtime.support import Case, dense, spec

from tracea_graph.ir import DType
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.gemm import GemmParams, pack_split
from tracea_graph.passes.lowering.lower import lower
from tracea_graph.ttg import Region, TileGraph

__all__ = ["bf16x2_cases"]

Array = npt.NDArray[Any]


def _random(*shape: int, seed: int) -> Array:
    return np.random.default_rng([*shape, seed]).standard_normal(shape).astype(np.float32)


def _case(
    name: str, m: int, k: int, n: int, chain: Chain | None = None, parts: tuple[int, ...] = ()
) -> Case:
    """The program the passes write for one product."""
    params = GemmParams(k, n, "split", True, chain, parts=parts)
    weight = pack_split(_random(k, n, seed=1))
    extras = [_random(m, n, seed=3), _random(n, seed=4)] if chain else []
    feeds = (_random(m, k, seed=0), weight, _random(n, seed=2), *extras)
    specs = [
        spec("m", k), spec(*weight.shape, dtype=DType.BF16), spec(n),
        *([spec("m", n), spec(n)] if chain else []),
    ]  # fmt: skip
    names, results = [f"o{i}" for i in range(len(specs))], params.infer(specs)
    made = tuple(f"r{i}" for i in range(len(results)))
    region = Region("region", "FusedGemm", tuple(names), made, (), params)
    graph = TileGraph([region], names, list(made), {}, dict(zip(names, specs, strict=True)))
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in feeds]
    expected = [y.astype(np.float64) for y in params.reference(wide)]
    return Case(f"bf16x2_{name}", lower(graph, region), feeds, tuple(expected))


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
