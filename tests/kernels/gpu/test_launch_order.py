"""What a run launches, and why each launch is one of its own."""

from __future__ import annotations

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.launch_order import constant_calls, launch_order
from tracea_graph.kernels.program import Buffer, Call, Program, Temp, View
from tracea_graph.ops.chain import Chain, Step

X, W, Y = Buffer("input", 0), Buffer("input", 1), Buffer("output", 0)
WIDE, FIRST, SECOND = (Buffer("temp", i) for i in range(3))
SHAPE = (64, 64)


def dense(buffer: Buffer) -> View:
    return View.dense(buffer, SHAPE)


def copy(x: Buffer, y: Buffer) -> Call:
    return CALLS.make("copy", "b4", x=dense(x), y=dense(y))


def product(x: Buffer, y: Buffer) -> Call:
    return CALLS.make(
        "gemm", "tf32x3", x=dense(x), w=dense(WIDE), bias=None, inputs=[], y=[dense(y)],
        layout="nk", chain=None,
    )  # fmt: skip


def double(x: Buffer, y: Buffer) -> Call:
    chain = Chain(("full",), (Step("add", (0, 0)),), (1,), (DType.F32,), (DType.F32,))
    return CALLS.listed("elementwise", [dense(x), dense(y)], chain=chain)


def program(*calls: Call) -> Program:
    spec, temp = TensorSpec(DType.F32, SHAPE), Temp(DType.F32, 4096, 0, len(calls))
    return Program((spec, spec), (spec,), {}, (temp,) * 3, calls)


def test_calls_of_constants_alone_are_not_launched() -> None:
    """The weight is copied once; with a weight that changes, in every run."""
    made = program(copy(W, WIDE), product(X, FIRST), double(FIRST, Y))
    assert constant_calls(made.calls, frozenset({1})) == [True, False, False]
    assert constant_calls(made.calls, frozenset()) == [False, False, False]
    assert [one.call for one in launch_order(made, frozenset({1}), {})] == [1, 2]


def test_reasons_say_what_a_launch_waits_for() -> None:
    made = program(
        copy(W, WIDE), product(X, FIRST), product(FIRST, SECOND), double(SECOND, Y),
        double(X, FIRST),
    )  # fmt: skip
    first, *others = launch_order(made, frozenset({1}), {})
    assert first.reason == "" and first.kernel == "gemm_tf32x3"
    assert [one.reason for one in others] == [
        "a product reads whole rows, which several blocks of the gemm write",
        "no rule fuses it into the gemm",
        "it does not read the elementwise, and no kernel computes both",
    ]
