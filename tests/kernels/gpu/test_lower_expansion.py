"""What a 1×1 convolution with a depthwise one behind it becomes on GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, normal, optimized
from tests.kernels.gpu.expansion_cases import expanded
from tests.kernels.gpu.machine import Memory
from tracea_graph import passes
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS, EXPANSIONS
from tracea_graph.kernels.gpu.families import expanded_depthwise
from tracea_graph.kernels.gpu.kernel_selection import (
    for_variant,
    kernel_of,
    launches_for,
    variants_of,
)
from tracea_graph.kernels.gpu.library_build import sources_of
from tracea_graph.kernels.gpu.lowering.lower import lower
from tracea_graph.kernels.gpu.phases import phases
from tracea_graph.kernels.gpu.plan_encoding import encode
from tracea_graph.kernels.gpu.variants import VARIANTS
from tracea_graph.kernels.program import Call, LibraryContents, Program
from tracea_graph.passes import PlanRequest

_OP = "expanded_depthwise"
_CHANNELS, _EXPANDED, _SIDE = 24, 144, 28


def program(
    images: int | str = 1, activation: str = "Clip", more: str = "", sizes: Any = None
) -> Program:  # fmt: skip
    """Lower an inverted residual in fp16; ``more`` reads the expanded image, too."""
    net = Net()
    x = net.input("x", images, _CHANNELS, _SIDE, _SIDE)
    first = net("Conv", x, net.const(normal(_CHANNELS, _CHANNELS, 3, 3)), pads=[1] * 4)
    h = net("Conv", first, net.const(normal(_EXPANDED, _CHANNELS, 1, 1)),
            net.const(normal(_EXPANDED)))  # fmt: skip
    bounds = [net.const(np.float32(v)) for v in (0, 6)] if activation == "Clip" else []
    between = h = net(activation, h, *bounds)
    h = net("Conv", h, net.const(normal(_EXPANDED, 1, 3, 3)), net.const(normal(_EXPANDED)),
            group=_EXPANDED, pads=[1] * 4)  # fmt: skip
    h = net("Relu", h)
    if more:
        h = net("Add", h, net(more, between))
    graph = net.graph(net("Conv", h, net.const(normal(_CHANNELS, _EXPANDED, 1, 1))))
    request = PlanRequest(precision="fp16")
    optimized(graph, (*passes.phases(request), *phases(request, {})))
    graph.bindings = sizes or {}
    (region,) = graph.regions()
    return lower(graph, region)


def parts(made: Program) -> list[Call]:
    return [c for c in made.calls if c.op == _OP]


def test_both_convolutions_are_one_launch() -> None:
    made = program()
    calls = parts(made)
    assert [c.attributes["part"] for c in calls] == list(EXPANSIONS) and encode(made)
    grids = [launches_for(c)[0][0].blocks({}) for c in calls]
    assert [0 in grid for grid in grids] == [True, False]


def test_other_architectures_and_many_images_compute_the_parts() -> None:
    old, found = ARCHITECTURES["sm_75"], list[Call]()
    for call in parts(program("n", sizes={"n": 1})):
        variant, _ = variants_of(call)[-1]
        assert variant.refusal(old) is None
        found.append(for_variant(call, variant))
    assert [c.op for c in found] == ["conv", "depthwise"]
    conv, depthwise = ({**CALLS.of(c).named(c)} for c in found)
    assert conv["y"][0] == depthwise["x"]


@pytest.mark.parametrize(
    ("activation", "more"), [("HardSwish", ""), ("Clip", "Abs")], ids=["activation", "reader"]
)
def test_other_activations_and_other_readers_leave_both(activation: str, more: str) -> None:
    made = program(activation=activation, more=more)
    assert not parts(made) and [c.op for c in made.calls].count("depthwise") == 1


def test_many_images_leave_both() -> None:
    assert not parts(program(64))


@pytest.mark.parametrize(
    ("operand", "changed", "why"),
    [
        ("x", {"strides": (9, 99, 99, 1)}, "not aligned"),
        ("x", {"strides": (0, 0, 0, 2)}, "not contiguous"),
        ("w1", {"strides": (48, 1, 1, 1)}, "not contiguous"),
        ("x", {"dims": (1, "n", 13, 24)}, "unknown"),
        ("w", {"dims": (7, 7, 72)}, "too large"),
    ],
)
def test_other_layouts_are_refused(operand: str, changed: dict[str, Any], why: str) -> None:
    image = (2, 9, 13, 24)
    maker = expanded(DType.F16, image, 72, 3, 1, "relu6")
    call, _ = maker(Memory(), np.random.default_rng(0))
    named: dict[str, Any] = CALLS.of(call).named(call)
    named[operand] = replace(named[operand], **changed)
    other = CALLS.make(call.op, call.dtype, **named, **call.attributes, chain=call.chain)
    (variant, *_) = (v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype))
    assert why in expanded_depthwise.refusal(other, variant)
    assert expanded_depthwise.refusal(call, variant) == ""


def test_kernels_of_both_parts_are_made_from_their_names() -> None:
    for call in parts(program()):
        names = [kernel_of(call, variant) for variant, _ in variants_of(call)]
        chains = [c.chain for c in parts(program()) if c.chain]
        found = sources_of(LibraryContents((), names, chains), ["sm_80"])["sm_80"]
        assert any("expanded_24_relu6" in one.symbol for one in found)
