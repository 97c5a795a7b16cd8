"""Bodies of convolutions, pools and moves, run by ONNX Runtime, are their references."""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import ALONE, CASES
from graphs import relative_error, run_body

from tracea_graph.ir import DType, Extent, TensorSpec, evaluate
from tracea_graph.kernels.cpu.panels import BF16_SINCE
from tracea_graph.ops.bf16 import round_bf16
from tracea_graph.ops.body import BodyBuilder
from tracea_graph.ops.filters import (
    IN_INT16,
    IN_PAIRS,
    LAYOUTS,
    WINOGRAD,
    pack_filters,
    pack_int16_filters,
    spell_packed,
    stored_shape,
    unpack_filters,
)
from tracea_graph.ops.int16 import LIMIT, run_of
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.windows import Window
from tracea_graph.ops.winograd import spell_transform

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


@pytest.mark.parametrize("layout", sorted({*LAYOUTS} - {*IN_INT16}))
@pytest.mark.parametrize("shape", [(33, 20, 3, 5), (16, 16, 1, 1), (20, 7, 4)])
def test_filters_come_back_as_they_were(layout: str, shape: tuple[int, ...]) -> None:
    if layout == "depthwise":
        shape = (shape[0], 1, *shape[2:])
    if layout == "panels":
        shape = (*shape[:2], *(1 for _ in shape[2:]))
    if layout in WINOGRAD:
        shape = (*shape[:2], 3, 3)
    if layout == "broad":
        shape = (shape[0], 64, *shape[2:])
    plain = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    if layout in IN_PAIRS:
        plain = round_bf16(plain)
    stored = pack_filters(plain, layout)
    assert stored.shape == stored_shape(layout, shape)
    if layout in WINOGRAD:
        bound = 2e-2 if layout in IN_PAIRS else 1e-6
        assert relative_error(unpack_filters(stored, layout, shape), plain) < bound
        return
    assert stored.sum(dtype=np.float64) == plain.sum(dtype=np.float64)
    assert np.array_equal(unpack_filters(stored, layout, shape), plain)


@pytest.mark.parametrize("layout", IN_INT16)
def test_filters_in_integers_come_back_nearly_as_they_were(layout: str) -> None:
    shape = (33, 20, 3, 3)
    plain = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    stored, scale = pack_int16_filters(plain, layout)
    assert stored.dtype == np.int16 and stored.shape == stored_shape(layout, shape)
    assert relative_error(unpack_filters(stored, layout, shape, scale), plain) < 1e-3


@pytest.mark.parametrize(("taps", "channels"), [(1, 2048), (9, 512), (25, 64)])
def test_sums_of_integers_fit_32_bits(taps: int, channels: int) -> None:
    """Whatever an image holds: filters of one sign, and of any size."""
    side = int(taps**0.5)
    rng = np.random.default_rng(taps)
    for spread in (0.0, 3.0):
        plain = np.exp(spread * rng.standard_normal((16, channels, side, side)))
        stored, _ = pack_int16_filters(plain.astype(np.float32), "int16")
        steps = np.abs(stored.astype(np.int64)).swapaxes(-1, -2).reshape(-1, 16)
        for start in range(0, len(steps), run_of(taps)):
            assert (LIMIT * steps[start : start + run_of(taps)].sum(0)).max() < 2**31


@pytest.mark.parametrize(
    "layout", sorted({*LAYOUTS} - {*WINOGRAD, *IN_PAIRS, *IN_INT16, "plain", "split"})
)
@pytest.mark.parametrize("opset", OPSETS)
def test_filters_are_packed_by_nodes_too(layout: str, opset: int) -> None:
    kernel = () if layout == "panels" else (3, 4)
    shape = (33, 1 if layout == "depthwise" else 20, *(kernel or (1, 1)))
    plain = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    b = BodyBuilder(1, opset)
    (found,) = run_body(b.done(spell_packed(b, "i0", layout, shape)), [plain], opset)
    assert np.array_equal(found, pack_filters(plain, layout))


@pytest.mark.parametrize("layout", sorted({*WINOGRAD} - {*IN_PAIRS, *IN_INT16}))
def test_filters_are_transformed_by_nodes_too(layout: str) -> None:
    plain = np.random.default_rng(0).standard_normal((33, 20, 3, 3)).astype(np.float32)
    b = BodyBuilder(1, 17)
    body = b.done(spell_transform(b, "i0", WINOGRAD[layout], 33, 20))
    (found,) = run_body(body, [pack_filters(plain, "blocked")], 17)
    assert relative_error(found, pack_filters(plain, layout)) < 3e-7


def test_an_average_with_gaps() -> None:
    """Possible since opset 19."""
    params = PoolParams("average-inside", Window((2, 2), (1, 1), (2, 2), (0,) * 4))
    x = np.random.default_rng(0).standard_normal((1, 16, 5, 6)).astype(np.float32)
    (found,) = run_body(params.body(19), [x], 19)
    assert relative_error(found, params.reference([x])[0]) < 1e-6


@pytest.mark.parametrize("size", range(40))
def test_sizes_of_pools_behind_pools_stay_short(size: int) -> None:
    """A window that sticks out of one pixel counts as one: ``(size - 2) / 2 + 1`` towards zero."""
    pool = PoolParams("max", Window((2, 2), (2, 2), (1, 1), (0, 0, 0, 0)))
    found: Extent = "h"
    number = size
    for _ in range(5):
        (spec,) = pool.infer([TensorSpec(DType.F32, (1, 1, found, 8))])
        found, number = (spec.shape or ())[2], int((number - 2) / 2) + 1
        assert evaluate(found, {"h": size}) == number
    assert len(str(found)) < 200
