"""Lower quantized networks of images to few launches: programs in the host dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.gpu.machine import Array
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernel_selection import kernels_of
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.reduction import ReduceParams
from tracea_graph.ops.weight_layouts import NK

pytestmark = pytest.mark.compiler
ZERO = 3
"""Zero point of all images."""
TO_BYTES = Chain(
    ("full", "row", "row"),
    (Step("mul", (0, 1)), Step("add", (3, 2)), Step("round", (4,)), Step("add", (5, float(ZERO))),
     Step("saturate", (6, 0.0, 255.0))),
    (7,), stores=(DType.U8,),
)  # fmt: skip
ADDED = Chain(
    ("full", "row", "row", "full"),
    (Step("mul", (0, 1)), Step("add", (4, 2)), Step("add", (5, 3)), Step("round", (6,)),
     Step("saturate", (7, 0.0, 255.0))),
    (8,), dtypes=(DType.F32, DType.F32, DType.F32, DType.U8), stores=(DType.U8,),
)  # fmt: skip
"""With the bytes of another image."""
QUANTIZED = ElementwiseParams(
    Chain(("full",), (Step("div", (0, 0.5)), Step("round", (1,)), Step("add", (2, float(ZERO))),
                      Step("saturate", (3, 0.0, 255.0))), (4,), stores=(DType.U8,)),
    (IndexMap((ViewMove("transpose", (0, 2, 3, 1)),)),),
)  # fmt: skip
"""An image of floats as bytes, channels last."""


def conv(
    filters: int, channels: int, side: int = 1, step: int = 1, groups: int = 1,
    chain: Chain = TO_BYTES,
) -> ConvIntegerParams:  # fmt: skip
    window = ConvWindow((side, side), (step, step), (1, 1), (side // 2,) * 4)
    own = IntegerOperand(DType.U8, ZERO)
    return ConvIntegerParams(channels, filters, window, own, groups, NK, chain)


def weights(*sizes: tuple[int, int]) -> list[Array]:
    """Filters, scales that are powers of two, and biases, for each pair of filters and depth."""
    rng, made = np.random.default_rng(3), list[Array]()
    for n, k in sizes:
        made += [rng.integers(-127, 128, (n, k)).astype(np.int8),
                 (2.0 ** rng.integers(-9, -6, n)).astype(np.float32),
                 rng.integers(-20, 90, n).astype(np.float32)]  # fmt: skip
    return made


def image(*shape: int) -> Array:
    made: Array = np.random.default_rng(4).integers(0, 256, shape).astype(np.uint8)
    return made


def calls_of(params: RegionParams, arrays: Sequence[Array]) -> list[Call]:
    """Lower a network on images of bytes or float32, weights in 8 bits, and rows in float32."""
    types = {"u": DType.U8, "i": DType.I8, "f": DType.F32}
    specs = [TensorSpec(types[a.dtype.kind], a.shape) for a in arrays]
    return [*program_of(params, specs, DType.F16).calls]


def block(side: int = 3, step: int = 1) -> RegionParams:
    """A 1 × 1 convolution, one of each channel, and a 1 × 1 one that adds the input if it can."""
    last = conv(24, 32, chain=ADDED if step == 1 else TO_BYTES)
    more = (0,) if step == 1 else ()
    steps = (
        RegionStep(conv(32, 24), (0, 1, 2, 3)),
        RegionStep(conv(32, 32, side, step, 32), (10, 4, 5, 6)),
        RegionStep(last, (11, 7, 8, 9, *more)),
    )
    return RegionParams(10, steps, (12,))


@pytest.mark.parametrize("step", [1, 2])
def test_windows_of_bytes_are_projected_where_they_are_computed(step: int) -> None:
    arrays = [image(2, 7, 6, 24), *weights((32, 24), (32, 9), (24, 32))]
    calls = calls_of(block(step=step), arrays)
    (call,) = [c for c in calls if c.op == "depthwise_projection"]
    assert call.attributes["x_type"] == "u8" and call.attributes["zero"] == ZERO
    assert call.attributes["levels"] == (-ZERO, 255 - ZERO)
    assert not [c for c in calls if c.op in ("depthwise", "integer_conv")]
    (got,), (want,) = run_program(block(step=step), arrays), block(step=step).reference(arrays)
    assert len(np.unique(got)) > 30 and np.array_equal(got, want)


def test_large_windows_and_results_with_other_readers_stay_apart() -> None:
    arrays = [image(2, 7, 6, 24), *weights((32, 24), (32, 25), (24, 32))]
    large = block(side=5)
    assert "depthwise_projection" not in [c.op for c in calls_of(large, arrays)]
    arrays = [image(2, 7, 6, 24), *weights((32, 24), (32, 9), (24, 32))]
    shared = replace(block(), results=(11, 12))
    assert "depthwise_projection" not in [c.op for c in calls_of(shared, arrays)]
    (_, got), (_, want) = run_program(shared, arrays), shared.reference(arrays)
    assert np.array_equal(got, want)


def test_an_image_is_rounded_and_packed_in_one_call() -> None:
    steps = (RegionStep(QUANTIZED, (0,)), RegionStep(conv(32, 3, 3, 2), (4, 1, 2, 3)))
    params = RegionParams(4, steps, (5,))
    x = (np.random.default_rng(5).standard_normal((2, 3, 10, 12)) * 40).astype(np.float32)
    arrays = [x, *weights((32, 27))]
    calls = calls_of(params, arrays)
    read = [c for c in calls if any(v and v.buffer.kind == "input" and v.buffer.index == 0
                                    for v in c.views)]  # fmt: skip
    assert [c.op for c in read] == ["pack"] and read[0].chain is not None
    (got,), (want,) = run_program(params, arrays), params.reference(arrays)
    assert len(np.unique(got)) > 30 and np.array_equal(got, want)


def test_two_windows_of_a_large_packed_image_share_a_row() -> None:
    steps = (RegionStep(QUANTIZED, (0,)), RegionStep(conv(32, 3, 3, 2), (4, 1, 2, 3)))
    x = np.zeros((32, 3, 224, 224), np.float32)
    calls = calls_of(RegionParams(4, steps, (5,)), [x, *weights((32, 27))])
    (found,) = [c for c in calls if c.op == "conv"]
    named = CALLS.of(found).named(found)
    assert [v.dims for v in (*named["inputs"], *named["y"])] == [(32, 112, 56, 64)] * 3  # type: ignore[union-attr, misc]


def test_the_mean_of_an_image_of_bytes_is_a_window() -> None:
    scaled = Chain(("full",), (Step("sub", (0, float(ZERO))), Step("mul", (1, 0.25))), (2,),
                   dtypes=(DType.U8,))  # fmt: skip
    mean = ReduceParams("mean", (-3, -2), True, prologue=scaled)
    steps = (RegionStep(conv(40, 32), (0, 1, 2, 3)), RegionStep(mean, (4,), narrow="f16"))
    params = RegionParams(4, steps, (5,))
    arrays = [image(2, 7, 7, 32), *weights((40, 32))]
    made = calls_of(params, arrays)
    assert [c.op for c in made if c.op in ("pool", "reduce", "elementwise")][-1] == "pool"
    (product,) = [c for c in made if c.op == "integer_conv"]
    assert product.chain is not None and product.chain.result_types == (DType.F32,)
    (got,), (want,) = run_program(params, arrays), params.reference(arrays)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("groups", [1, 16])
def test_one_image_has_the_kernels_of_two(groups: int) -> None:
    """The result of one image has a stride of 0 from image to image, which kernels do not read."""
    params = RegionParams(4, (RegionStep(conv(16, 16, 3, groups=groups), (0, 1, 2, 3)),), (4,))
    filters = weights((16, 144 // groups))
    named = [
        [kernels_of(call) for call in calls_of(params, [image(n, 8, 8, 16), *filters])]
        for n in (1, 2)
    ]
    assert named[0] == named[1]
