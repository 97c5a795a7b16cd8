"""Products with codes of few bits, and what NumPy makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.runtime.support import Case, normal, operator_case, spec
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.nbits_panels import NBitsPanels, pack_codes, pack_nbits_scales
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.quantized_embedding import QuantizedEmbeddingParams

__all__ = ["NBITS_CHAINS", "drawn_matrix", "nbits_cases"]

Array = npt.NDArray[Any]
GATE = Chain(
    ("full", "full"), (Step("sigmoid", (0,)), Step("mul", (0, 2)), Step("mul", (3, 1))), (4,)
)
NBITS_CHAINS = (GATE,)


def drawn_matrix(layout: NBitsPanels, k: int, n: int, seed: int = 0) -> tuple[Array, Array]:
    """Random codes, scales of both signs and zero points, packed."""
    rng, blocks = np.random.default_rng([k, n, layout.bits, seed]), layout.blocks(k)
    codes = rng.integers(0, 2**layout.bits, (blocks * layout.block, n), np.uint8)
    own = rng.integers(0, 2**layout.bits, (blocks, n), np.uint8)
    scales = (rng.uniform(0.5, 1.5, (blocks, n)) / layout.middle).astype(np.float32)
    scales *= rng.choice(np.float32([-1, 1]), (blocks, n))
    zeros = own + (np.float32(0.3) if layout.zeros == "float" else np.float32(0))
    integers = own if layout.zeros == "integer" else None
    packed = pack_codes(layout, codes, integers, k)
    return packed, pack_nbits_scales(layout, scales, zeros.astype(np.float32))


def nbits_case(
    m: int, k: int, n: int, layout: NBitsPanels, bias: bool = False, chain: Chain | None = None,
    parts: tuple[int, ...] = (), x: Array | None = None, word: str = "",
) -> Case:  # fmt: skip
    """The program the passes write for one product with codes."""
    params = GemmParams(k, n, layout, bias, chain, splits=parts)
    codes, scales = drawn_matrix(layout, k, n)
    rows = normal(m, k, seed=1) if x is None else x
    beside = [*([normal(n, seed=2)] if bias else []), *([normal(m, n, seed=3)] if chain else [])]
    shapes = [*([spec(n)] if bias else []), *([spec("m", n)] if chain else [])]
    specs = [spec("m", k), spec(*codes.shape, dtype=DType.U8), spec(*scales.shape), *shapes]
    words = [f"{layout.bits}", f"{layout.block}", layout.zeros, "int8" * layout.int8_rows]
    words += ["bias" * bias, "chain" if chain else "", "parts" if parts else "", word]
    name = "_".join(("nbits", f"{m}x{k}x{n}", *filter(None, words)))
    return operator_case(name, "FusedGemm", params, specs, (rows, codes, scales, *beside))


def table_case(layout: NBitsPanels, ids: Array, error: str = "") -> Case:
    """Rows of a table, which are columns of the matrix."""
    params = QuantizedEmbeddingParams(70, 40, layout)
    codes, scales = drawn_matrix(layout, 70, 40)
    kind = DType.I64 if ids.dtype == np.int64 else DType.I32
    specs = [
        spec(*codes.shape, dtype=DType.U8), spec(*scales.shape),
        spec(*("r", *ids.shape[1:]), dtype=kind),
    ]  # fmt: skip
    name = f"table_{layout.bits}_{layout.zeros}_{kind.short}{'_outside' if error else ''}"
    feeds = codes, scales, ids
    known = feeds if not error else (codes, scales, np.zeros_like(ids))
    case = operator_case(name, "FusedQuantizedEmbedding", params, specs, feeds, known)
    return replace(case, expected=(), error=error) if error else case


def _odd_rows(value: float) -> Array:
    x = normal(2, 96, seed=5)
    x[1, 40] = value
    return x


def nbits_cases() -> tuple[Case, ...]:
    four, eight = NBitsPanels(4, 32), NBitsPanels(8, 16, "integer", True)
    shapes = ((1, 1, 1), (1, 300, 97), (3, 260, 33), (7, 64, 16), (40, 515, 200))
    kinds = ("middle", "integer", "float")
    return (
        *(
            nbits_case(m, k, n, NBitsPanels(bits, block, kinds[(bits + m) % 3], int8))
            for (m, k, n), bits, block in zip(
                shapes, (4, 2, 4, 8, 4), (16, 64, 32, 128, 256), strict=True
            )
            for int8 in (False, True)
        ),
        nbits_case(1, 512, 144, four, bias=True, chain=GATE),
        nbits_case(40, 2200, 144, four, bias=True, chain=GATE),
        nbits_case(130, 200, 160, eight, parts=(96, 48, 16)),
        nbits_case(1, 200, 160, NBitsPanels(2, 32, "integer"), parts=(96, 48, 16)),
        nbits_case(5, 3000, 48, NBitsPanels(8, 3008), word="one_block"),
        nbits_case(2, 96, 40, four, x=np.zeros((2, 96), np.float32), word="zero"),
        nbits_case(2, 96, 40, four, x=_odd_rows(np.inf), word="infinite"),
        nbits_case(2, 96, 40, four, x=_odd_rows(np.nan), word="nan"),
        table_case(NBitsPanels(4, 32), np.array([[0, 39, 17], [-1, 16, -40]])),
        table_case(NBitsPanels(2, 16, "float"), np.array([3, 15, 39], np.int32)),
        table_case(NBitsPanels(8, 80, "integer"), np.arange(-40, 40)),
        table_case(four, np.array([5, 40]), "The id 40 is outside a table of 40 rows."),
    )
