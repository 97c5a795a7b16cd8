"""Matmuls with 2:4 sparse matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.kernels.gpu.cases import (
    EPSILON,
    TOLERANCE,
    Case,
    Expected,
    Made,
    Maker,
    lying,
    normalised,
    part_sums,
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

__all__ = ["CASES", "NORMED", "pruned", "two_of_four"]

_TILES = "64x64x64x4", "128x128x64x4"
_WARPGROUPS = tuple(f"{m}x{n}x64x{stages}x1" for m, n, stages in TWO_OF_FOUR_TILES)
_RESIDUAL = Chain(
    ("full", "full", "col"), (Step("gelu", (0,)), Step("mul", (3, 2)), Step("add", (4, 1))), (5,),
    (DType.F32, DType.F16, DType.F32), (DType.F16,),
)  # fmt: skip
_GELU = Chain(("full",), (Step("gelu", (0,)),), (1,), (DType.F32,), (DType.F16,))
NORMED = Chain(
    ("full", "full", "col", "col", "row", "row"),
    (Step("sub", (1, 2)), Step("mul", (6, 3)), Step("mul", (7, 4)), Step("add", (8, 5)),
     Step("add", (9, 0))),
    (10,), (DType.F32, DType.F16, *(DType.F32,) * 4), (DType.F16,),
)  # fmt: skip
"""A residual that is the norm of rows, of which only the moments are in memory."""
_ADDED = Chain(
    ("full", "full"), (Step("add", (0, 1)),), (2,), (DType.F32, DType.F16), (DType.F16,)
)
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
    bias: bool = True, norm: str = "none", summed: tuple[int, int] = (0, 0),
) -> Maker:  # fmt: skip
    """Rows of x and y perhaps start ``late`` and lie ``pad`` numbers apart.  ``summed`` are the
    numbers of parts of rows of x and of y whose sums are read, and are written."""
    own = {"f16": DType.F16, "bf16": DType.BF16}[dtype]

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, w = some(rng, (m, k), own), pruned(rng, k, n)
        if norm != "none":
            x = (wide(x) * 3 + rng.standard_normal((m, 1))).astype(x.dtype)
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
        right, named = TWO_OF_FOUR.matrix([wide(held), positions], k, n), dict[str, Any]()
        if norm != "none":
            named = {"norm": norm, "epsilon": EPSILON}
            named |= {one: memory.empty((m,), np.float32) for one in ("mean", "inverse")}
        if norm == "layer":
            named["column_sums"] = memory.put(right.sum(0).astype(np.float32))
        if summed[0]:
            named["x_sums"] = memory.put(part_sums(wide(x), summed[0]).astype(np.float32))
        if summed[1]:
            named["y_sums"] = memory.empty((m, summed[1], 2), np.float32)
        call = CALLS.make(
            "gemm_two_of_four", dtype, x=memory.put(x, late, pad + late), values=memory.put(held),
            positions=memory.put(positions), bias=None if b is None else memory.put(b),
            inputs=[repeated(memory.put(one), (m, n)) for one in more], y=ys, chain=chain, **named,
        )  # fmt: skip

        def expected() -> list[Expected]:
            rows, moments = (wide(x), []) if norm == "none" else normalised(wide(x), norm)
            told = [Expected(named[one], value, 1e-5)
                    for one, value in zip(("mean", "inverse"), moments, strict=False)]  # fmt: skip
            sums = rows @ right + (0 if b is None else b)
            results = chain.reference([sums, *map(wide, more)]) if chain else [sums]
            if summed[1]:
                parts = part_sums(results[0], summed[1])
                told.append(Expected(named["y_sums"], parts, TOLERANCE[kinds[0]]))
            share = [max(TOLERANCE[kind], 1e-3 * (kind is not DType.F32) + 1e-5) for kind in kinds]
            return [*told, *(Expected(*one) for one in zip(ys, results, share, strict=True))]

        return call, expected

    return make


def scaled(dtype: str, k: int, n: int) -> Maker:
    """A matrix whose rows are multiplied by numbers."""
    own = {"f16": DType.F16, "bf16": DType.BF16}[dtype]

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        values, positions = TWO_OF_FOUR.packed(pruned(rng, k, n))
        held, gamma = values.astype(NUMPY[own]), rng.standard_normal(k).astype(np.float32)
        y = memory.empty(held.shape, NUMPY[own])
        call = CALLS.make(
            "scaled_two_of_four", dtype, values=memory.put(held), positions=memory.put(positions),
            gamma=memory.put(gamma), y=y,
        )  # fmt: skip

        def expected() -> list[Expected]:
            right = TWO_OF_FOUR.matrix([wide(held), positions], k, n) * gamma[:, None]
            steps = TWO_OF_FOUR.matrix(
                [np.arange(1.0, held.size + 1).reshape(held.shape), positions], k, n
            )
            made = np.zeros(held.size)
            made[steps[steps > 0].astype(np.int64) - 1] = right[steps > 0]
            return [Expected(y, made.reshape(held.shape), TOLERANCE[own])]

        return call, expected

    return make


def _normed() -> Iterator[Case]:
    """Norms of the rows of x, rows that are summed, and a residual that is a norm of its own."""
    for kind in ("layer", "rms"):
        for dtype in ("f16", "bf16"):
            made = two_of_four(dtype, 300, 256, 320, norm=kind, summed=(5, 0))
            yield Case(f"wg two of four {dtype} {kind}", made, _WARPGROUPS, ("wgmma",))
        made = two_of_four("f16", 70, 136, 320, norm=kind)
        yield Case(f"two of four {kind}", made, _TILES, ("sparse",))
    made = two_of_four("f16", 270, 256, 128, _GELU, norm="layer", summed=(1, 0))
    yield Case("wg two of four layer gelu", made, _WARPGROUPS, ("wgmma",))
    made = two_of_four("f16", 270, 136, 192, _WIDE, norm="layer", summed=(8, 0))
    yield Case("wg two of four layer wide", made, _WARPGROUPS, ("wgmma",))
    for (m, n, stages), tile in zip(TWO_OF_FOUR_TILES, _WARPGROUPS, strict=True):
        made = two_of_four("f16", m + 130, 512, 192, NORMED, summed=(0, 512 // n))
        yield Case(f"wg two of four summed {stages}", made, (tile,), ("wgmma",))
        made = two_of_four("bf16", 390, 2 * n, 64, bias=False, norm="layer", summed=(2, 2))
        yield Case("wg two of four summed layer", made, (tile,), ("wgmma",))
        made = two_of_four("f16", 400, 512, 128, _ADDED, summed=(0, 512 // n))
        yield Case("wg two of four summed residual", made, (tile,), ("wgmma",))
        made = two_of_four("f16", 520, 1024, 64, NORMED, summed=(0, 1024 // n))
        yield Case("wg two of four summed rounds", made, (tile,), ("wgmma",))
    for dtype in ("f16", "bf16"):
        needs = ("bf16",) if dtype == "bf16" else ()
        yield Case(f"scaled two of four {dtype}", scaled(dtype, 192, 200), ("256x8",), needs)


def _cases() -> Iterator[Case]:
    yield from _normed()
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
