"""Copies that one launch replaces, and those that it leaves alone, against NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.layout_op import LayoutParams

pytestmark = pytest.mark.compiler
CHANNELS_LAST, BACK = (
    LayoutParams("transpose", (0, 2, 3, 1)),
    LayoutParams("transpose", (0, 3, 1, 2)),
)


def concat(axis: int, parts: int) -> RegionParams:
    params = LayoutParams("concat", (axis,), parts)
    return RegionParams(parts, (RegionStep(params, tuple(range(parts))),), (parts,))


def pad(*sides: int, last: bool = False) -> RegionParams:
    """Padding by the sizes above, left, below and right; of channels-last images if ``last``."""
    step = LayoutParams("pad", (), 1, sides)
    if not last:
        return RegionParams(1, (RegionStep(step, (0,)),), (1,))
    steps = RegionStep(BACK, (0,)), RegionStep(step, (1,)), RegionStep(CHANNELS_LAST, (2,))
    return RegionParams(1, steps, (3,))


def ops(params: RegionParams, *shapes: Sequence[Extent]) -> list[str]:
    specs = [TensorSpec(DType.F32, tuple(shape)) for shape in shapes]
    sizes = {d: 3 for shape in shapes for d in shape if isinstance(d, str)}
    return [c.op for c in program_of(params, specs, DType.F32, sizes).calls]


@pytest.mark.parametrize(
    ("params", "shapes"),
    [
        (concat(1, 2), ((3, 5, 4, 7), (3, 2, 4, 7))),
        (concat(1, 2), ((1, 5, 4, 7), (1, 2, 4, 7))),
        (concat(3, 3), ((2, 3, 4, 7), (2, 3, 4, 1), (2, 3, 4, 6))),
        (concat(0, 2), ((2, 3, 4), (1, 3, 4))),
        (pad(1, 2, 0, 3), ((2, 3, 4, 5),)),
        (pad(0, 1, 0, 1), ((2, 3, 4, 5),)),
        (pad(2, 0, 1, 0), ((2, 3, 4, 5),)),
        (pad(-1, 2, 1, -2), ((2, 3, 4, 5),)),
    ],
    ids=str,
)
def test_one_launch_writes_all(params: RegionParams, shapes: Sequence[tuple[int, ...]]) -> None:
    arrays = [np.random.default_rng(i).standard_normal(s).astype(np.float32)
              for i, s in enumerate(shapes)]  # fmt: skip
    (want,) = params.reference(arrays)
    (got,) = run_program(params, arrays)
    np.testing.assert_array_equal(got, want)
    assert ops(params, *shapes) == ["concat"]


def test_channels_last_images_are_padded_at_once() -> None:
    assert "concat" in ops(pad(1, 2, 3, 4, last=True), (2, 5, 6, 7))


def test_batches_may_vary() -> None:
    assert ops(concat(1, 2), ("n", 5, 4, 7), ("n", 2, 4, 7)) == ["concat"]
    assert ops(pad(1, 1, 1, 1), ("n", 5, 4, 7)) == ["concat"]


def test_sizes_that_may_differ_are_copied_each() -> None:
    assert ops(concat(1, 2), ("n", 5, 4), ("m", 2, 4)) == ["copy", "copy"]


def test_rows_of_unknown_length_are_filled_and_copied() -> None:
    assert ops(pad(1, 1, 1, 1), (2, 3, "h", "w")) == ["elementwise", "copy"]


def test_many_parts_are_copied_each() -> None:
    assert ops(concat(1, 9), *[(3, 5, 7)] * 9) == ["copy"] * 9
