"""Lower convolutions and pooling; images between such steps are channels-last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, TensorSpec, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.convolution_choice import FEW_PIXELS, WINDOWS
from tracea_graph.kernels.gpu.families.convolution import as_pixel_rows
from tracea_graph.kernels.gpu.kernel_selection import variants_of
from tracea_graph.kernels.gpu.lowering.depthwise_projection import project_where_computed
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets
from tracea_graph.kernels.gpu.lowering.integers import integer_pool
from tracea_graph.kernels.gpu.lowering.pixel_matmuls import multiply_pixels, repeated
from tracea_graph.kernels.gpu.lowering.product_calls import product_call
from tracea_graph.kernels.gpu.lowering.program_writer import (
    HALVES,
    ZERO,
    GpuProgramWriter,
    channels_last_order,
    with_row_operands,
)
from tracea_graph.kernels.gpu.lowering.row_ops import lower_reduce
from tracea_graph.kernels.gpu.lowering.split_k import add_split_k
from tracea_graph.kernels.gpu.lowering.volumes import convolve_volumes, reads_volumes
from tracea_graph.kernels.gpu.tile_choice import MANY_PIXELS, MANY_SHARED
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import LackingError, Shape, Value
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.filter_layouts import PLAIN
from tracea_graph.ops.index_map import ViewMove
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.reduction import ReduceParams
from tracea_graph.ops.resize import ResizeParams

__all__ = ["convolve", "lower_conv", "lower_pool", "lower_resize"]

_RUN, _MOST_PACKED = 8, 128
"""Number of channels in 16 bytes, and maximum numbers in one row of a packed filter."""
_MOST_SIDE = 1 << 14
"""Maximum side of an image that one pool reduces whole."""
_FILLED, _MOST_PARTS = 132 * 32, {4: 8, 5: 32}
"""Channels of all images that fill a GPU (fewer are split), and maximum parts of an image and of
a volume, by their rank.
"""
_LEAST_COPIED = 16
"""Fewest channels of an image that is stored channels-last before it is convolved."""
_WHOLE = 64
"""Numbers in one row of a tensor map's copy."""
LAST = (0, 2, 3, 1)
"""Axis order in which images are stored between steps: N, H, W, C."""


def _plane(value: Value) -> Value:
    """View a 1-D image as a 2-D image of height 1."""
    return value.moved(ViewMove("unsqueeze", (2,))) if len(value.shape) == 3 else value


def _window(window: ConvWindow) -> dict[str, tuple[int, ...]]:
    """Return strides, dilations and the padding in front, for two axes or those of volumes."""

    def two(numbers: Sequence[int], alone: int) -> tuple[int, ...]:
        return (alone, *numbers) if window.rank == 1 else tuple(numbers)

    before = [pair[0] for pair in window.pairs]
    return {"strides": two(window.strides, 1), "dilations": two(window.dilations, 1),
            "pads": two(before, 0)}  # fmt: skip


def lower_conv(
    w: GpuProgramWriter, p: ConvParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    if p.window.rank > 3 or p.layout is not PLAIN:
        raise LackingError("GPU kernels convolve over one to three spatial axes only")
    if p.window.rank == 3 and not reads_volumes(w, p):
        return [
            convolve_volumes(w, p, operands, lambda q, seen: lower_conv(w, q, seen, [None])[0])
        ]
    x, weight, bias, epilogue_inputs = p.split(operands)
    (spec,) = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    shape: Shape = spec.shape or ()
    seen = [v.stretched(shape) for v in epilogue_inputs]
    full: Shape = (*shape[:2], 1, shape[2]) if len(shape) == 3 else shape
    x, weight = _plane(x), _plane(weight)
    seen = [_plane(v) for v in seen]
    last = channels_last_order(len(full))
    y = w.number(full, last)
    bias = w.typed_as(bias, DType.F32) if bias else None
    if p.groups == 1 and x.shape[2:] == weight.shape[2:] == full[2:] == (1, 1):
        each = [v.flat(1, 3) for v in (x, weight, *seen, y)]
        product_call(w, each[0], each[1], "nk", p.epilogue, each[2:-1], each[-1:], bias)
        return [y.moved(ViewMove("squeeze", (2,))) if len(shape) == 3 else y]
    chain, fused = p.epilogue, [_pixels(w, v) for v in seen]
    if None not in fused and (patches := _patches(w, p, x, weight)) is not None:
        rows = [v.flat(3, 1) for v in (*fused, y.transposed(last)) if v]
        product_call(w, *patches, "nk", chain, rows[:-1], rows[-1:], bias)
    elif chain and any(v is None for v in fused):
        total = w.number(full, last)
        convolve(w, p, x, weight, bias, None, (), total)
        w.chain(chain, [total, *seen], [y])
    else:
        convolve(w, p, x, weight, bias, chain, [v for v in fused if v], y)
    return [y.moved(ViewMove("squeeze", (2,))) if len(shape) == 3 else y]


def _pixels(w: GpuProgramWriter, value: Value) -> Value | None:
    """View an epilogue operand as pixels by channels, copying it if its layout requires that.

    Returns None for a broadcast operand whose pixels have no constant stride.
    """
    for one in (value, None):
        last = channels_last_order(len(value.shape))
        one = one or w.again(value, value.dtype, last)
        transposed = one.transposed(last)
        try:
            as_pixel_rows(transposed.view)
        except GraphError:
            if 0 in value.view.strides:
                return None
            continue
        return transposed
    return None


def _patches(
    w: GpuProgramWriter, p: ConvParams, x: Value, weight: Value
) -> tuple[Value, Value] | None:
    """Copy an image of few channels so that each patch that a filter reads is a row of a matrix.

    Returns this matrix and the one of the filters, whose rows are padded to whole copies of tensor
    maps; None if patches overlap or do not cover the image.
    """
    (n, channels, *image), (filters, _, *taps) = x.shape, weight.shape
    window, few = _window(p.window), p.groups == 1 and p.channels < _RUN
    if w.narrow not in HALVES or not few or tuple(taps) != window["strides"] or len(taps) > 2:
        return None
    if window["dilations"] != (1, 1) or any(any(pair) for pair in p.window.pairs):
        return None
    (high, wide), (taps_h, taps_w) = image, taps
    known = all(isinstance(size, int) for size in (high, wide, taps_h, taps_w, channels))
    if not known or taps_w == 1:
        return None
    assert isinstance(high, int) and isinstance(wide, int) and isinstance(channels, int)
    assert isinstance(taps_h, int) and isinstance(taps_w, int)
    if high % taps_h or wide % taps_w:
        return None
    down, across, depth = high // taps_h, wide // taps_w, channels * taps_h * taps_w
    whole = -(-depth // _WHOLE) * _WHOLE
    rows = w.temp(w.narrow, (product((n, down, across)), whole))
    kernel = w.temp(w.narrow, (filters, whole))
    for one in (rows, kernel) if whole > depth else ():
        w.chain(ZERO, [], [one.part(1, depth, whole - depth)])
    cut = x.moved(ViewMove("reshape", (0, 0, down, taps_h, across, taps_w)))
    dims = (n, down, across, channels, taps_h, taps_w)
    steps = (product((down, across, whole)), across * whole, whole, taps_h * taps_w, taps_w, 1)
    w.copy(cut.transposed((0, 2, 4, 1, 3, 5)),
           replace(rows, view=replace(rows.view, dims=dims, strides=steps)))  # fmt: skip
    dense = (whole, taps_h * taps_w, taps_w, 1)
    w.copy(weight, replace(kernel, view=replace(kernel.view, dims=weight.shape, strides=dense)))
    return rows, kernel


def convolve(
    w: GpuProgramWriter, p: ConvParams, x: Value, weight: Value, bias: Value | None,
    chain: Chain | None,
    epilogue_inputs: Sequence[Value], y: Value,
) -> None:  # fmt: skip
    """Write one call; few channels of a group are multiplied together with those of others."""
    dtype, each, filters = w.narrow, p.channels // p.groups, p.filters // p.groups
    last = channels_last_order(len(x.shape))
    pack = _packed_volumes if p.window.rank > 2 else _packed
    if (packed := pack(w, p, x, weight)) is not None:
        px, pw, window = packed
        rows = all(not any(v.view.strides[:-1]) for v in epilogue_inputs)
        if rows and (pair := _paired(w, px, pw, bias, y)) is not None:
            px, pw, bias, y = pair
            epilogue_inputs = [_twice(w, v, y) for v in epilogue_inputs]
        _conv_call(w, "conv", px, pw, bias, chain, epilogue_inputs, y, window)
        return
    read = x.dtype is dtype and (x.view.strides[1] == 1 or p.channels < _LEAST_COPIED)
    x = w.typed_as(x, dtype) if read else w.again(x, dtype, last)
    window = _window(p.window)
    depthwise = p.groups > 1 and each == 1 and filters == 1
    order = (*last[1:-1], 1, 0) if depthwise else last
    weight = w.again(weight, dtype, order)  # in the layout that the kernel reads
    transposed = weight.transposed(order)
    if depthwise:
        transposed = transposed.moved(ViewMove("select", (len(last) - 2, 0)))
        image = x.transposed(last).view
        _conv_call(w, "depthwise", image, transposed.view, bias, chain, epilogue_inputs, y, window)
        return
    groups, own = p.groups, transposed.view
    together = _groups_together(p.groups, each, filters)
    if together > 1:
        own, groups = _side_by_side(w, own, together, filters), groups // together
    image = x.transposed(last).view
    _conv_call(w, "conv", image, own, bias, chain, epilogue_inputs, y, window, groups)


def _groups_together(groups: int, channels: int, filters: int) -> int:
    """Return how many groups share one matmul, whose filters hold zeros for the other groups.

    Tiles of kernels have 64 columns and steps of up to 64 channels, most of which would be empty.
    """
    most = _WHOLE // max(channels, filters)
    return max((n for n in range(1, most + 1) if groups % n == 0), default=1)


def _side_by_side(w: GpuProgramWriter, own: View, count: int, filters: int) -> View:
    """Return filters of ``count`` groups each: those of a group are zero for the other groups."""
    total, *taps, channels = own.dims
    wide = combine("mul", channels, count)
    made = w.temp(w.narrow, (total, *taps, wide))
    w.chain(ZERO, [], [made.flat(len(made.shape))])
    row = product((*taps, wide))
    across = combine("add", combine("mul", filters, row), channels)
    steps = product((count, filters, row)), across, row
    sets = combine("floordiv", total, count * filters)
    dims = (sets, count, filters, *taps, channels)
    blocks = View(made.view.buffer, dims, (*steps, *made.view.strides[1:]))
    first = own.strides[0]
    sources = (combine("mul", first, count * filters), combine("mul", first, filters))
    source = View(own.buffer, dims, (*sources, *own.strides), own.offset)
    w.copy(Value(source, w.narrow), Value(blocks, w.narrow))
    return made.view


def _packed(
    w: GpuProgramWriter, p: ConvParams, x: Value, weight: Value
) -> tuple[View, View, dict[str, tuple[int, ...]]] | None:
    """Pack an image of few channels so that a row of a filter reads one run of memory.

    Channels are padded to 4 or 8, and the image is padded with zeros.  The pixels that a row of a
    filter reads become the channels of one tap.  If the vertical stride is 2, two lines may be
    stored side by side and form one tap.  Returns the image, the filters and their window; None
    for convolutions that do not gain from packing.
    """
    window = _window(p.window)
    (down, across), (top, left), (n, _, high, wide) = window["strides"], window["pads"], x.shape
    filters, _, taps_h, taps_w = weight.shape
    if w.narrow not in HALVES or p.groups > 1 or p.channels >= _RUN:
        return None
    if window["dilations"] != (1, 1) or taps_w == 1:
        return None
    if not all(isinstance(size, int) for size in (wide, taps_h, taps_w)):
        return None
    assert isinstance(wide, int) and isinstance(taps_w, int) and isinstance(taps_h, int)
    held = _RUN // 2 if across % 2 == 0 and p.channels <= _RUN // 2 else _RUN
    lines = 2 if down == 2 and held < _RUN and taps_h > 1 and isinstance(high, int) else 1
    span, pixel = taps_w + taps_w % 2, lines * held
    pairs = p.window.pairs if p.window.rank > 1 else ((0, 0), *p.window.pairs)
    results = (wide + sum(pairs[1]) - taps_w) // across + 1
    width, taps = across * (results - 1) + span, -(-taps_h // lines)
    if span * pixel > _MOST_PACKED or results < 1:
        return None
    height = high
    if lines > 1:
        assert isinstance(high, int)
        height = (high + sum(pairs[0]) - taps_h) // down + taps
    image = w.number((n, pixel, height, width), LAST)
    _pack(w, x, image, lines, top if lines > 1 else 0, left)
    kernel = w.number((filters, pixel, taps, span), LAST)
    _pack(w, weight, kernel, lines, 0, 0)
    row = combine("mul", width, pixel)
    px = View(image.view.buffer, (n, height, results, span * pixel),
              (combine("mul", height, row), row, across * pixel, 1))  # fmt: skip
    pw = View.dense(kernel.view.buffer, (filters, taps, 1, span * pixel))
    pads = (0, 0) if lines > 1 else (top, 0)
    return px, pw, {"strides": (down // lines, 1), "dilations": (1, 1), "pads": pads}


def _packed_volumes(
    w: GpuProgramWriter, p: ConvParams, x: Value, weight: Value
) -> tuple[View, View, dict[str, tuple[int, ...]]] | None:
    """Pack volumes of few channels like images of D · H lines; see :func:`_packed`.

    Lines are as long as the windows need, so that only the depth and the height are padded when
    they are read.  Returns the volumes, the filters and their window, or None.
    """
    window, pairs = _window(p.window), p.window.pairs
    (n, _, deep, high, wide), (filters, _, *taps, span) = x.shape, weight.shape
    across, left = window["strides"][2], window["pads"][2]
    if w.narrow not in HALVES or p.groups > 1 or p.channels >= _RUN:
        return None
    if window["dilations"][2] != 1 or span == 1:
        return None
    if not isinstance(wide, int) or not isinstance(span, int):
        return None
    held = _RUN // 2 if across % 2 == 0 and p.channels <= _RUN // 2 else _RUN
    results = (wide + sum(pairs[2]) - span) // across + 1
    span += span % 2
    if span * held > _MOST_PACKED or results < 1:
        return None
    width = across * (results - 1) + span
    image = w.number((n, held, combine("mul", deep, high), width), LAST)
    _pack(w, x.flat(1, 1, 2, 1), image, 1, 0, left)
    kernel = w.number((filters, held, product(tuple(taps)), span), LAST)
    _pack(w, weight.flat(1, 1, 2, 1), kernel, 1, 0, 0)
    plane, row = product((high, width * held)), width * held
    px = View(image.view.buffer, (n, deep, high, results, span * held),
              (combine("mul", deep, plane), plane, row, across * held, 1))  # fmt: skip
    pw = View.dense(kernel.view.buffer, (filters, *taps, 1, span * held))
    own = {name: (*numbers[:2], int(name != "pads")) for name, numbers in window.items()}
    return px, pw, own


def _paired(
    w: GpuProgramWriter, image: View, filters: View, bias: Value | None, y: Value
) -> tuple[View, View, Value | None, Value] | None:
    """Let two neighbouring windows of a packed image share a row of the implicit matrix.

    The windows overlap, so that both take less than twice the numbers of one, which would leave
    most of a tensor map's copy empty.  Filters are stored twice, the second time further right by
    the distance of two windows.  Returns the image, the filters, the bias and the result; None if
    single windows are wide enough, or few.
    """
    (*sizes, windows, span), (*outer, apart, _) = image.dims, image.strides
    count, *taps, _, _ = filters.dims
    known = all(isinstance(size, int) for size in (windows, span, apart, count, *taps))
    if not known or (w.about(product(y.shape)) or 0) < MANY_SHARED * (w.about(count) or 1):
        return None
    assert isinstance(windows, int) and isinstance(span, int) and isinstance(apart, int)
    assert isinstance(count, int)
    both = span + apart
    if windows % 2 or both > _WHOLE or 2 * count > _WHOLE:
        return None
    kernel = w.temp(w.narrow, (2, count, *taps, both))
    w.chain(ZERO, [], [kernel.flat(len(kernel.shape))])
    far, *steps = kernel.view.strides
    blocks = View(
        kernel.view.buffer, (2, count, *taps, span), (combine("add", far, apart), *steps)
    )
    source = View(filters.buffer, blocks.dims, (0, *filters.strides[:-2], 1), filters.offset)
    w.copy(Value(source, w.narrow), Value(blocks, w.narrow))
    px = View(image.buffer, (*sizes, windows // 2, both), (*outer, 2 * apart, 1), image.offset)
    pw = View.dense(kernel.view.buffer, (2 * count, *taps, 1, both))
    if bias is not None:
        bias = repeated(w, replace(bias, view=bias.view.stretched((1, count))), 2).flat(2)
    (n, _, *lines, _), (far, s_c, *apart_by, s_w) = y.shape, y.view.strides
    assert s_c == 1 and s_w == count
    view = View(
        y.view.buffer, (n, 2 * count, *lines, windows // 2), (far, 1, *apart_by, 2 * count)
    )
    return px, pw, bias, replace(y, view=view)


def _twice(w: GpuProgramWriter, row: Value, y: Value) -> Value:
    """Repeat a row for both windows of a pair; return it as an operand of the result's size."""
    channels, view = row.shape[-1], row.view
    one = View(view.buffer, (1, channels), (0, view.strides[-1]), view.offset)
    made = repeated(w, replace(row, view=one), 2)
    dims = y.transposed(LAST).shape
    return replace(made, view=View(made.view.buffer, dims, (0, 0, 0, 1), made.view.offset))


def _pack(
    w: GpuProgramWriter, value: Value, packed: Value, lines: int, top: int, left: int
) -> None:
    """Pack an image or filters; ``lines`` lines become channels of one line."""
    value = value if value.dtype in (DType.F32, *HALVES) else w.typed_as(value, DType.F32)
    pixel = packed.shape[1]
    assert isinstance(pixel, int)
    w.call(
        "pack", w.narrow.short, x=value.view, y=packed.transposed(LAST).view, lines=lines,
        x_type=value.dtype.short, held=pixel // lines, top=top, left=left,
    )  # fmt: skip


def _conv_call(
    w: GpuProgramWriter, op: str, x: View, weight: View, bias: Value | None, chain: Chain | None,
    epilogue_inputs: Sequence[Value], y: Value, window: dict[str, tuple[int, ...]],
    groups: int = 1,
) -> None:  # fmt: skip
    dtype, out = w.narrow, y.transposed(channels_last_order(len(y.shape)))
    own = chain
    if chain is not None:
        made = w.typed(chain, [Value(out.view, DType.F32), *epilogue_inputs], [out])
        chain = replace(made, operands=("full", *made.operands[1:]))
        if groups == 1:
            chain = with_row_operands(made, [as_pixel_rows(v.view) for v in epilogue_inputs])
    call = CALLS.make(
        op, w.multiplied if op == "conv" else dtype.short,
        x=x, w=weight, bias=bias.view if bias else None,
        inputs=[v.view for v in epilogue_inputs], y=[out.view], chain=chain, **window,
        **({"groups": groups} if op == "conv" else {}),
    )  # fmt: skip
    if op != "conv" or groups > 1:
        w.calls.append(call)
        return
    if w.projects and project_where_computed(w, call):
        return
    likely = next(v.template for v, when in variants_of(call) if (w.about(when) or 0) > 0)
    if likely == WINDOWS and multiply_pixels(w, call, own, epilogue_inputs, bias):
        return
    w.calls.append(
        call if variants_of(call)[0][0].template == FEW_PIXELS else add_split_k(w, call)
    )


def lower_pool(
    w: GpuProgramWriter, p: PoolParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    (x,) = operands
    if p.channels_last:
        return [integer_pool(w, p, x)]
    rank = len(x.shape) - 2
    if p.window is None and (made := _whole_pool(w, p, x)):
        return [made]
    if p.window is None:
        kind = "max" if p.kind == "max" else "mean"
        axes = tuple(range(-rank, 0))
        return lower_reduce(w, ReduceParams(kind, axes, not p.flat), operands, targets)
    if rank > 3:
        raise LackingError("GPU kernels pool over one to three spatial axes only")
    (spec,) = p.infer([TensorSpec(x.dtype, x.shape)])
    shape: Shape = spec.shape or ()
    full: Shape = (*shape[:2], 1, shape[2]) if rank == 1 else shape
    last = channels_last_order(len(full))
    y = w.number(full, last)
    x = w.typed_as(_plane(x), w.narrow)
    kernel = (1, *p.window.kernel) if rank == 1 else p.window.kernel
    w.call(
        "pool", w.narrow.short, x=x.transposed(last).view, y=y.transposed(last).view,
        kind=p.kind.replace("-", "_"), kernel=kernel, **_window(p.window),
    )  # fmt: skip
    return [y.moved(ViewMove("squeeze", (2,))) if rank == 1 else y]


def _whole_pool(w: GpuProgramWriter, p: PoolParams, x: Value) -> Value | None:
    """Pool all pixels of a channels-last image or volume; return None if it is not supported."""
    rank = len(x.shape)
    if rank not in _MOST_PARTS or x.view.strides[1] != 1 or x.dtype is not w.narrow:
        return None
    if rank > 4:
        try:  # an image of the lines of all planes
            x = x.transposed((0, 2, 3, 4, 1)).flat(1, 2, 1, 1).transposed((0, 3, 1, 2))
        except ValueError:
            return None
    n, channels, *image = x.shape
    sides = [size for size in image if isinstance(size, int) and size > 0]
    if len(sides) < len(image):
        return None
    high, wide = sides
    parts = _pool_parts(w, x.shape, _MOST_PARTS[rank])
    if max(high // parts, wide) > _MOST_SIDE:
        return None
    y = w.number((n, channels, 1, 1), LAST)
    if parts > 1:
        x = x.moved(ViewMove("reshape", (0, 0, parts, high // parts, wide))).transposed(
            (0, 2, 1, 3, 4)
        )
        x = x.flat(2, 1, 1, 1)
        each = w.number((combine("mul", n, parts), channels, 1, 1), LAST)
        _pool_call(w, p, x, each)
        steps = (combine("mul", channels, parts), 1, channels, channels)
        x = Value(View(each.view.buffer, (n, channels, parts, 1), steps), each.dtype)
    _pool_call(w, p, x, y)
    if p.flat:
        return y.flat(1, 3)
    return y.moved(ViewMove("unsqueeze", (2,))) if rank > 4 else y


def _pool_call(w: GpuProgramWriter, p: PoolParams, x: Value, y: Value) -> None:
    """Pool all pixels of each image."""
    w.call(
        "pool", w.narrow.short, x=x.transposed(LAST).view, y=y.transposed(LAST).view,
        kind="max" if p.kind == "max" else "average", kernel=x.shape[2:],
        strides=(1, 1), dilations=(1, 1), pads=(0, 0),
    )  # fmt: skip


def _pool_parts(w: GpuProgramWriter, shape: Shape, most: int) -> int:
    """Return the number of parts that are pooled first; above 1 for few, large images."""
    n, channels = w.about(shape[0]), w.about(shape[1])
    high, wide = (size if isinstance(size, int) else 1 for size in shape[2:])
    if n is None or channels is None or n * channels > _FILLED:
        return 1
    fit = (parts for parts in range(most, 1, -1) if not high % parts)
    return next((parts for parts in fit if high // parts * wide >= MANY_PIXELS), 1)


def lower_resize(
    w: GpuProgramWriter, p: ResizeParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    x = _plane(operands[0])
    (spec,) = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    shape: Shape = spec.shape or ()
    full: Shape = (*shape[:2], 1, shape[2]) if len(shape) == 3 else shape
    scales = (1.0, *p.scales) if len(p.scales) == 1 else p.scales or (0.0, 0.0)
    y = w.temp(x.dtype, full, LAST)
    w.call(
        "resize", x.dtype.short, x=x.transposed(LAST).view, y=y.transposed(LAST).view, how=p.how,
        scale_h=scales[0], scale_w=scales[1], cubic=bool(p.cubic), slope=p.cubic,
    )  # fmt: skip
    return [y.moved(ViewMove("squeeze", (2,))) if len(shape) == 3 else y]
