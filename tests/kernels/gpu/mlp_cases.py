"""Cases of two matmuls behind a norm in one launch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.gpu.cases import EPSILON, TOLERANCE, Case, Expected, Made, Maker, some, wide
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.row_mlp import GROUP
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import Chain, Step

__all__ = ["CASES", "mlp", "residual"]

_SCALED_SUM = (Step("mul", (0, 1)), Step("add", (3, 2)))


def residual(dtype: DType) -> Chain:
    """ConvNeXt's: a factor of each column, and the rows from before the block."""
    return Chain(("full", "row", "full"), _SCALED_SUM, (4,), (DType.F32, DType.F32, dtype),
                 (dtype,))  # fmt: skip


def plain(dtype: DType) -> Chain:
    return Chain(("full",), (), (0,), (DType.F32,), (dtype,))


def _turned(w: Array, axis: int) -> Array:
    """Return a weight whose columns or rows are in the order of fragments."""
    cut = (*w.shape[:axis], w.shape[axis] // GROUP, 4, 4, 2, *w.shape[axis + 1 :])
    return np.ascontiguousarray(w.reshape(cut).swapaxes(axis + 1, axis + 2).reshape(w.shape))


def mlp(
    dtype: DType, rows: int, sizes: tuple[int, int, int], activation: str, chain: Chain,
    pad: int = 0, late: int = 0,
) -> Maker:  # fmt: skip
    """``sizes`` are the columns of x, hidden columns and the columns of y; rows are apart."""
    depth, hidden, columns = sizes

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = (some(rng, (rows, depth), dtype) * 2 + 1).astype(NUMPY[dtype])
        w1 = (some(rng, (hidden, depth), DType.F32) / depth**0.5).astype(NUMPY[dtype])
        w2 = (some(rng, (columns, hidden), DType.F32) / hidden**0.5).astype(NUMPY[dtype])
        gamma, beta, bias1, bias2 = (
            some(rng, (n,), DType.F32) for n in (depth, depth, hidden, columns)
        )
        given, views = list[Array](), list[View]()
        for kind, own in zip(chain.operands[1:], chain.operand_types[1:], strict=True):
            given.append(some(rng, (1 if kind == "row" else rows, columns), own))
            view = memory.put(given[-1], late, 0 if kind == "row" else pad)
            views.append(view.stretched((rows, columns)))
        y = memory.empty((rows, columns), NUMPY[dtype], late, pad)
        call = CALLS.make(
            "mlp", dtype.short, x=memory.put(x, late, pad), gamma=memory.put(gamma),
            beta=memory.put(beta), w1=memory.put(w1), bias1=memory.put(bias1),
            w2=memory.put(w2), bias2=memory.put(bias2), turned1=memory.put(_turned(w1, 1)),
            turned2=memory.put(_turned(w2, 0)), inputs=views,
            normed=memory.empty((rows, depth), NUMPY[dtype]),
            hidden=memory.empty((rows, hidden), NUMPY[dtype]), y=[y], part="down",
            activation=activation, epsilon=EPSILON, chain=chain,
        )  # fmt: skip

        def expected() -> list[Expected]:
            seen = wide(x)
            normed = seen - seen.mean(1, keepdims=True)
            normed *= gamma / np.sqrt((normed**2).mean(1, keepdims=True) + EPSILON)
            own = Chain(("full",), (Step(activation, (0,)),), (1,))
            (between,) = own.reference([(normed + beta) @ wide(w1).T + bias1])
            sums = between @ wide(w2).T + bias2
            (value,) = chain.reference([sums, *map(wide, given)])
            return [Expected(y, value, TOLERANCE[dtype])]

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    needs = ("wgmma",)
    for name, dtype, rows, sizes, activation, chain, tiles in (
        ("residual", DType.F16, 470, (96, 192, 96), "gelu", residual(DType.F16),
         ("192x1", "128x1")),
        ("plain", DType.F16, 65, (64, 64, 32), "relu", plain(DType.F16), ("192x1",)),
        ("bf16", DType.BF16, 200, (32, 128, 64), "gelu_tanh", residual(DType.BF16), ("192x1",)),
        ("one row", DType.F16, 1, (96, 128, 96), "silu", plain(DType.F16), ("192x1",)),
        ("streamed", DType.F16, 300, (192, 384, 192), "gelu", residual(DType.F16), ("128x2",)),
        ("streamed bf16", DType.BF16, 70, (192, 448, 160), "relu", plain(DType.BF16),
         ("128x2",)),
    ):  # fmt: skip
        made = mlp(dtype, rows, sizes, activation, chain, pad=8, late=8)
        yield Case(f"mlp {name}", made, tiles, needs)


CASES = tuple(_cases())
