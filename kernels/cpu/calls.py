"""The kernel calls of the CPU backend: one record each (see ``schema``).

Shapes are those that the kernels read.  ``Ib``, ``Ob`` and ``Cb`` count blocks of 16 channels, and
``N Cb H W 16`` is a blocked value; ``Np`` counts panels of 16 columns of packed weights.
A last axis of 2 holds a pair of 16-bit elements that are multiplied together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tracea_graph.kernels.cpu.matmul_calls import (
    BITMAP,
    BITMAP_BF16,
    BLOCK_SPARSE,
    BLOCK_SPARSE_BF16,
    CONV_NHWC,
    GATHER_NBITS,
    MATMUL_BYTES,
    NBITS,
    ROUND_INT8,
    SUM_ROWS,
    gemm,
    round_rows,
)
from tracea_graph.kernels.cpu.operand_schemas import BLOCK, BYTES, F32_OR_BF16, LIMITS, NARROW
from tracea_graph.kernels.cpu.operand_schemas import operand as _op
from tracea_graph.kernels.cpu.operand_schemas import result as _out
from tracea_graph.kernels.cpu.schedule import ConvSchedule, TaskSchedule
from tracea_graph.kernels.schema import (
    Attribute,
    Calls,
    CallSchema,
    Operand,
    Problem,
    Sizes,
    bits,
    choice,
    flag,
    number,
    numbers,
    real,
    reals,
)
from tracea_graph.ops.attention import CAUSAL, MASKS, ZERO_ROWS
from tracea_graph.ops.resize import WAYS

__all__ = ["BLOCK", "CALLS", "GEMM_DTYPES", "LIMITS"]

RANK = 8
MAX_INT = 2**31 - 1
_STEP, _SHUFFLED = LIMITS["kMaxStep"], LIMITS["kMaxShuffledChannels"]

# ---- rows ----------------------------------------------------------------------------------

_NORM_KIND = choice("kind", ("layer", "rms"))
_NORM = CallSchema(
    "norm",
    (
        _op("x", "M N"),
        _op("gamma", "N", optional=True, rows="all"),
        _op("beta", "N", optional=True, rows="all"),
        _out("y", "M N", optional=True),
        _out("y_bf16", "M N", "bf16", optional=True),
    ),
    (_NORM_KIND, real("epsilon")),
    kernels=("norm",),
    row_tiled=True,
)
_CHANNEL_NORM = CallSchema(
    "channel_norm",
    (
        _op("x", "N C P"), _op("gamma", "C", optional=True), _op("beta", "C", optional=True),
        _out("y", "N C P"),
    ),
    (_NORM_KIND, number("groups", 0, MAX_INT), real("epsilon")),
    kernels=("norm",),
)  # fmt: skip
_ELEMENTWISE = CallSchema(
    "elementwise",
    (_op("x", "...", "chain", many="operands"), _out("y", "...", "chain", many="results")),
    chain="required",
    schedule=TaskSchedule,
    row_tiled=True,
)
_COPY = CallSchema("copy", (_op("x", "...", "any"), _out("y", "...", "any")), kernels=("copy",))
_INDEX = choice("index_type", {"i32": 6, "i64": 7})
_EMBEDDING = CallSchema(
    "embedding",
    (
        _op("tables", "V H", many="count", touched="picks"),
        _op("ids", "...", "i32", "i64", many="count"), _out("y", "... H"),
    ),
    (number("count", 1, LIMITS["kMaxTables"]), _INDEX), kernels=("gather",),
)  # fmt: skip
_TAKEN = _op("x"), _op("index", "...", "i32", "i64"), _out()
_GATHER_ELEMENTS = CallSchema("gather_elements", _TAKEN, (_INDEX,))
_COUNTED = _out("y", "...", "f32", "i32", "i64")
_COUNT_TYPE = choice("y_type", {"f32": 1, "i32": 6, "i64": 7})
_IOTA = CallSchema("iota", (_COUNTED,), (_COUNT_TYPE, real("start"), reals("steps", 0)))
_BYTES_EQUAL = CallSchema(
    "bytes_equal",
    (
        _op("x", "N", "any", many="count"), _op("reference", "N", "any", many="count"),
        _out("y", "1", "bool"),
    ),
    (number("count", 1, LIMITS["kMaxCompared"]), flag("further")),
)  # fmt: skip
"""Whether all ``x`` equal their references bytewise and, if ``further``, y was true before."""


def _over(op: str, y: str, *attributes: Attribute) -> CallSchema:
    """An op along some axes of one operand, or of a chain's result."""
    return CallSchema(
        op, (_op("x", "...", "chain", many="operands"), _out("y", "...", y)), attributes,
        chain="prologue", kernels=(op,),
    )  # fmt: skip


_REDUCTIONS = ("sum", "absolutes", "squares", "max", "min", "product")
_REDUCE = _over("reduce", "f32", choice("kind", _REDUCTIONS), flag("mean"), bits("axes", RANK))
_ARG_REDUCE = _over(
    "arg_reduce", "i64", number("axis", 0, RANK - 1), flag("smallest"), flag("last")
)
_SOFTMAX = _over("softmax", "f32", number("axis", 0, RANK - 1), flag("log"))
_TOP_K = CallSchema(
    "top_k", (_op("x", "M N"), _out("y", "M k"), _out("index", "M k", "i64")),
    (flag("smallest"),), kernels=("top_k",),
)  # fmt: skip


def _recurrent_problem(s: Sizes) -> tuple[int, ...]:
    """The matrix products with the state, for the gates of every step and direction."""
    (directions, steps, batch, _), (_, panels, hidden, width) = s.of("p"), s.of("r")
    return directions * steps, batch, panels * width, hidden


_RECURRENT = CallSchema(
    "recurrent",
    (
        _op("p", "D T B 16*P"),
        _op("r", "D P H 16"),
        _op("rest", "D 16*Hb", optional=True),
        _op("h0", "D B H", optional=True),
        _op("c0", "D B H", optional=True),
        _out("h", "D B H", optional=True),
        _out("c", "D B H", optional=True),
        _out("y", "T D B H"),
    ),
    (choice("cell", ("lstm", "gru", "gru_reset_before")), bits("reverse", 2)),
    kernels=("recurrent",),
    problem=_recurrent_problem,
)


# ---- attention -----------------------------------------------------------------------------


def _attention_problem(s: Sizes) -> tuple[int, ...]:
    """Both products as one: queries × keys × the sum of key and value depths."""
    batch, heads, rows, depth = s.of("q")
    return batch * heads, rows, s.of("k")[2], depth + s.of("v")[3]


def _attention(dtype: str, product_type: str, *kernels: str | tuple[str, str]) -> CallSchema:
    low = "bf16" if dtype == "bf16" else "f32"
    cached = dtype.partition("_by_")[2] or low
    window = LIMITS["kMaxWindow"]
    return CallSchema(
        "attention",
        (
            _op("q", "B H S D", low),
            _op("k", "B Hkv T D", cached),
            _op("v", "B Hkv T Dv", cached),
            _op("mask", "*", "f32", "bool", "i64", optional=True),
            _op("tiles", "A", "i32", optional=True),
            _out("y", "B H S Dv", *(F32_OR_BF16 if dtype == "bf16" else ("f32",))),
        ),
        (
            choice("mask_kind", MASKS), choice("zero_rows", ZERO_ROWS), choice("order", CAUSAL),
            number("window_left", -1, window), number("window_right", 0, window),
            number("global_keys", 0, window),
            choice("tile_kind", ("none", "mask", "bound")), numbers("tile_grid", 4, 0, MAX_INT),
            *map(real, ("scale", "fill", "softcap", "beyond")),
        ),
        dtype,
        schedule=TaskSchedule,
        kernels=kernels,
        problem=_attention_problem,
        product_type=product_type,
    )  # fmt: skip


def _kv_append(dtype: str, *kernels: tuple[str, str]) -> CallSchema:
    """Append rows of float32 to a cache of another type, which ``kernels`` round to."""
    return CallSchema(
        "kv_append",
        (
            _op("x", "B H S D"),
            _op("past", "B H T D", dtype, optional=True),
            _op("positions", "B", "i64"),
            _out("y", "B H P D", dtype),
        ),
        dtype=dtype,
        kernels=kernels,
    )


# ---- convolutions --------------------------------------------------------------------------

_HALO = numbers("halo", 4, 0, _STEP)
"""Top, left, bottom, right: the border of a result's view that must be written with zeros."""
_STRIDES, _DILATIONS = numbers("strides", 2, 1, _STEP), numbers("dilations", 2, 1, _STEP)
_PADS = numbers("pads", 4, 0, _STEP)
_CLAMP = (real("low"), real("high"))
_OC_TAIL = number("oc_tail", 1, BLOCK)
_IC_TAIL = number("ic_tail", 1, BLOCK)
_TAIL = number("tail", 1, BLOCK)
"""Channels in the last block: of the output, of the input, of both."""


def _made(s: Sizes, last: int) -> tuple[int, int]:
    """Pixels of a blocked result without its halo, and its channels."""
    batch, blocks, height, width, lanes = s.of("y")
    top, left, bottom, right = s["halo"]
    pixels = batch * (height - top - bottom) * (width - left - right)
    return pixels, blocks * lanes - BLOCK + last


def _conv_problem(s: Sizes) -> tuple[int, ...]:
    """Pixels × output channels × input channels at all taps, without padding channels."""
    _, depth, *taps = s.of("w")[:4]
    missing = BLOCK - s["ic_tail"] if s["groups"] == 1 else 0
    return 1, *_made(s, s["oc_tail"]), (depth * BLOCK - missing) * prod(taps)


def _conv_bf16_problem(s: Sizes) -> tuple[int, ...]:
    """Input blocks may have 32 channels."""
    *first, depth = _conv_problem(s)
    return (*first, depth * (s.of("x")[4] // BLOCK))


def _first_layer_problem(s: Sizes) -> tuple[int, ...]:
    return 1, *_made(s, s["oc_tail"]), prod(s.of("w")[1:4])


def _depthwise_problem(s: Sizes) -> tuple[int, ...]:
    """One product per channel."""
    pixels, channels = _made(s, s["tail"])
    return channels, pixels, 1, prod(s.of("w")[1:3])


def _winograd_problem(s: Sizes) -> tuple[int, ...]:
    """The direct convolution's size: savings by the transforms count as speed."""
    depth = (s.of("w")[2] - 1) * BLOCK + s["ic_tail"]
    return 1, *_made(s, s["oc_tail"]), depth * 9


def _conv_plain_problem(s: Sizes) -> tuple[int, ...]:
    groups, (out, *taps), (batch, _, *space) = s["groups"], s.of("w"), s.of("y")
    return groups, batch * prod(space), out // groups, prod(taps)


def _convolution(
    op: str,
    dtype: str,
    x: str,
    w: str,
    attributes: Sequence[Attribute],
    problem: Problem,
    *kernels: str,
    first: Sequence[Operand] = (),
    x_type: str = "",
    w_type: str = "",
    product_type: str = "",
    row_tiled: bool = False,
    tiled: bool = False,
    more: Sequence[Attribute] = (),
) -> CallSchema:
    """``y = epilogue(min(high, max(low, x * w + bias + add)), inputs)``, y blocked."""
    low = NARROW.get(dtype, "f32")
    either = F32_OR_BF16 if low == "bf16" else ("f32",)
    scales = (_op("image_scales", "N"), _op("filter_scales", "F"))
    return CallSchema(
        op,
        (
            *first,
            _op("x", x, x_type or low, rows="window"),
            _op("w", w, w_type or low, rows="all"),
            _op("bias", "16*Ob", optional=True, rows="all"),
            _op("add", "N Ob H W 16", *either, optional=True),
            *(scales if dtype == "int16" else ()),
            _op("inputs", "N Ob H W 16", "chain", many="inputs"),
            _out("y", "N Ob H' W' 16", *either),
        ),
        (*attributes, _HALO, *more, *_CLAMP),
        dtype,
        chain="epilogue",
        schedule=ConvSchedule if tiled else None,
        kernels=kernels,
        problem=problem,
        product_type=product_type,
        row_tiled=row_tiled,
        granularity="tile" if op == "winograd" else "",
    )


_X = "N Ib Hi Wi 16"
_CONV = (
    _STRIDES, _DILATIONS, number("groups", 1, _STEP), _OC_TAIL, _IC_TAIL,
    numbers("zeros", 4, 0, _STEP),
)  # fmt: skip
"""``zeros``: rows and columns around x that are known to be zero, and are not read."""
_FIRST_LAYER = (_STRIDES, _DILATIONS, _PADS, _OC_TAIL)
_SIDES = numbers("columns", 2, 0, _STEP)
"""Columns of zeros before and after each row, which are not stored."""
_DEPTHWISE = (_STRIDES, _DILATIONS, _TAIL, _SIDES)
_WINOGRAD = (choice("tile", {2: 2, 4: 4}), _OC_TAIL, _IC_TAIL)
_WINOGRAD_2 = (choice("tile", {2: 2}), _OC_TAIL, _IC_TAIL)
"""For int16: sums of larger tiles would overflow."""
_PAIRS = "Ob Ib kh kw 8 16 2"
_PLANES, _PLANES16 = "(tile+2)² Ob Ib 16 16", "16 Ob Ib 8 16 2"


def _conv_dispatch(dtype: str, direct: str, planes: str) -> CallSchema:
    """A 3×3 convolution that the library computes directly or by Winograd's transform, depending
    on the actual sizes."""
    low = NARROW.get(dtype, "f32")
    scales = (_op("direct_scales", "16*Ob"),) if dtype == "int16" else ()
    first = (_op("direct", direct, low, touched="none"), *scales)
    integers = dtype == "int16"
    return _convolution(
        "conv_dispatch", dtype, _X, planes, _WINOGRAD_2 if integers else _WINOGRAD,
        _winograd_problem, "conv", "winograd", first=first, x_type="f32" if integers else "",
    )  # fmt: skip


def _pool(dtype: str) -> CallSchema:
    kinds = choice("kind", ("max", "average", "average_inside") if dtype == "f32" else ("max",))
    return CallSchema(
        "pool",
        (_op("x", _X, dtype), _out("y", "N Cb H' W' 16", dtype)),
        (kinds, numbers("kernel", 2, 1, _STEP), _STRIDES, _DILATIONS, _PADS, _HALO),
        dtype,
        kernels=("pool",),
    )


_POOL_NHWC = CallSchema(
    "pool_nhwc",
    (_op("x", "N H W C", *BYTES), _out("y", "N H' W' C", *BYTES)),
    (numbers("kernel", 2, 1, _STEP), _STRIDES, _DILATIONS, _PADS),
    "int8",
)  # fmt: skip
_GLOBAL_POOL = CallSchema(
    "global_pool",
    (_op("x", "N Cb H W 16"), _out("y", "N C")),
    (_TAIL, choice("kind", ("max", "average"))),
    kernels=("pool",),
)
_RESIZE = CallSchema(
    "resize", (_op("x", "N Cb H W 16"), _out("y", "N Cb H' W' 16")),
    (choice("coordinates", WAYS), _HALO, reals("scales", 2)), kernels=("resize",),
)  # fmt: skip
_CHANNEL_SHUFFLE = CallSchema(
    "channel_shuffle",
    (_op("parts", "N Cb H W 16", many="part_channels"), _out("y", "N Cb H' W' 16")),
    (
        number("groups", 1, _SHUFFLED), number("first", 0, _SHUFFLED * LIMITS["kMaxShuffled"]),
        number("channels", 1, _SHUFFLED * LIMITS["kMaxShuffled"]), _HALO,
        numbers("part_channels", 0, 1, _SHUFFLED),
    ),
    kernels=("channel_shuffle",),
)  # fmt: skip
_REORDER_TO_NCHW16C = CallSchema(
    "reorder_to_nchw16c", (_op("x", "N C H W"), _out("y", "N Cb H' W' 16")), (_TAIL, _HALO),
    kernels=("reorder",),
)  # fmt: skip
_REORDER_TO_NCHW = CallSchema(
    "reorder_to_nchw", (_op("x", "N Cb H W 16"), _out("y", "N C H W")), (_TAIL,),
    kernels=("reorder",),
)  # fmt: skip
_PADDED = _out("y", "N Cb H' W' 16", *F32_OR_BF16)
_ZERO_PAD = CallSchema("zero_pad", (_PADDED,), (_HALO,), row_tiled=True)
_CONV_PLAIN = CallSchema(
    "conv_plain",
    (
        _op("x", "N C ..."), _op("w", "O I ..."), _op("bias", "O", optional=True),
        _op("inputs", "N O ...", "chain", many="inputs"), _out("y", "N O ..."),
    ),
    (
        number("groups", 1, _STEP), numbers("strides", 0, 1, _STEP),
        numbers("dilations", 0, 1, _STEP), numbers("starts", 0, 0, _STEP),
    ),
    chain="epilogue",
    kernels=("conv_plain",),
    problem=_conv_plain_problem,
)  # fmt: skip


def _images(dtype: str, y: Operand, *more: Operand) -> CallSchema:
    """Round images of float32 to a narrower type."""
    return CallSchema(
        "round_images", (_op("x", "N Cb H W 16"), y, *more), (_TAIL, _HALO), dtype,
        kernels=("conv",),
    )  # fmt: skip


CALLS = Calls(
    (
        gemm("f32", {"panels": 0, "kn": 1, "nk": 2}, ("f32",)),
        _NORM,
        _ELEMENTWISE,
        _EMBEDDING,
        _attention("f32", "", "attention"),
        _convolution(
            "conv", "f32", _X, "Ob Ib kh kw 16 16", _CONV, _conv_problem, "conv",
            row_tiled=True, tiled=True,
        ),
        _convolution(
            "conv_first_layer", "f32", "N C H W", "Ob C kh kw 16", _FIRST_LAYER,
            _first_layer_problem, "conv"
        ),
        _convolution(
            "depthwise", "f32", _X, "Cb kh kw 16", _DEPTHWISE, _depthwise_problem, "depthwise",
            row_tiled=True, tiled=True,
        ),
        _convolution(
            "winograd", "f32", _X, _PLANES, _WINOGRAD, _winograd_problem, "conv", "winograd",
            row_tiled=True, tiled=True,
        ),
        _pool("f32"),
        _GLOBAL_POOL,
        _REORDER_TO_NCHW16C,
        _REORDER_TO_NCHW,
        _ZERO_PAD,
        _CONV_PLAIN,
        gemm("bf16", {"vnni2": 3, "weight_only_bf16": 4}, F32_OR_BF16),
        round_rows("bf16"),
        _REDUCE,
        _SOFTMAX,
        _CHANNEL_NORM,
        _COPY,
        _RECURRENT,
        BLOCK_SPARSE,
        _attention("bf16", "", "attention"),
        _convolution(
            "conv", "bf16", "N Ib Hi Wi 16|32", "Ob Ib kh kw 8|16 16 2", _CONV,
            _conv_bf16_problem, "conv", row_tiled=True, tiled=True,
        ),
        _convolution(
            "conv_first_layer", "bf16", "N C H W", "Ob C kh kw 16", _FIRST_LAYER,
            _first_layer_problem, "conv",
            x_type="f32", w_type="f32", product_type="bf16x2",
        ),
        _convolution(
            "depthwise", "bf16", _X, "Cb kh kw 16", _DEPTHWISE, _depthwise_problem,
            "depthwise", w_type="f32", row_tiled=True, tiled=True,
            more=(flag("rounded_filters"),),
        ),
        _convolution(
            "winograd", "bf16", _X, _PLANES16, _WINOGRAD, _winograd_problem, "conv",
            "winograd", row_tiled=True, tiled=True,
        ),
        _RESIZE,
        _CHANNEL_SHUFFLE,
        BLOCK_SPARSE_BF16,
        BITMAP,
        BITMAP_BF16,
        gemm("int16", {"int16": 7}, ("i16",)),
        round_rows("int16", _out("scales", "M")),
        _kv_append("f32"),
        gemm("bf16x2", {"bf16x2": 10}, ("bf16",)),
        round_rows("bf16x2"),
        _convolution("conv", "int16", _X, _PAIRS, _CONV, _conv_problem, "conv", tiled=True),
        _images("int16", _out("y", "N Cb H' W' 16", "i16", optional=True), _out("scales", "N")),
        _convolution(
            "winograd", "int16", _X, _PLANES16, _WINOGRAD_2, _winograd_problem, "conv",
            "winograd", x_type="f32", tiled=True,
        ),
        _ARG_REDUCE,
        _GATHER_ELEMENTS,
        _conv_dispatch("f32", "Ob Ib 3 3 16 16", _PLANES),
        _TOP_K,
        _attention(
            "f32_as_bf16", "bf16", ("attention", "f32"), ("attention", "bf16"), ("gemm", "bf16")
        ),
        _conv_dispatch("bf16", _PAIRS, _PLANES16),
        _conv_dispatch("int16", _PAIRS, _PLANES16),
        _pool("bf16"),
        _images("bf16x2", _out("y", "N Cb H' W' 32", "bf16")),
        _convolution(
            "conv", "bf16x2", "N Ib Hi Wi 32", "Ob Ib kh kw 16 16 2", _CONV, _conv_problem, "conv",
            tiled=True,
        ),
        _IOTA,
        _BYTES_EQUAL,
        gemm("int8", {"int8": 11}, BYTES),
        SUM_ROWS,
        NBITS,
        CONV_NHWC,
        _POOL_NHWC,
        GATHER_NBITS,
        ROUND_INT8,
        _attention("f32_by_f16", "f32", "attention"),
        _kv_append("f16", ("attention", "f32_by_f16")),
        _attention("f32_by_bf16", "f32", "attention"),
        _kv_append("bf16", ("attention", "f32_by_bf16")),
        _attention("f32_by_i8", "f32", "attention"),
        _kv_append("i8", ("attention", "f32_by_i8")),
        MATMUL_BYTES,
        # of Arm alone
        gemm("f16", {"f16": 12}, ("f16",)),
        round_rows("f16"),
        _convolution("conv", "f16", _X, _PAIRS, _CONV, _conv_problem, "conv"),
        _images("f16", _out("y", "N Cb H' W' 16", "f16")),
    )
)  # fmt: skip
"""All calls, in the order of their opcodes."""

GEMM_DTYPES = {
    layout: schema.dtype
    for schema in CALLS.values()
    for attribute in schema.attributes
    if schema.op == "gemm" and attribute.name == "layout"
    for layout in attribute.words or ()
}
"""Dtype of a product's call by weight layout."""
