"""Parts of concatenations that are stored where they are read, against NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Array
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.concat import ConcatParams, ConcatPart
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.pool import PoolParams

pytestmark = pytest.mark.compiler
POINT = ConvWindow((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
AROUND = ConvWindow((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
HALF = ConvWindow((2, 2), (2, 2), (1, 1), (0, 0, 0, 0))
PART = ElementwiseParams(Chain(("full",), (), (0,)))
DOUBLED = ElementwiseParams(Chain(("full",), (Step("mul", (0, 2.0)),), (1,)))
SUM = ElementwiseParams(Chain(("full", "full"), (Step("add", (0, 1)),), (2,)))
SIDE = 12
TWICE = IndexMap((ViewMove("unsqueeze", (3, 5)), ViewMove("expand", (1, 1, 1, 2, 1, 2))))
RESIZED = ElementwiseParams(PART.chain, (TWICE,), (2, 16, SIDE, SIDE))
SPREAD = LayoutParams("spread", (2, 2))
"""Four channels become the pixels of one."""


def joined(*parts: int) -> RegionStep:
    own = tuple(ConcatPart(PART, (i,)) for i in range(len(parts)))
    return RegionStep(ConcatParams(1, own), parts)


def network(inputs: int, *steps: RegionStep) -> RegionParams:
    made = tuple(replace(step, narrow="f16") for step in steps)
    return RegionParams(inputs, made, (inputs + len(steps) - 1,))


def two_scales(larger: ElementwiseParams | LayoutParams, made: int) -> RegionParams:
    """What the first convolution makes is pooled, doubled, and joined to what gets larger."""
    return network(
        4,
        RegionStep(ConvParams(8, 8, AROUND), (0, 1)),
        RegionStep(PoolParams("max", HALF), (4,)),
        RegionStep(ConvParams(8, made, AROUND), (5, 2)),
        RegionStep(larger, (6,)),
        joined(7, 4),
        RegionStep(ConvParams(24, 8, AROUND), (8, 3)),
        RegionStep(DOUBLED, (4,)),
        RegionStep(SUM, (9, 10)),
    )


def halves_of_channels(first: int) -> RegionParams:
    """One half of a convolution's channels is read again, and both are joined to that result.

    Of the halves, number ``first`` comes first.
    """
    parts = (4, 3) if first else (3, 4)
    return network(
        3,
        RegionStep(ConvParams(8, 16, POINT), (0, 1)),
        RegionStep(LayoutParams("channels", (0, 8)), (3,)),
        RegionStep(LayoutParams("channels", (8, 16)), (3,)),
        RegionStep(ConvParams(8, 8, AROUND), (5, 2)),
        joined(*(i + 1 for i in parts), 6),
        RegionStep(PoolParams("max", HALF), (7,)),
    )


def weights(*shapes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return ((2, 8, SIDE, SIDE), *shapes)


NETWORKS = {
    "resized": (two_scales(RESIZED, 16), weights((8, 8, 3, 3), (16, 8, 3, 3), (8, 24, 3, 3)), 1),
    "spread": (two_scales(SPREAD, 64), weights((8, 8, 3, 3), (64, 8, 3, 3), (8, 24, 3, 3)), 1),
    "halves": (halves_of_channels(0), weights((16, 8, 1, 1), (8, 8, 3, 3)), 0),
    "halves in turn": (halves_of_channels(1), weights((16, 8, 1, 1), (8, 8, 3, 3)), 2),
}
"""Networks, the shapes that they read, and the copies that are left of them."""


LIKELY = {"n": 2, "h": SIDE, "w": SIDE}


def copies(params: RegionParams, shapes: Sequence[tuple[Extent, ...]]) -> list[Call]:
    specs = [TensorSpec(DType.F32, s) for s in shapes]
    return [c for c in program_of(params, specs, DType.F16, LIKELY).calls if c.op == "copy"]


@pytest.mark.parametrize("name", NETWORKS)
def test_parts_are_stored_where_they_are_read(name: str) -> None:
    params, shapes, left = NETWORKS[name]
    rng = np.random.default_rng(0)
    arrays: list[Array] = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    arrays[1:] = [a / np.sqrt(a[0].size).astype(np.float32) for a in arrays[1:]]
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays)
    most = 4 * TOLERANCE[DType.F16] * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=most)
    assert len(copies(params, shapes)) == left


def test_sizes_may_vary() -> None:
    params, (_, *shapes), left = NETWORKS["halves"]
    assert len(copies(params, [("n", 8, "h", "w"), *shapes])) == left


def test_columns_that_are_not_aligned_are_copied_together() -> None:
    params = network(
        3,
        RegionStep(ConvParams(8, 12, POINT), (0, 1)),
        RegionStep(ConvParams(8, 16, POINT), (0, 2)),
        joined(3, 4),
        RegionStep(PoolParams("max", HALF), (5,)),
    )
    specs = [TensorSpec(DType.F32, s) for s in weights((12, 8, 1, 1), (16, 8, 1, 1))]
    made = [c.op for c in program_of(params, specs, DType.F16, LIKELY).calls]
    assert made.count("concat") == 1
    assert "copy" not in made
