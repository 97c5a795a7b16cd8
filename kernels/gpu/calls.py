"""Schemas of the GPU backend's kernel calls (see ``kernels/schema.py``).

Activations have the layout of the graph, except that images are channels-last.  A call reads and
writes elements of its ``dtype`` unless an elementwise expression (``chain``) gives other types;
gamma, beta and biases are float32.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tracea_graph.kernels.gpu.block_quantized_storage import GRANULE, WINDOW
from tracea_graph.kernels.gpu.call_operands import (
    ACTIVATIONS,
    BYTES,
    DTYPES,
    FLOATS8,
    INDICES,
    NORM_ATTRIBUTES,
    NORM_OPERANDS,
    SPLIT_K,
    SUM_OPERANDS,
)
from tracea_graph.kernels.gpu.call_operands import operand as _op
from tracea_graph.kernels.gpu.call_operands import written as _out
from tracea_graph.kernels.gpu.composed_calls import (
    COMPOSED_CALLS,
    EXPANSIONS,
    GROUP_PARTS,
    MLP_PARTS,
    NORMED_PARTS,
    PROJECTION_PARTS,
    ROUNDED_PARTS,
)
from tracea_graph.kernels.gpu.gate_calls import GATE_PARTS, GATES
from tracea_graph.kernels.gpu.look_up_calls import LOOK_UPS
from tracea_graph.kernels.gpu.low_rank_calls import LOW_RANK, LOW_RANK_PARTS
from tracea_graph.kernels.gpu.row_calls import REDUCTIONS, ROWS
from tracea_graph.kernels.gpu.schedule import TileSchedule
from tracea_graph.kernels.gpu.structured_calls import STRUCTURED
from tracea_graph.kernels.gpu.window_calls import PROJECTED_WINDOWS
from tracea_graph.kernels.schema import (
    Attribute,
    Calls,
    CallSchema,
    Problem,
    Sizes,
    choice,
    flag,
    number,
    numbers,
    real,
    reals,
)
from tracea_graph.ops.attention import CAUSAL, MASKS, ZERO_ROWS
from tracea_graph.ops.block_quantized import MAX_BLOCK, ZEROS
from tracea_graph.ops.chain import MAX_OPERANDS
from tracea_graph.ops.grid_sample import BEYOND, SAMPLINGS
from tracea_graph.ops.resize import WAYS

__all__ = [
    "ACTIVATIONS",
    "CALLS",
    "CELLS",
    "EXPANSIONS",
    "GATE_PARTS",
    "GROUP_PARTS",
    "LOW_RANK_PARTS",
    "MLP_PARTS",
    "MOST_CONCATENATED",
    "NORMED_PARTS",
    "PROJECTION_PARTS",
    "REDUCTIONS",
    "ROUNDED_PARTS",
    "SQUEEZED",
]

_STEP = 1 << 16
"""Upper bound of strides, dilations and pads."""
MOST = 2**31 - 1
MOST_CONCATENATED = 8
"""Maximum number of parts of a concatenation in one launch."""
CELLS = ("lstm", "gru", "gru_before")
"""Recurrent cells; ``gru_before`` resets the state before the last gate's product."""
_LARGEST_CELL = 4096
SQUEEZED = ("relu", "silu")
"""Activations between both products of a squeeze-and-excitation."""

_ELEMENTWISE = CallSchema(
    "elementwise",
    (_op("x", "...", "chain", many="operands"), _out("y", "...", "chain", many="results")),
    chain="required",
)


def _product_size(s: Sizes) -> tuple[int, ...]:
    """Return the batch size and the rows, columns and depth (M, N, K) of a matmul."""
    *outer, rows, cols = s.of("y")
    return prod(outer), rows, cols, s.of("x")[-1]


def _gemm(dtype: str) -> CallSchema:
    """Schema of ``y = epilogue(x · w + bias)`` with w stored as ``[N, K]`` or ``[K, N]``.

    Leading axes are the batch; an operand that all matmuls of the batch share has none.  With a
    ``norm`` (16-bit types, no batch) rows of x are normalised first, without gamma and beta.
    """
    own, halves = "f32" if dtype.startswith("tf32") else dtype, dtype in DTYPES[1:]
    return CallSchema(
        "gemm",
        (
            _op("x", "... M K", own), _op("w", "*", own), _op("bias", "N", optional=True),
            _op("inputs", "... M N", "chain", many="inputs"),
            _out("y", "... M N", "chain", many="results"), *SPLIT_K,
            *((*NORM_OPERANDS, *SUM_OPERANDS) if halves else ()),
        ),
        (choice("layout", ("nk", "kn")), *(NORM_ATTRIBUTES if halves else ())),
        dtype,
        chain="epilogue",
        problem=_product_size,
        schedule=TileSchedule,
    )  # fmt: skip


def _float8_gemm(dtype: str) -> CallSchema:
    """Schema of a matmul of 8-bit floats, summed in float32; the epilogue has their scales.

    ``w_type`` is the type of w.  Tensor cores may keep 14 bits of a sum; if sums are ``promoted``,
    they add up no more than 128 products.
    """
    return CallSchema(
        "float8_gemm",
        (
            _op("x", "M K", dtype), _op("w", "N K", *FLOATS8),
            _op("inputs", "M N", "chain", many="inputs"),
            _out("y", "M N", "chain", many="results"),
        ),
        (flag("promoted", False), replace(choice("w_type", FLOATS8), default=FLOATS8[0])),
        dtype,
        chain="epilogue",
        problem=_product_size,
    )  # fmt: skip


def _gemm_nbits(dtype: str) -> CallSchema:
    """Schema of a matmul with a block-quantized matrix; see ``block_quantized_storage.py``.

    Codes have ``bits`` bits and a scale and a zero point for each ``block`` of the depth, of which
    ``group`` steps at a time are added: all, or part of a block that is ``divided``.  Scales of
    blocks that are not cover whole windows.  Zero points have the strides of scales; they are half
    the range of a code if they are in the ``middle``.  With ``gamma``, x is the RMS norm of
    ``raw``, which kernels of one row compute themselves: they do not read x.  If ``second`` is not
    0, w has the columns of two matrices, for one row: operand ``second`` of the chain is x times
    the first one, and its view is not read.
    """
    own = "f32" if dtype.startswith("tf32") else dtype
    return CallSchema(
        "gemm_nbits",
        (
            _op("x", "M K", own), _op("w", "N bytes", "u8"), _op("scales", "N blocks"),
            _op("zeros", "N blocks", optional=True), _op("bias", "N", optional=True),
            _op("inputs", "M N", "chain", many="inputs"),
            _out("y", "M N", "chain", many="results"),
            _op("raw", "M K", own, optional=True), _op("gamma", "K", optional=True),
        ),
        (
            choice("zero_kind", ZEROS), number("bits", 2, 8), number("group", GRANULE, WINDOW),
            number("block", GRANULE, MAX_BLOCK), flag("divided", False),
            replace(real("epsilon"), default=0.0), number("second", 0, MAX_OPERANDS, 0),
        ),
        dtype,
        chain="epilogue",
        problem=_product_size,
    )  # fmt: skip


def _dequantize(dtype: str) -> CallSchema:
    """Schema of the numbers of a block-quantized matrix, for matmuls of many rows.

    Attributes are those of ``gemm_nbits``.
    """
    return CallSchema(
        "dequantize",
        (
            _op("w", "N bytes", "u8"), _op("scales", "N blocks"),
            _op("zeros", "N blocks", optional=True), _out("y", "N K", dtype),
        ),
        (
            choice("zero_kind", ZEROS), number("bits", 2, 8), number("group", GRANULE, WINDOW),
            number("block", GRANULE, MAX_BLOCK), flag("divided", False),
        ),
        dtype,
    )  # fmt: skip


def _attention_size(s: Sizes) -> tuple[int, ...]:
    """Return attention as one matmul: queries × keys × (sum of both head sizes)."""
    batch, heads, queries, depth = s.of("q")
    return batch * heads, queries, s.of("k")[2], depth + s.of("v")[3]


def _attention(dtype: str) -> CallSchema:
    """Schema of attention as ``ops/attention.py`` defines it.

    ``fill`` is the score of a key that the mask or the causal order excludes.  ``listed`` names
    the tiles of scores that the mask does not exclude (``lowering/attention_tiles.py``).
    ``positions`` holds the position of the first query of each sequence.  With a ``factor``, the
    result is multiplied by it and stored in 8-bit floats (e4m3).
    """
    own = "f32" if dtype.startswith("tf32") else dtype
    return CallSchema(
        "attention",
        (
            _op("q", "B H S D", own), _op("k", "B Hkv T D", own), _op("v", "B Hkv T Dv", own),
            _op("mask", "B H S T", "f32", "bool", optional=True),
            _op("listed", "L", "i32", optional=True), _op("positions", "B", "i64", optional=True),
            _out("y", "B H S Dv", own, FLOATS8[0]),
        ),
        (
            choice("mask_kind", MASKS), choice("order", CAUSAL),
            choice("zero_rows", ZERO_ROWS),
            replace(number("window_left", -1, MOST), default=-1),
            *(replace(number(n, 0, MOST), default=0) for n in ("window_right", "global_keys")),
            *map(real, ("scale", "fill", "softcap")), replace(real("factor"), default=0.0),
        ),
        dtype,
        problem=_attention_size,
        schedule=TileSchedule,
    )  # fmt: skip


def _attention_rows(dtype: str) -> CallSchema:
    """Schema of attention that supports every mask, causal order and window."""
    plain = _attention(dtype)
    positions = _op("positions", "B", "i64", optional=True)
    return replace(
        plain,
        op="attention_rows",
        schedule=None,
        operands=(*plain.operands[:4], positions, _out("y", "B H S Dv", *DTYPES)),
        attributes=(
            choice("mask_kind", MASKS), choice("order", CAUSAL), choice("zero_rows", ZERO_ROWS),
            number("window_left", -1, MOST), number("window_right", 0, MOST),
            number("global_keys", 0, MOST),
            choice("y_type", DTYPES), *map(real, ("scale", "fill", "softcap")),
        ),
    )  # fmt: skip


def _attention_cached(dtype: str) -> CallSchema:
    """Schema of causal attention over caches that get ``new`` rows, at each item's position.

    ``cos`` and ``sin`` rotate the halves of q and of new keys.  Rows behind an item's last one are
    set to 0, unless the caches are written in place.  ``queries`` is the number of queries of a
    block.  With ``q_gamma`` and ``k_gamma``, the RMS norms of q and of new keys are rotated.
    Without new rows there are neither positions nor ``k`` and ``v``, and queries see all keys, or
    those that a ``mask`` keeps.  With a ``table``, which numbers each item's pages, caches are
    pools of pages ``[pages, Hkv, page_size, D]``, in which row t is in page t / ``page_size``.
    """
    halves = [_op(name, "B S Dr", dtype, optional=True) for name in ("cos", "sin")]
    gammas = [_op(name, "D", optional=True) for name in ("q_gamma", "k_gamma")]
    return CallSchema(
        "attention_cached",
        (
            _op("q", "B H S D", dtype),
            *(_op(name, "B Hkv S D", dtype, optional=True) for name in ("new_k", "new_v")),
            *(_op(name, "B Hkv T D", *DTYPES) for name in ("past_k", "past_v")),
            *halves, *gammas, _op("positions", "B", "i64", optional=True),
            _op("table", "B N", *INDICES, optional=True),
            _op("mask", "B H S T", "f32", "bool", optional=True),
            *(_out(name, "B Hkv P D", *DTYPES, optional=True) for name in "kv"),
            _out("y", "B H S D", dtype),
        ),
        (
            choice("cache_type", DTYPES), choice("zero_rows", ZERO_ROWS),
            number("queries", 1, 4), *map(real, ("scale", "softcap")),
            replace(real("epsilon"), default=0.0),
            replace(choice("mask_kind", MASKS), default=MASKS[0]),
            replace(real("fill"), default=0.0), number("page_size", 0, MOST, 0),
            replace(choice("index_type", INDICES), default=INDICES[0]),
        ),
        dtype,
    )  # fmt: skip


def _resize(dtype: str) -> CallSchema:
    """Schema of interpolation, channels-last; a scale of 0 is derived from the image sizes.

    ``slope`` is that of the ``cubic`` kernel at 1.
    """
    operands = _op("x", "N H W C", dtype), _out("y", "N P Q C", dtype)
    scales = tuple(map(real, ("scale_h", "scale_w")))
    slope = replace(real("slope"), default=0.0)
    how = choice("how", WAYS), flag("cubic", False)
    return CallSchema("resize", operands, (*how, *scales, slope), dtype)


def _grid_sample(dtype: str) -> CallSchema:
    """Schema of samples of channels-last images at the positions of a grid, -1 to 1."""
    operands = (
        _op("x", "N H W C", dtype), _op("grid", "N P Q two"), _out("y", "N P Q C", dtype),
    )  # fmt: skip
    how = choice("sampling", SAMPLINGS), choice("beyond", BEYOND), flag("aligned", False)
    return CallSchema("grid_sample", operands, how, dtype)


def _kv_append(dtype: str) -> CallSchema:
    """Schema of a KV cache append: past rows, ``new`` at each item's position, then zeros."""
    return CallSchema(
        "kv_append",
        (
            _op("new", "B H S D", dtype), _op("past", "B H T D", dtype, optional=True),
            _op("positions", "B", "i64"), _out("y", "B H P D", dtype),
        ),
        dtype=dtype,
    )  # fmt: skip


def _kv_append_rotated(dtype: str) -> CallSchema:
    """Schema of appends to both caches, with what attention by tensor cores reads besides.

    ``turned`` are queries, rotated by ``cos`` and ``sin`` as new keys are, after the RMS norms of
    ``q_gamma`` and ``k_gamma``.  ``near_k`` and ``near_v`` are the caches in the operands' type.
    Rows behind an item's last one become 0; of those that are written in place, and in ``near_k``
    and ``near_v``, as many as a tile may reach.
    """
    news = [_op(name, "B Hkv S D", dtype) for name in ("new_k", "new_v")]
    halves = [_op(name, "B S Dr", dtype, optional=True) for name in ("cos", "sin")]
    gammas = [_op(name, "D", optional=True) for name in ("q_gamma", "k_gamma")]
    return CallSchema(
        "kv_append_rotated",
        (
            _op("q", "B H S D", dtype, optional=True), *news,
            *(_op(name, "B Hkv T D", *DTYPES) for name in ("past_k", "past_v")),
            *halves, *gammas, _op("positions", "B", "i64"),
            _out("turned", "B H S D", dtype, optional=True),
            *(_out(name, "B Hkv P D", *DTYPES) for name in "kv"),
            *(_out(name, "B Hkv P D", dtype, optional=True) for name in ("near_k", "near_v")),
        ),
        (choice("cache_type", DTYPES), replace(real("epsilon"), default=0.0)),
        dtype,
    )  # fmt: skip


def _recurrent(dtype: str) -> CallSchema:
    """Schema of the time steps of an LSTM or GRU; ``p`` holds the products of x and gate weights.

    ``reverse`` has one bit per direction: 1 if the direction starts at the last step.
    """
    states = [_op(name, "D B H", optional=True) for name in ("h0", "c0")]
    lasts = [_out(name, "D B H", optional=True) for name in ("h", "c")]
    return CallSchema(
        "recurrent",
        (
            _op("p", "D T B GH"), _op("r", "D GH H", dtype), _op("rest", "D H", optional=True),
            *states, _out("y", "T D B H", optional=True), *lasts,
        ),
        (choice("kind", CELLS), number("hidden", 1, _LARGEST_CELL), number("reverse", 0, 3)),
        dtype,
    )  # fmt: skip


_IOTA = CallSchema(
    "iota",
    (_out("y", "...", "f32", *INDICES), _op("skipped", "S", "any", optional=True, touched="none")),
    (choice("y_type", ("f32", *INDICES)), real("start"), reals("steps", 0)),
)  # fmt: skip
"""Schema of an index ramp, ``start`` plus a step for each axis times the index of that axis.

The length of ``skipped`` is added to ``start``; its elements are not read.
"""

_SAME = CallSchema(
    "same", (_op("x", "N", "any"), _op("reference", "N", "any"), _out("y", "*", "bool")),
    dtype="b1",
)  # fmt: skip
"""Schema of a bytewise comparison: sets y to false on a difference, and keeps y otherwise."""


def _conv_size(s: Sizes) -> tuple[int, ...]:
    """Return the convolution as one matmul: pixels × filters × (taps · channels)."""
    *pixels, filters = s.of("y")
    return 1, prod(pixels), filters, prod(s.of("w")[1:])


def _depthwise_size(s: Sizes) -> tuple[int, ...]:
    """Return the convolution as one matmul per channel: pixels × taps."""
    *pixels, channels = s.of("y")
    return channels, prod(pixels), 1, prod(s.of("w")[:-1])


def _integer_conv_size(s: Sizes) -> tuple[int, ...]:
    *pixels, filters = s.of("y")
    return 1, prod(pixels), filters, s.of("w")[1]


def _integer_depthwise_size(s: Sizes) -> tuple[int, ...]:
    *pixels, channels = s.of("y")
    return channels, prod(pixels), 1, s.of("w")[1]


def _steps(*names: str) -> tuple[Attribute, ...]:
    return tuple(numbers(name, 2, int(name != "pads"), _STEP) for name in names)


_WINDOW = _steps("strides", "dilations", "pads")
"""``pads`` holds the padding at the top and the left."""
_ANY_WINDOW = tuple(replace(one, count=0) for one in _WINDOW)
"""The same for as many axes as a call's image has."""


def _conv(op: str, dtype: str, w: str, size: Problem) -> CallSchema:
    """Schema of ``y = epilogue(x * w + bias)``, channels-last; for ``conv``, w is contiguous.

    There are two axes of space, or three for volumes, whose padding starts with the front.  If
    ``groups`` of channels are convolved each by their own filters, w has the channels of one.
    """
    own = "f32" if dtype.startswith("tf32") else dtype
    dense = op == "conv"
    y = "N ... O"
    return CallSchema(
        op,
        (
            _op("x", "N ... C", own), _op("w", w, own), _op("bias", "O", optional=True),
            _op("inputs", y, "chain", many="inputs"), _out("y", y, "chain", many="results"),
            *(SPLIT_K if dense else ()),
        ),
        (*_ANY_WINDOW, number("groups", 1, 1 << 16, 1)) if dense else _ANY_WINDOW,
        dtype,
        chain="epilogue",
        problem=size,
        schedule=TileSchedule if dense else None,
    )  # fmt: skip


def _integers(op: str, dtype: str, image: str, size: Problem) -> CallSchema:
    """Schema of ``y = epilogue((x - zero) · (w - w_zeros))`` of 8-bit integers, with exact sums.

    ``w`` is signed.  Its depth is taps × channels; that of a depthwise filter is taps only.  If x
    is ``shifted``, its zero point is the attribute ``zero``, or the number in the operand
    ``x_zero``.  Images are channels-last and padded with their zero point.  ``column_sums`` are
    the sums of w's columns, by which kernels for many rows correct for a zero point of x.
    """
    shape = ("N H W C", "N P Q O") if image else ("M K", "M N")
    window = (*_steps("kernel"), *_WINDOW) if image else ()
    return CallSchema(
        op,
        (
            _op("x", shape[0], dtype), _op("w", "O K", "i8"),
            _op("x_zero", "one", dtype, optional=True), _op("w_zeros", "O", "i8", optional=True),
            *((_op("column_sums", "O", optional=True),) * (op != "integer_depthwise")),
            _op("inputs", shape[1], "chain", many="inputs"),
            _out("y", shape[1], "chain", many="results"),
        ),
        (flag("shifted", False), number("zero", -128, 255), *window),
        dtype,
        chain="required",
        problem=size,
    )  # fmt: skip


def _pool(dtype: str) -> CallSchema:
    """Schema of pooling over two axes of space, or three for volumes.

    ``average`` divides by the number of taps, ``average_inside`` by the number of taps inside the
    image.
    """
    kinds = choice("kind", ("max", "average", "average_inside"))
    operands = (_op("x", "N ... C", dtype), _out("y", "N ... C", dtype))
    kernel = tuple(replace(one, count=0) for one in _steps("kernel"))
    return CallSchema("pool", operands, (kinds, *kernel, *_ANY_WINDOW), dtype)


def _pack(dtype: str) -> CallSchema:
    """Schema of the packing of an image of few channels, for convolutions with tensor maps.

    A chain computes the numbers from those of x.

    The result is contiguous.  Channel ``held · i + c`` of its pixel (h, w) is channel c of pixel
    (``lines`` · h + i − ``top``, w − ``left``) of x, and 0 beside x and its channels.
    """
    return CallSchema(
        "pack",
        (_op("x", "N C H W", *DTYPES), _out("y", "N P Q K", dtype)),
        (
            choice("x_type", DTYPES), number("lines", 1, 2), number("held", 4, 8),
            number("top", 0, _STEP), number("left", 0, _STEP),
        ),
        dtype,
        chain="prologue",
    )  # fmt: skip


def _squeeze_excite(dtype: str) -> CallSchema:
    """Schema of ``y = x · gate(w2 · squeezed(w1 · mean(x) + bias1) + bias2)`` of images.

    The mean is that of an image's pixels, for each channel; ``chain`` computes a gate from a sum.
    Channels are a multiple of 8, weights are contiguous.
    """
    return CallSchema(
        "squeeze_excite",
        (
            _op("x", "N H W C", dtype), _op("w1", "S C", dtype), _op("bias1", "S"),
            _op("w2", "C S", dtype), _op("bias2", "C"), _out("y", "N H W C", dtype),
        ),
        (choice("squeezed", SQUEEZED),),
        dtype,
        chain="required",
    )  # fmt: skip


def _value_range(dtype: str) -> CallSchema:
    """Schema of the scale and zero point of a tensor in uint8; see ``ops/dynamic_quantize.py``.

    ``partial`` receives the range that each block finds.  ``arrivals`` counts the blocks that have
    finished; it must be 0 before the call.
    """
    return CallSchema(
        "value_range",
        (
            _op("x", "N", dtype), _out("scale", "one"), _out("zero", "one", "u8"),
            _out("partial", "blocks four"), _out("arrivals", "A", "i32"),
        ),
        dtype=dtype,
    )  # fmt: skip


def _integer_pool(dtype: str) -> CallSchema:
    """Schema of the maxima of 8-bit integers over windows of a channels-last image."""
    operands = (_op("x", "N H W C", dtype), _out("y", "N P Q C", dtype))
    return CallSchema("integer_pool", operands, (*_steps("kernel"), *_WINDOW), dtype)


def _copy(dtype: str) -> CallSchema:
    """Schema of a strided copy; the dtype gives the element size in bytes."""
    return CallSchema("copy", (_op("x", "...", "any"), _out("y", "...", "any")), dtype=dtype)


def _concat(dtype: str) -> CallSchema:
    """Schema of a dense y whose rows hold those of several x side by side; dtypes as of a copy.

    ``place`` is the view of y in which the first x lies; its elements are not read.  What no x
    covers becomes 0 if ``filled``; otherwise they cover all of y.
    """
    return CallSchema(
        "concat",
        (
            _op("x", "*", "any", many="count"), _op("place", "*", "any", touched="none"),
            _out("y", "*", "any"),
        ),
        (number("count", 1, MOST_CONCATENATED), flag("filled", False)),
        dtype,
    )  # fmt: skip


CALLS = Calls(
    (
        _ELEMENTWISE,
        *ROWS,
        *map(_gemm, (*DTYPES, "tf32", "tf32x3")),
        *STRUCTURED,
        *map(_gemm_nbits, (*DTYPES[1:], "tf32", "tf32x3")),
        *map(_dequantize, DTYPES[1:]),
        *map(_attention, (*DTYPES[1:], "tf32", "tf32x3")),
        *map(_attention_rows, DTYPES),
        *map(_attention_cached, DTYPES),
        *LOOK_UPS,
        *(_conv("conv", d, "O ... I", _conv_size) for d in (*DTYPES, "tf32", "tf32x3")),
        *(_conv("depthwise", d, "... C", _depthwise_size) for d in DTYPES),
        *map(_float8_gemm, FLOATS8),
        *(_integers("integer_gemm", d, "", _product_size) for d in BYTES),
        *(_integers("integer_conv", d, "image", _integer_conv_size) for d in BYTES),
        *(_integers("integer_depthwise", d, "image", _integer_depthwise_size) for d in BYTES),
        *map(_integer_pool, BYTES),
        *map(_value_range, DTYPES),
        *map(_pool, DTYPES),
        *map(_pack, DTYPES[1:]),
        *map(_squeeze_excite, DTYPES[1:]),
        *PROJECTED_WINDOWS,
        *COMPOSED_CALLS,
        *GATES,
        *LOW_RANK,
        *map(_resize, DTYPES),
        *map(_grid_sample, DTYPES),
        *map(_kv_append, DTYPES),
        *map(_kv_append_rotated, DTYPES[1:]),
        *map(_recurrent, DTYPES),
        *(make(size) for make in (_copy, _concat) for size in ("b1", "b2", "b4", "b8")),
        _IOTA,
        _SAME,
    )
)
"""Schemas by name; an op on a type other than float32 is named ``<op>_<dtype>``."""
