"""Programs of products by the stored numbers of a matrix, and what NumPy makes of them in fp64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tests.runtime.sparse_cases import SPARSE_CHAIN, infinite
from tests.runtime.support import Case, dense, single, spec, strided
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.bitmap_sparse_format import pack_bitmap
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.panels import pack_panels
from tracea_graph.ops.bf16 import round_bf16
from tracea_graph.ops.chain import Chain

__all__ = ["bitmap_cases"]

Array = npt.NDArray[Any]
Change = Callable[[Array, Array], tuple[Array, Array]]


def masked_case(
    name: str,
    x: Array,
    density: float,
    n: int,
    chain: Chain | None = None,
    parts: Sequence[int] = (),
    in_bf16: bool = False,
    change: Change = lambda stored, words: (stored, words),
    error: str = "",
) -> Case:
    """``x`` times a matrix of which a share of the numbers is stored, anywhere; ``change`` makes
    others of the numbers and their map."""
    (m, k), chance = x.shape, np.random.default_rng(n)
    w = (chance.standard_normal((k, n)) * (chance.random((k, n)) < density)).astype(np.float32)
    w = round_bf16(w) if in_bf16 else w
    stored, words = change(*pack_bitmap(pack_panels(w)))
    b, full, row = (chance.standard_normal(s).astype(np.float32) for s in ((n,), (m, n), (n,)))
    kind, numbers = (DType.BF16, ml_dtypes.bfloat16) if in_bf16 else (DType.F32, np.float32)
    inputs = [
        spec("m", k), spec(len(stored), dtype=kind), spec(*words.shape, dtype=DType.I32), spec(n),
    ]  # fmt: skip
    feeds = [x, stored.astype(numbers), words, b]
    epilogue_inputs = []
    if chain:
        inputs += [spec("m", n), spec(n)]
        feeds += [full, row]
        epilogue_inputs = [dense("input", 4, "m", n), strided("input", 5, ("m", n), (0, 1))]
    widths = parts or (n,)
    views = (
        dense("input", 0, "m", k),
        dense("input", 1, len(stored)),
        dense("input", 3, n),
        dense("input", 2, *words.shape),
        *epilogue_inputs,
        *(dense("output", i, "m", width) for i, width in enumerate(widths)),
    )
    dtype = "bf16" if in_bf16 else "f32"
    call = CALLS.listed("gemm_bitmap", views, dtype, parts=len(widths), chain=chain)
    program = single(call, inputs, [spec("m", width) for width in widths], m=(0, 0))
    with np.errstate(invalid="ignore"):
        y = x.astype(np.float64) @ w.astype(np.float64) + b
    if chain:
        (y,) = chain.reference([y, full.astype(np.float64), row.astype(np.float64)])
    expected = tuple(np.split(y, np.cumsum(widths)[:-1], 1))
    return Case(name, program, tuple(feeds), () if error else expected, error)


def _other_bits(stored: Array, words: Array) -> tuple[Array, Array]:
    words[0, 1] ^= 1
    return stored, words


def _turned(stored: Array, words: Array) -> tuple[Array, Array]:
    words[[1, 2], 0] = words[[2, 1], 0]
    return stored, words


def _beyond(stored: Array, words: Array) -> tuple[Array, Array]:
    words[1:, 0] += 10_000
    return stored, words


def bitmap_cases() -> tuple[Case, ...]:
    chance = np.random.default_rng(1)

    def numbers(m: int, k: int) -> Array:
        return chance.standard_normal((m, k)).astype(np.float32)

    x = numbers(4, 70)
    unfit, unsorted = "does not fit the numbers stored", "does not say where panels begin"
    return (
        *(
            masked_case(f"masked_{m}x{n}x{k}{'_bf16' * half}", numbers(m, k), 0.3, n, in_bf16=half)
            for half in (False, True)
            for m, n, k in ((1, 33, 128), (3, 16, 31), (4, 700, 65), (9, 100, 130))
        ),
        masked_case("masked_zero", x, 0.0, 50),
        masked_case("masked_dense", x, 1.0, 50),
        masked_case("masked_chain", x, 0.4, 70, SPARSE_CHAIN),
        masked_case("masked_parts", x, 0.4, 70, parts=(3, 40, 27)),
        masked_case("masked_infinite", infinite(4, 70), 0.4, 50),
        masked_case("masked_other_bits", x, 0.4, 50, change=_other_bits, error=unfit),
        masked_case("masked_shorter", x, 0.4, 50, change=lambda s, w: (s[:-9], w), error=unfit),
        masked_case("masked_turned", x, 0.4, 50, change=_turned, error=unsorted),
        masked_case("masked_beyond", x, 0.4, 50, change=_beyond, error=unsorted),
    )
