"""Build the programs that the tuner measures: one product or one convolution each.

Inputs are x, w, bias, epilogue_inputs, and y of the node before, which is not read but orders the
nodes.  The number of rows or images is the symbol ``m``.  Operands in bf16 or integers are rounded
by the program first, as in programs of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.panels import PANEL, SPLIT_STEPS
from tracea_graph.kernels.cpu.schedules.conv_problem import BLOCK, BlockedOperand, ConvProblem
from tracea_graph.kernels.cpu.schedules.gemm_problem import BYTES, IN_PAIRS, SPLIT, GemmProblem
from tracea_graph.kernels.program import Buffer, Call, Program, Schedule, Temp, View

__all__ = ["bench_program", "weight_of"]

_ROUNDED = {DType.BF16.name: "bf16", DType.I16.name: "int16"}
"""Element types of images that the program rounds by itself, with the call that does it."""


def bench_program(problem: GemmProblem | ConvProblem, schedules: tuple[Schedule, ...]) -> Program:
    """Build a program of the problem alone with these schedules."""
    if isinstance(problem, ConvProblem):
        return _convolution(problem, schedules)
    return _product(problem, schedules)


def weight_of(problem: GemmProblem | ConvProblem) -> TensorSpec:
    """Element type and shape of a problem's stored weights."""
    if isinstance(problem, ConvProblem):
        return TensorSpec(problem.weight_type, problem.weights)
    k, n = problem.k, problem.n
    if problem.layout == BYTES:
        return TensorSpec(DType.I8, (-(-n // PANEL), k // 4 + 1 + problem.own_zeros, PANEL, 4))
    if problem.layout == SPLIT:
        return TensorSpec(DType.BF16, (-(-n // PANEL), k, PANEL, 2))
    if problem.layout in IN_PAIRS:
        dtype = DType.BF16 if problem.multiplies == "bf16" else DType.I16
        return TensorSpec(dtype, (-(-n // PANEL), k // 2, PANEL, 2))
    return TensorSpec(
        DType.F32, (-(-n // PANEL), k, PANEL) if problem.layout == "panels" else (k, n)
    )


def _extras(problem: GemmProblem, rows: Extent) -> list[TensorSpec]:
    """The epilogue's operands other than the product."""
    shapes: Mapping[str, tuple[Extent, ...]] = {
        "full": (rows, problem.n), "row": (problem.n,), "col": (rows,), "scalar": (1,)
    }  # fmt: skip
    chain = problem.epilogue
    pairs = zip(chain.operands[1:], chain.operand_types[1:], strict=True) if chain else ()
    return [TensorSpec(dtype, shapes[kind]) for kind, dtype in pairs]


def _results(problem: GemmProblem, rows: Extent) -> tuple[TensorSpec, ...]:
    if problem.parts:
        return tuple(TensorSpec(DType.F32, (rows, width)) for width in problem.parts)
    types = problem.epilogue.result_types if problem.epilogue else (DType.F32,)
    return tuple(TensorSpec(dtype, (rows, problem.n)) for dtype in types)


def _product(problem: GemmProblem, schedules: tuple[Schedule, ...]) -> Program:
    k, n = problem.k, problem.n
    x_type = DType[problem.x_type] if problem.x_type else DType.F32
    inputs = [TensorSpec(x_type, ("m", k)), weight_of(problem)]
    views: list[View | None] = [_dense(i, s.shape or ()) for i, s in enumerate(inputs)]
    views.append(_dense(2, (n,)) if problem.bias else None)
    if problem.bias:
        inputs.append(TensorSpec(DType.F32, (n,)))
    temps, calls = list[Temp](), list[Call]()
    more: dict[str, Any] = dict(_round(problem, views, inputs, temps, calls))
    if problem.layout == BYTES:
        more = {**_zero_points(problem, inputs), "zero": 0}
    epilogue_inputs, results = list[View](), list[View]()
    steps: Mapping[str, tuple[Extent, ...]] = {
        "full": (n, 1), "row": (0, 1), "col": (1, 0), "scalar": (0, 0)
    }  # fmt: skip
    kinds = problem.epilogue.operands[1:] if problem.epilogue else ()
    for kind, spec in zip(kinds, _extras(problem, "m"), strict=True):
        epilogue_inputs.append(View(Buffer("input", len(inputs)), ("m", n), steps[kind]))
        inputs.append(spec)
    outputs = list[TensorSpec]()
    for spec in _results(problem, "m"):
        width, buffer = (spec.shape or ())[1], Buffer("output", len(outputs))
        if spec.dtype is DType.BF16:  # kept in a temp; the output, never read, is not written
            buffer, last = Buffer("temp", len(temps)), len(calls)
            temps.append(Temp(DType.BF16, combine("mul", "m", width), last, last))
            spec = TensorSpec(DType.F32, ("m", 1))
        outputs.append(spec)
        results.append(View(buffer, ("m", width), (width, 1)))
    inputs.append(outputs[0])
    x, weight, bias, *_ = views
    calls.append(
        CALLS.make(
            "gemm", problem.multiplies, x=x, w=weight, bias=bias, **more, inputs=epilogue_inputs,
            y=results, layout=problem.layout, parts=len(problem.parts) or 1,
            chain=problem.epilogue, schedules=schedules,
        )
    )  # fmt: skip
    return Program(tuple(inputs), tuple(outputs), {"m": (0, 0)}, tuple(temps), tuple(calls))


def _zero_points(problem: GemmProblem, inputs: list[TensorSpec]) -> dict[str, View]:
    """Add the zero point of x, and the sums of its rows, as inputs."""
    made = dict[str, View]()
    if problem.given_zero:
        made["x_zero"] = View(Buffer("input", len(inputs)), (1,), (1,))
        inputs.append(TensorSpec(DType[problem.x_type], (1,)))
    if problem.own_zeros:
        made["row_sums"] = View(Buffer("input", len(inputs)), ("m",), (1,))
        inputs.append(TensorSpec(DType.I32, ("m",)))
    return made


def _round(
    problem: GemmProblem, views: list[View | None], inputs: list[TensorSpec],
    temps: list[Temp], calls: list[Call],
) -> dict[str, View]:  # fmt: skip
    """Emit the rounding of x that the product's layout needs; return int16 scales by name."""
    k, kinds = problem.k, {"vnni2": DType.BF16, "int16": DType.I16}
    if problem.layout == SPLIT:
        pitch, numbers = 2 * k + SPLIT_STEPS, views[0]
        views[0] = View(Buffer("temp", 0), ("m", 2 * k), (pitch, 1))
        temps.append(Temp(DType.BF16, combine("mul", "m", pitch), 0, 1))
        calls.append(CALLS.make("round", "bf16x2", x=numbers, y=views[0]))
        return {}
    if problem.layout not in kinds:
        return {}
    whole, scale = Buffer("temp", 0), View(Buffer("temp", 1), ("m",), (1,))
    x, rounded = views[0], View(whole, ("m", k), (k, 1))
    temps.append(Temp(kinds[problem.layout], combine("mul", "m", k), 0, 1))
    views[0] = rounded
    if problem.layout == "vnni2":
        calls.append(CALLS.make("round", "bf16", x=x, y=rounded))
        return {}
    temps.append(Temp(DType.F32, "m", 0, 1))
    calls.append(CALLS.make("round", "int16", x=x, y=rounded, scales=scale))
    columns = TensorSpec(DType.F32, (-(-problem.n // PANEL) * PANEL,))
    inputs.append(columns)
    return {
        "row_scales": scale, "column_scales": _dense(len(inputs) - 1, columns.shape or ())
    }  # fmt: skip


def _dense(index: int, dims: tuple[Extent, ...]) -> View:
    strides: list[Extent] = [1]
    for dim in reversed(dims[1:]):
        assert isinstance(dim, int) and isinstance(strides[0], int)
        strides.insert(0, strides[0] * dim)
    return View(Buffer("input", index), dims, tuple(strides))


def _convolution(problem: ConvProblem, schedules: tuple[Schedule, ...]) -> Program:
    """Build a convolution's program; every operand is an input with the strides of the model."""
    inputs, temps, calls = list[TensorSpec](), list[Temp](), list[Call]()
    boxes = [problem.x, problem.add, *problem.epilogue_inputs]
    rounds = [box for box in boxes if box is not None and box.dtype in _ROUNDED]
    last = len(rounds)  # the convolution's index
    scales = dict[str, View]()

    def operand(box: BlockedOperand | None) -> View | None:
        if box is None:
            return None
        dims = ("m", *box.dims)
        whole: tuple[Extent, ...] = ("m", box.span) if box.strides[0] else (box.span,)
        buffer = Buffer("input", len(inputs))
        kind = DType[box.dtype]
        inputs.append(TensorSpec(DType.F32 if box.dtype in _ROUNDED else kind, whole))
        if box.dtype in _ROUNDED:
            temp, rows = Buffer("temp", len(temps)), View(buffer, ("m", box.span), (box.span, 1))
            rounded, at = View(temp, rows.dims, rows.strides), len(calls)
            temps.append(Temp(kind, combine("mul", "m", box.span), at, last))
            if kind is DType.I16:
                scales["image_scales"] = View(Buffer("temp", len(temps)), ("m",), (1,))
                temps.append(Temp(DType.F32, "m", at, last))
            by = {"scales": scales["image_scales"]} if kind is DType.I16 else {}
            calls.append(CALLS.make("round", _ROUNDED[box.dtype], x=rows, y=rounded, **by))
            buffer = temp
        return View(buffer, dims, box.strides)

    x = operand(problem.x)
    weight = _dense(len(inputs), problem.weights)
    inputs.append(weight_of(problem))
    bias = None
    if problem.bias:
        bias = _dense(len(inputs), (problem.y.dims[0] * problem.y.dims[3],))
        inputs.append(TensorSpec(DType.F32, bias.dims))
    if problem.multiplies == "int16":
        if "image_scales" not in scales:
            scales["image_scales"] = View(Buffer("input", len(inputs)), ("m",), (1,))
            inputs.append(TensorSpec(DType.F32, ("m",)))
        planes = problem.weights[0] if problem.winograd else 1
        scales["filter_scales"] = _dense(len(inputs), (planes * problem.y.dims[0] * BLOCK,))
        inputs.append(TensorSpec(DType.F32, scales["filter_scales"].dims))
    add, epilogue_inputs = operand(problem.add), [operand(box) for box in problem.epilogue_inputs]
    y, output = problem.y, Buffer("output", 0)
    result = TensorSpec(DType.F32, ("m", y.span))
    if y.dtype == DType.BF16.name:  # kept in a temp; the output, never read, is not written
        output, result = Buffer("temp", len(temps)), TensorSpec(DType.F32, ("m", 1))
        temps.append(Temp(DType.BF16, combine("mul", "m", y.span), last, last))
    inputs.append(result)
    calls.append(
        CALLS.make(
            problem.op, problem.multiplies, x=x, w=weight, bias=bias, add=add, **scales,
            inputs=epilogue_inputs, y=View(output, ("m", *y.dims), y.strides),
            **problem.attributes, chain=problem.epilogue, schedules=schedules,
        )
    )  # fmt: skip
    return Program(tuple(inputs), (result,), {"m": (0, 0)}, tuple(temps), tuple(calls))
