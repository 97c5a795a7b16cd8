"""Matmuls with 2:4 sparse matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.gpu.cases import (
    TOLERANCE,
    Case,
    Expected,
    Made,
    Maker,
    lying,
    repeated,
    some,
    wide,
)
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.tile_choice import TWO_OF_FOUR_TILES
from tracea_graph.kernels.gpu.two_of_four_storage import TWO_OF_FOUR
from tracea_graph.ops.chain import Chain, Step

__all__ = ["CASES", "pruned", "two_of_four"]

_TILES = "64x64x64x4", "128x128x64x4"
_WARPGROUPS = tuple(f"{m}x{n}x64x{stages}x1" for m, n, stages in TWO_OF_FOUR_TILES)
_RESIDUAL = Chain(
    ("full", "full", "col"), (Step("gelu", (0,)), Step("mul", (3, 2)), Step("add", (4, 1))), (5,),
    (DType.F32, DType.F16, DType.F32), (DType.F16,),
)  # fmt: skip
_WIDE = Chain(("full", "row"), (Step("add", (0, 1)),), (2, 0), (DType.F32, DType.F32),
              (DType.F32, DType.F32))  # fmt: skip


def pruned(rng: np.random.Generator, k: int, n: int) -> Array:
    """A matrix of which each four steps have at most two numbers: two, one or none."""
    groups = rng.standard_normal((n, k // 4, 4))
    order = np.argsort(rng.random(groups.shape), axis=2)
    counts = rng.choice([0, 1, 2, 2, 2, 2], (n, k // 4, 1))
    np.put_along_axis(
        groups, order, np.where(np.arange(4) < counts, np.take_along_axis(groups, order, 2), 0), 2
    )
    return np.ascontiguousarray(groups.reshape(n, k).T, np.float32)


def two_of_four(
    dtype: str, m: int, n: int, k: int, chain: Chain | None = None, late: int = 0, pad: int = 8,
    bias: bool = True,
) -> Maker:  # fmt: skip
    """Rows of x and y perhaps start ``late`` and lie ``pad`` numbers apart."""
    own = {"f16": DType.F16, "bf16": DType.BF16}[dtype]

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, w = some(rng, (m, k), own), pruned(rng, k, n)
        values, positions = TWO_OF_FOUR.packed(w)
        held = values.astype(NUMPY[own])
        b = rng.standard_normal(n).astype(np.float32) if bias else None
        more = list[Array]()
        if chain is not None:
            shapes = [lying(kind, (m, n)) for kind in chain.operands[1:]]
            pairs = zip(shapes, chain.operand_types[1:], strict=True)
            more = [some(rng, shape, kind) for shape, kind in pairs]
        kinds = chain.result_types if chain else (own,)
        ys = [memory.empty((m, n), NUMPY[kind], late, late) for kind in kinds]
        call = CALLS.make(
            "gemm_two_of_four", dtype, x=memory.put(x, late, pad + late), values=memory.put(held),
            positions=memory.put(positions), bias=None if b is None else memory.put(b),
            inputs=[repeated(memory.put(one), (m, n)) for one in more], y=ys, chain=chain,
        )  # fmt: skip

        def expected() -> list[Expected]:
            right = TWO_OF_FOUR.matrix([wide(held), positions], k, n)
            sums = wide(x) @ right + (0 if b is None else b)
            results = chain.reference([sums, *map(wide, more)]) if chain else [sums]
            return [Expected(y, value, max(TOLERANCE[kind], 1e-3 * (kind is not DType.F32) + 1e-5))
                    for y, value, kind in zip(ys, results, kinds, strict=True)]  # fmt: skip

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    for dtype in ("f16", "bf16"):
        yield Case(f"two of four {dtype}", two_of_four(dtype, 70, 136, 320), _TILES, ("sparse",))
        yield Case(
            f"wg two of four {dtype}", two_of_four(dtype, 300, 200, 320), _WARPGROUPS, ("wgmma",)
        )
    yield Case(
        "two of four residual",
        two_of_four("f16", 33, 130, 128, _RESIDUAL),
        _TILES[:1],
        ("sparse",),
    )
    yield Case(
        "two of four late", two_of_four("f16", 40, 70, 192, late=3), _TILES[:1], ("sparse",)
    )
    yield Case(
        "two of four one step", two_of_four("f16", 5, 65, 64, bias=False), _TILES, ("sparse",)
    )
    yield Case(
        "wg two of four residual",
        two_of_four("f16", 270, 130, 128, _RESIDUAL),
        _WARPGROUPS,
        ("wgmma",),
    )
    yield Case(
        "wg two of four wide", two_of_four("f16", 140, 136, 448, _WIDE), _WARPGROUPS, ("wgmma",)
    )
    yield Case(
        "wg two of four rounds",
        two_of_four("f16", 520, 1500, 128, bias=False),
        _WARPGROUPS,
        ("wgmma",),
    )
    yield Case(
        "wg two of four odd rows",
        two_of_four("f16", 130, 131, 64, late=0, pad=8),
        _WARPGROUPS[:1],
        ("wgmma",),
    )


CASES = tuple(_cases())
