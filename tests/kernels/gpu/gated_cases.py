"""Cases of two matmuls of which one multiplies the other's results, in one launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.kernels.gpu.cases import TOLERANCE, Case, Expected, Made, Maker, some, wide
from tests.kernels.gpu.machine import NUMPY, Memory
from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu.calls import CALLS, GATE_PARTS
from tracea_graph.ops.chain import Chain, Step

__all__ = ["CASES", "gated"]


def gated(
    dtype: DType, m: int, n: int, k: int, activation: str, layout: str = "nk", pad: int = 8,
    late: int = 0, whole: bool = False,
) -> Maker:  # fmt: skip
    """A gate of n columns; ``whole``: both matrices are halves of one.  Rows are apart."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, (m, k), dtype)
        shape = (2 * n, k) if layout == "nk" else (k, 2 * n)
        both = (some(rng, shape, DType.F32) / k**0.5).astype(NUMPY[dtype])
        halves = np.split(both, 2, axis=layout == "kn")
        if whole:
            view = memory.put(both, late, pad)
            dims, step = halves[0].shape, view.strides[int(layout == "kn")]
            w = replace(view, dims=dims)
            v = replace(w, offset=combine("add", view.offset, combine("mul", step, n)))
        else:
            w, v = (memory.put(np.ascontiguousarray(h), late, pad) for h in halves)
        y = memory.empty((m, n), NUMPY[dtype], late, pad)
        call = CALLS.make(
            "gated_gemm", dtype.short, x=memory.put(x, late, pad), w=w, v=v,
            gate=memory.empty((m, n), NUMPY[dtype]), y=y, part=GATE_PARTS[-1],
            activation=activation, layout=layout,
        )  # fmt: skip

        def expected() -> list[Expected]:
            own = Chain(("full",), (Step(activation, (0,)),), (1,))
            gate, product = (wide(x) @ wide(h.T if layout == "nk" else h) for h in halves)
            (value,) = own.reference([gate])
            return [Expected(y, value * product, TOLERANCE[dtype])]

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    needs, f16 = ("wgmma",), DType.F16
    wide_one, turns, one = "128x256x64x4x1", "128x128x64x6x2", "128x128x64x6x1"
    yield Case("gate silu", gated(f16, 150, 200, 136, "silu"), (wide_one, turns), needs)
    yield Case("gate gelu", gated(f16, 300, 104, 72, "gelu"), ("128x192x64x5x1", turns), needs)
    yield Case("gate bf16", gated(DType.BF16, 70, 328, 200, "silu", "kn", late=8),
               (wide_one, one), needs)  # fmt: skip
    yield Case("gate halves", gated(f16, 140, 136, 264, "silu", whole=True), (one,), needs)
    yield Case("gate halves kn", gated(f16, 140, 264, 72, "gelu_tanh", "kn", whole=True),
               (turns,), needs)  # fmt: skip


CASES = tuple(_cases())
