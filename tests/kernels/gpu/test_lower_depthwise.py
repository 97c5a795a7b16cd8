"""What a depthwise convolution with a 1 × 1 convolution behind it becomes on GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, normal
from tests.kernels.gpu.machine import Memory
from tests.kernels.gpu.test_lower_images import calls_in
from tests.kernels.gpu.window_cases import depthwise_projection, residual
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernel_selection import kernel_of, variants_of
from tracea_graph.kernels.gpu.library_build import sources_of
from tracea_graph.kernels.program import Call, LibraryContents


def block(
    activation: str = "Clip", filters: int = 24, batch: int = 32, side: int = 56, step: int = 1,
    more: str = "",
) -> list[Call]:  # fmt: skip
    """Lower a block of MobileNetV2; ``more`` also reads what the depthwise convolution makes."""
    net = Net()
    x = net("Relu", net.input("x", batch, 24, side, side))
    limits = [net.const(np.float32(n)) for n in (0, 6)] if activation == "Clip" else []
    x = net("Relu", net("Conv", x, net.const(normal(144, 24, 1, 1))))
    windows, pads = net.const(normal(144, 1, 3, 3)), {"pads": [1] * 4, "strides": [step] * 2}
    x = net("Conv", x, windows, net.const(normal(144)), group=144, **pads)
    x = net(activation, x, *limits) if activation else x
    y = net("Conv", x, net.const(normal(filters, 144, 1, 1)), net.const(normal(filters)))
    if more:
        y = net("Concat", net("Relu", y), net(more, x), axis=1)
    return calls_in(net, net("Conv", y, net.const(normal(8, filters + 144 * bool(more), 1, 1))))


@pytest.mark.parametrize(
    ("activation", "found"),
    [("Clip", "relu6"), ("Relu", "relu"), ("HardSwish", "hard_swish"), ("", "none")],
)
def test_both_convolutions_are_one_call(activation: str, found: str) -> None:
    calls = block(activation)
    (call,) = [c for c in calls if c.op == "depthwise_projection"]
    assert call.attributes["activation"] == found and call.attributes["image"] == (56, 56)
    assert not [c for c in calls if c.op == "depthwise"]


def test_windows_are_converted_before_they_are_read() -> None:
    calls = block()
    at = next(i for i, c in enumerate(calls) if c.op == "depthwise_projection")
    windows = CALLS.of(calls[at]).named(calls[at])["w"]
    written = [
        view.buffer for c in calls[:at] for operand, view in CALLS.of(c).each(c)
        if operand.written and view
    ]  # fmt: skip
    assert getattr(windows, "buffer", None) in written


@pytest.mark.parametrize(
    ("activation", "filters", "more"),
    [("Tanh", 24, ""), ("Clip", 32, ""), ("Clip", 20, ""), ("Clip", 24, "Abs")],
)
def test_other_convolutions_stay_apart(activation: str, filters: int, more: str) -> None:
    """Other activations, more or uneven filters, and results with other readers."""
    ops = [c.op for c in block(activation, filters, more=more)]
    assert {"depthwise", "expanded_depthwise"} & {*ops}
    assert "depthwise_projection" not in ops


@pytest.mark.parametrize(("step", "tile"), [(1, "128x1"), (2, "64x1")])
def test_strides_of_two_take_the_kernel_with_more_registers(step: int, tile: str) -> None:
    (call,) = [c for c in block(side=112, step=step) if c.op == "depthwise_projection"]
    assert variants_of(call)[0][0].tile == tile


@pytest.mark.parametrize(("batch", "side"), [(1, 56), (32, 14)])
def test_few_pixels_stay_apart(batch: int, side: int) -> None:
    ops = [c.op for c in block(batch=batch, side=side)]
    assert {"depthwise", "expanded_depthwise"} & {*ops}
    assert "depthwise_projection" not in ops


def test_a_kernel_is_made_from_its_name() -> None:
    made = depthwise_projection(DType.F16, (2, 8, 8, 144), (3, 3), (2, 2), 24, "relu6",
                                residual(DType.F16))  # fmt: skip
    call, _ = made(Memory(), np.random.default_rng(0))
    variant, _ = variants_of(call)[0]
    assert call.chain is not None
    contents = LibraryContents((), [kernel_of(call, variant)], [call.chain])
    (found,) = sources_of(contents, ["sm_75"])["sm_75"]
    assert "3x3_2x2_144_biased_relu6_to_24_bias" in found.symbol
