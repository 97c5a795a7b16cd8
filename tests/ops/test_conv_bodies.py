"""Bodies of convolutions, pools and moves, run by ONNX Runtime, are their references."""

from __future__ import annotations

import numpy as np
import pytest

from tests.convolutions import ALONE, CASES
from tests.graphs import relative_error, run_body
from tracea_graph.ir import DType, Extent, TensorSpec, evaluate
from tracea_graph.kernels.cpu.filters import (
    BLOCKED,
    INT16,
    LAYOUTS,
    NCHW32C,
    VNNI2,
    WINOGRAD2,
    WINOGRAD4,
    BlockedFilters,
    DepthwiseFilters,
    DispatchFilters,
    Int16Filters,
    LaneFilters,
    WinogradFilters,
)
from tracea_graph.kernels.cpu.panels import BF16_SINCE
from tracea_graph.kernels.cpu.winograd import transform_to_onnx
from tracea_graph.ops.bf16 import round_bf16
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.int16 import LIMIT, k_run_length
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.pool import PoolParams

OPSETS = (11, 13, 17, 18, 21)


@pytest.mark.parametrize("name", CASES)
def test_the_body_is_the_reference(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays()
    lower = any(s.dtype is DType.BF16 for s in case.specs)
    whole = any(s.dtype is DType.I16 for s in case.specs)
    for opset in OPSETS if name in ALONE else (11, 17):
        if lower and opset < BF16_SINCE:
            continue
        results = run_body(case.params.body(opset), arrays, opset)
        expected = case.params.reference([a.astype(np.float64) for a in arrays])
        for actual, want in zip(results, expected, strict=True):
            # bodies say nothing of how values between are rounded
            bound = 2e-2 if lower else 2e-3 if whole else 5e-6
            assert relative_error(actual, want) < bound


@pytest.mark.parametrize("name", CASES)
def test_the_shape_rule_is_the_reference_s(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays()
    specs = [TensorSpec(s.dtype, a.shape) for s, a in zip(case.specs, arrays, strict=True)]
    found = case.params.infer(specs)
    assert [s.shape for s in found] == [np.shape(r) for r in case.params.reference(arrays)]


@pytest.mark.parametrize(
    "name", sorted(n for n, layout in LAYOUTS.items() if not isinstance(layout, Int16Filters))
)
@pytest.mark.parametrize("shape", [(33, 20, 3, 5), (16, 16, 1, 1), (20, 7, 4)])
def test_filters_come_back_as_they_were(name: str, shape: tuple[int, ...]) -> None:
    layout = LAYOUTS[name]
    if name == "depthwise":
        shape = (shape[0], 1, *shape[2:])
    if name == "panels":
        shape = (*shape[:2], *(1 for _ in shape[2:]))
    if layout.direct:
        shape = (*shape[:2], 3, 3)
    if name == "nchw32c":
        shape = (shape[0], 64, *shape[2:])
    plain = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    if layout.rounds:
        plain = round_bf16(plain)
    (stored,) = layout.pack(plain)
    assert stored.shape == layout.shape(shape)
    again = layout.filters([stored], shape)
    if layout.direct:
        assert relative_error(again, plain) < (2e-2 if layout.rounds else 1e-6)
        return
    assert stored.sum(dtype=np.float64) == plain.sum(dtype=np.float64)
    assert np.array_equal(again, plain)


@pytest.mark.parametrize("layout", [INT16, Int16Filters(WINOGRAD2)], ids=lambda one: one.name)
def test_filters_in_integers_come_back_nearly_as_they_were(layout: Int16Filters) -> None:
    shape = (33, 20, 3, 3)
    plain = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    stored = layout.pack(plain)
    assert [a.dtype for a in stored] == [np.int16, np.float32]
    assert [a.shape for a in stored] == [dims for _, dims in layout.arrays(shape)]
    assert relative_error(layout.filters(stored, shape), plain) < 1e-3


def test_filters_that_cannot_be_stored_so_are_none() -> None:
    images = ConvWindow((3, 3), (2, 2), (1, 1), (1, 1, 1, 1))
    lines = ConvWindow((3, 3, 3), (1, 1, 1), (1, 1, 1), (1,) * 6)
    with pytest.raises(ValueError, match="Winograd needs 3x3 windows"):
        ConvParams(16, 16, images, layout=WINOGRAD4)
    with pytest.raises(ValueError, match="channels must be even"):
        ConvParams(19, 16, images, layout=VNNI2)
    with pytest.raises(ValueError, match="one or two axes"):
        ConvParams(16, 16, lines, layout=BLOCKED)
    with pytest.raises(ValueError, match="a multiple of 32"):
        ConvParams(48, 16, images, layout=NCHW32C)
    with pytest.raises(ValueError, match="only transformed filters"):
        ConvParams(16, 16, images, layout=DispatchFilters(VNNI2))
    with pytest.raises(ValueError, match="may be rounded"):
        ConvParams(16, 16, images, 16, DepthwiseFilters(rounded=True))


@pytest.mark.parametrize(("taps", "channels"), [(1, 2048), (9, 512), (25, 64)])
def test_sums_of_integers_fit_32_bits(taps: int, channels: int) -> None:
    """Whatever an image holds: filters of one sign, and of any size."""
    side = int(taps**0.5)
    rng = np.random.default_rng(taps)
    for spread in (0.0, 3.0):
        plain = np.exp(spread * rng.standard_normal((16, channels, side, side)))
        stored, _ = INT16.pack(plain.astype(np.float32))
        steps = np.abs(stored.astype(np.int64)).swapaxes(-1, -2).reshape(-1, 16)
        for start in range(0, len(steps), k_run_length(taps)):
            assert (LIMIT * steps[start : start + k_run_length(taps)].sum(0)).max() < 2**31


@pytest.mark.parametrize(
    "layout",
    [layout for layout in LAYOUTS.values() if isinstance(layout, BlockedFilters | LaneFilters)],
    ids=lambda one: one.name,
)
@pytest.mark.parametrize("opset", OPSETS)
def test_filters_are_packed_by_nodes_too(layout: BlockedFilters | LaneFilters, opset: int) -> None:
    kernel = () if layout.name == "panels" else (3, 4)
    shape = (33, 1 if layout.name == "depthwise" else 20, *(kernel or (1, 1)))
    plain = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    b = BodyBuilder(1, opset)
    (found,) = run_body(b.done(layout.packed_to_onnx(b, "i0", shape)), [plain], opset)
    assert np.array_equal(found, layout.pack(plain)[0])


@pytest.mark.parametrize("layout", [WINOGRAD2, WINOGRAD4], ids=lambda one: one.name)
def test_filters_are_transformed_by_nodes_too(layout: WinogradFilters) -> None:
    plain = np.random.default_rng(0).standard_normal((33, 20, 3, 3)).astype(np.float32)
    b = BodyBuilder(1, 17)
    body = b.done(transform_to_onnx(b, "i0", layout.tile, 33, 20))
    (found,) = run_body(body, [*BLOCKED.pack(plain)], 17)
    assert relative_error(found, layout.pack(plain)[0]) < 3e-7


def test_an_average_with_gaps() -> None:
    """Possible since opset 19."""
    params = PoolParams("average-inside", ConvWindow((2, 2), (1, 1), (2, 2), (0,) * 4))
    x = np.random.default_rng(0).standard_normal((1, 16, 5, 6)).astype(np.float32)
    (found,) = run_body(params.body(19), [x], 19)
    assert relative_error(found, params.reference([x])[0]) < 1e-6


@pytest.mark.parametrize("size", range(40))
def test_sizes_of_pools_behind_pools_stay_short(size: int) -> None:
    """A window that sticks out of one pixel counts as one: ``(size - 2) / 2 + 1`` towards zero."""
    pool = PoolParams("max", ConvWindow((2, 2), (2, 2), (1, 1), (0, 0, 0, 0)))
    found: Extent = "h"
    number = size
    for _ in range(5):
        (spec,) = pool.infer([TensorSpec(DType.F32, (1, 1, found, 8))])
        found, number = (spec.shape or ())[2], int((number - 2) / 2) + 1
        assert evaluate(found, {"h": size}) == number
    assert len(str(found)) < 200


@pytest.mark.parametrize("opset", [13, 17])
def test_as_many_positions_as_another_value_has(opset: int) -> None:
    """Of whole numbers: a table of places, up to the length of a sequence."""
    params = LayoutParams("first", (1,), 2, ("1.1",))
    table, like = np.arange(24, dtype=np.int64).reshape(2, 12), np.zeros((3, 7), np.int64)
    (found,) = run_body(params.body(opset), [table, like], opset)
    assert np.array_equal(found, params.reference([table, like])[0])
    assert np.array_equal(found, table[:, :7])
    specs = TensorSpec(DType.I64, (2, 12)), TensorSpec(DType.I64, ("batch", "length"))
    assert params.infer(specs) == (TensorSpec(DType.I64, (2, "length")),)
