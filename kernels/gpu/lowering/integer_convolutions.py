"""Lower convolutions of 8-bit integers: as such, or in fp16 where that is exact and faster."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.families.convolution import as_pixel_rows
from tracea_graph.kernels.gpu.lowering.convolutions import convolve
from tracea_graph.kernels.gpu.lowering.depthwise_projection import (
    project_integers_where_computed,
)
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets
from tracea_graph.kernels.gpu.lowering.integers import (
    append_integers,
    plane_of,
    typed_epilogue,
    window_of,
)
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.lowering.volumes import unfold_integers
from tracea_graph.kernels.program_writer import LackingError, Shape, Value
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.index_map import ViewMove
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.weight_layouts import KN, NK

__all__ = ["lower_conv_integer"]

_CHANNELS_FIRST = (0, 3, 1, 2)
_RUN, _FEW_CHANNELS = 16, 32
"""Channels in 16 bytes, and minimum of those for which steps of 128 bytes pay."""
_MOST_PRODUCT, _EXACT_SUMS = 255 * 128, 1 << 24
"""Largest product of two bytes, and the number up to which float32 holds every integer."""


def lower_conv_integer(
    w: GpuProgramWriter, p: ConvIntegerParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write one call, or one for each group if the convolution is grouped but not depthwise."""
    if p.layout not in (KN, NK):
        raise LackingError(f"there is no GPU kernel for filters stored as {p.layout.name!r}")
    specs = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    shape: Shape = specs[0].shape or ()
    made = [
        t or w.temp(w.narrow if s.dtype is DType.F32 else s.dtype or DType.F32, shape)
        for t, s in zip(targets, specs, strict=True)
    ]
    seen = [_pixels(w, v, shape) for v in operands[p.first :]]
    ys = [plane_of(v) for v in made]
    chain = typed_epilogue(w, p.epilogue, ys[0], seen, ys)
    zeros = operands[2 : p.first]
    if w.projects and _projected(w, p, operands, chain, seen, ys):
        return made
    if _suits_halves(p):
        _convolve_in_halves(w, p, operands, seen, ys[0])
        return made
    if p.groups == p.channels == p.filters:
        _depthwise(w, p, operands[:2], zeros, chain, seen, ys)
        return made
    weight = operands[1]
    rows = w.again(weight, DType.I8, (1, 0)).transposed((1, 0)) if p.layout == KN else weight
    x = operands[0]
    if p.window.rank == 3:
        p, x, rows = unfold_integers(w, p, x, rows, _zero_point(p.integers, zeros))
    x, window = plane_of(x), window_of(p.window)
    each, filters = p.channels // p.groups, p.filters // p.groups
    for group in range(p.groups):
        first, last = group * each, group * filters
        own = [v.part(0, last, filters) if v is p.integers.split(zeros)[1] else v for v in zeros]
        append_integers(
            w, "integer_conv", x.part(3, first, each), rows.part(0, last, filters), chain,
            [v.part(3, last, filters) for v in seen], [v.part(3, last, filters) for v in ys],
            p.integers, own, window,
        )  # fmt: skip
    return made


def _projected(
    w: GpuProgramWriter, p: ConvIntegerParams, operands: Sequence[Value], chain: Chain,
    seen: Sequence[Value], ys: Sequence[Value],
) -> bool:  # fmt: skip
    """Write a 1 × 1 convolution and the depthwise one before it as one call, if that is faster."""
    if p.k * _MOST_PRODUCT >= _EXACT_SUMS:
        return False
    rows = operands[1].transposed((1, 0)) if p.layout == KN else operands[1]
    matrices = [as_pixel_rows(v.view) for v in (*seen, *ys)]
    if len(ys) > 1:
        return False
    return project_integers_where_computed(
        w, p, plane_of(operands[0]).view, rows, chain, matrices[:-1], matrices[-1]
    )


def _suits_halves(p: ConvIntegerParams) -> bool:
    """Whether a convolution is computed sooner in fp16, in which it is exact.

    Bytes minus a zero point are exact in fp16, and float32 sums of few products are.  Tensor
    maps do not copy pixels of few bytes, or of a number that is no multiple of 16.
    """
    if p.window.rank > 2 or p.integers.operands or p.epilogue is None:
        return False
    if len(p.epilogue.results) > 1 or p.k * _MOST_PRODUCT >= _EXACT_SUMS:
        return False
    depthwise = p.groups == p.channels == p.filters
    return depthwise or (p.groups == 1 and (p.channels % _RUN > 0 or p.channels < _FEW_CHANNELS))


def _convolve_in_halves(
    w: GpuProgramWriter, p: ConvIntegerParams, operands: Sequence[Value], seen: Sequence[Value],
    y: Value,
) -> None:  # fmt: skip
    """Write a convolution of fp16 numbers: of x minus its zero point, and of the filters."""
    before, w.narrow = w.narrow, DType.F16
    x, weight = plane_of(operands[0]), operands[1]
    key = operands[0], "minus", p.integers.zero
    if key not in w.made:
        w.made[key] = w.number(x.shape)
        zero = float(p.integers.zero or 0)
        w.chain(Chain((FULL,), (Step("sub", (0, zero)),), (1,)), [x], [w.made[key]])
    rows = weight.transposed((1, 0)) if p.layout == KN else weight
    taps = ViewMove("reshape", (p.filters, *window_of(p.window)["kernel"], p.channels // p.groups))
    plain = ConvParams(p.channels, p.filters, p.window, p.groups)
    image, filters, made = (
        v.transposed(_CHANNELS_FIRST)
        for v in (w.made[key], w.typed_as(rows, w.narrow).moved(taps), y)
    )
    convolve(w, plain, image, filters, None, p.epilogue, seen, made)
    w.narrow = before


def _depthwise(
    w: GpuProgramWriter, p: ConvIntegerParams, operands: Sequence[Value], zeros: Sequence[Value],
    chain: Chain, seen: Sequence[Value], ys: Sequence[Value],
) -> None:  # fmt: skip
    """Write a depthwise convolution, whose filters are stored tap by tap."""
    if p.window.rank > 2:
        raise LackingError(
            "GPU kernels convolve each channel of integers over one or two spatial axes only"
        )
    x, weight = operands
    taps = w.again(weight, DType.I8, (0, 1) if p.layout == KN else (1, 0))
    taps = taps.transposed((1, 0)) if p.layout == KN else taps
    append_integers(w, "integer_depthwise", plane_of(x), taps, chain, seen, ys, p.integers, zeros,
            window_of(p.window))  # fmt: skip


def _zero_point(integers: IntegerOperand, zeros: Sequence[Value]) -> Chain | Value:
    """Return the zero point of x: an operand, as a scalar, or a chain that computes it."""
    given: Value | None = integers.split(zeros)[0]
    if given is not None:
        return given.flat(len(given.shape)).moved(ViewMove("select", (0, 0)))
    return Chain((), (Step("add", (float(integers.zero or 0), 0.0)),), (0,))


def _pixels(w: GpuProgramWriter, value: Value, shape: Shape) -> Value:
    """View an epilogue operand as pixels of one constant stride, copying it if needed."""
    whole = value.stretched(shape)
    try:
        stretched = plane_of(whole)
        as_pixel_rows(stretched.view)
    except (GraphError, ValueError):
        return plane_of(w.again(whole, value.dtype, tuple(range(len(shape)))))
    return stretched
