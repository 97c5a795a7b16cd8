"""Operations that kernels exist for, as a user asks for them: names, sizes and default shapes.

Parsers read this before anything else is loaded; keep this module light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["ALIASES", "OPERATIONS", "KernelOperation", "over_images"]

Sizes4 = tuple[int, int, int, int]


@dataclass(frozen=True)
class KernelOperation:
    """An operation that kernels compute, and the names of its sizes.

    * ``sizes``: names of its sizes; structural ones (a rank, a block, a window) come last
    * ``default``: the sizes to assume if none are given
    * ``problem``: maps sizes to (batch, m, n, k) of the matrix multiplications; k is 1 if there
      are none
    * ``calls``: ops of kernel calls that compute it; a backend uses the first that it has
    * ``structure``: structure of the right operand, in the words of ``policy.topology``
    """

    name: str
    sizes: tuple[str, ...]
    default: tuple[int, ...]
    problem: Callable[[Sequence[int]], Sizes4]
    calls: tuple[str, ...]
    structure: str = "dense"


def _product(s: Sequence[int]) -> Sizes4:
    return 1, s[0], s[1], s[2]


def _conv(s: Sequence[int]) -> Sizes4:
    """The convolution as one product: pixels × filters × (channels · taps)."""
    batch, channels, height, width, filters, kernel = s[:6]
    return 1, batch * height * width, filters, channels * kernel * kernel


def _channelwise(s: Sequence[int]) -> Sizes4:
    """One product of one column per channel."""
    batch, channels, height, width, kernel = s
    return channels, batch * height * width, 1, kernel * kernel


def _attention(s: Sequence[int]) -> Sizes4:
    """Both products as one: queries × keys × (depth of keys + depth of values)."""
    batch, heads, queries, keys, head = s[:5]
    return batch * heads, queries, keys, 2 * head


def _rows(s: Sequence[int]) -> Sizes4:
    return 1, s[0], s[1], 1


def _image(s: Sequence[int]) -> Sizes4:
    batch, channels, height, width = s[:4]
    return 1, batch * height * width, channels, 1


def _recurrent(s: Sequence[int]) -> Sizes4:
    """The products with the state, one per step; an LSTM has four gates."""
    steps, batch, hidden = s
    return steps, batch, 4 * hidden, hidden


_MNK = ("M", "N", "K")
_IMAGE = ("batch", "channels", "height", "width")
_CONV = (*_IMAGE, "filters", "kernel")
_HEADS = ("batch", "heads", "queries", "keys", "head")
_TABLE = ("rows", "cols")
_GEMM, _RESNET, _BERT = (128, 768, 768), (1, 64, 56, 56), (1, 12, 128, 128, 64)


def _over(name: str, *calls: str, structure: str = "rows") -> KernelOperation:
    """An operation over a table of rows."""
    return KernelOperation(name, _TABLE, (128, 768), _rows, calls or (name,), structure)


def over_images(name: str, *calls: str) -> KernelOperation:
    """An operation over images without matrix multiplications."""
    return KernelOperation(name, _IMAGE, _RESNET, _image, calls or (name,), "elements")


_ALL = (
    KernelOperation(
        "gemm", _MNK, _GEMM, _product,
        ("gemm", "integer_gemm", "float8_gemm", "gemm_two_of_four", "mlp", "attention_projection",
         "quantized_attention",
         "gated_gemm", "grouped_integer_gemm", "normed_integer_gemm", "low_rank_gemm"),
    ),
    KernelOperation(
        "low_rank_gemm", (*_MNK, "rank"), (*_GEMM, 64), _product, ("gemm", "low_rank_gemm"),
        "low-rank"
    ),
    KernelOperation(
        "gemm_block_sparse", (*_MNK, "block", "percent"), (*_GEMM, 32, 20), _product,
        ("gemm_block_sparse", "gemm_blocks"), "blocks",
    ),
    KernelOperation("gemm_nbits", _MNK, (1, 2048, 2048), _product, ("gemm_nbits",)),
    KernelOperation("matmul_bytes", _MNK, (128, 128, 64), _product, ("matmul_bytes",)),
    KernelOperation(
        "gemm_bitmap", (*_MNK, "percent"), (1, 768, 768, 20), _product, ("gemm_bitmap",), "bitmap"
    ),
    KernelOperation("conv2d", _CONV, (*_RESNET, 64, 3), _conv, ("conv", "integer_conv")),
    KernelOperation("winograd", _CONV, (*_RESNET, 64, 3), _conv, ("winograd",), "transformed"),
    KernelOperation(
        "conv_dispatch", _CONV, (1, 64, 14, 14, 64, 3), _conv, ("conv_dispatch",), "transformed"
    ),
    KernelOperation(
        "conv_first_layer", _CONV, (1, 3, 112, 112, 64, 7), _conv, ("conv_first_layer",)
    ),
    KernelOperation("conv_nhwc", _CONV, (*_RESNET, 64, 3), _conv, ("conv_nhwc",)),
    KernelOperation("conv_plain", _CONV, (1, 64, 14, 14, 64, 3), _conv, ("conv_plain",)),
    KernelOperation(
        "depthwise", (*_IMAGE, "kernel"), (1, 96, 56, 56, 3), _channelwise,
        ("depthwise", "integer_depthwise"), "channels",
    ),
    KernelOperation(
        "attention", _HEADS, _BERT, _attention,
        ("attention", "attention_rows", "attention_cached"),
    ),
    KernelOperation(
        "windowed_attention", (*_HEADS, "window"), (1, 12, 1024, 1024, 64, 128), _attention,
        ("attention_rows", "attention"), "window",
    ),
    KernelOperation(
        "recurrent", ("steps", "batch", "hidden"), (32, 1, 256), _recurrent, ("recurrent",)
    ),
    _over("norm"),
    _over("channel_norm"),
    _over("softmax"),
    _over("reduce"),
    _over("arg_reduce", "arg_reduce", "arg"),
    _over("sum_rows"),
    _over("top_k"),
    _over("value_range", structure="elements"),
    _over("gather", "embedding"),
    _over("gather_nbits"),
    _over("gather_elements", "gather_elements", "take"),
    _over("gather_nd"),
    _over("update_order", structure="elements"),
    _over("scatter_nd"),
    _over("scatter_elements"),
    _over("cumulative_sum"),
    _over("integer_step", structure="elements"),
    _over("chain", "elementwise", structure="elements"),
    _over("copy", structure="elements"),
    _over("concat", structure="elements"),
    _over("round", structure="elements"),
    _over("iota", structure="elements"),
    _over("scaled_two_of_four", structure="elements"),
    _over("kv_append", "kv_append", "kv_append_rotated", structure="elements"),
    _over("dequantize", structure="elements"),
    _over("bytes_equal", "bytes_equal", "same", structure="elements"),
    over_images("pool", "pool", "integer_pool"),
    over_images("global_pool"),
    over_images("pool_nhwc"),
    over_images("pack"),
    over_images("squeeze_excite"),
    over_images("depthwise_projection"),
    over_images("expanded_depthwise"),
    over_images("resize"),
    over_images("grid_sample"),
    over_images("channel_shuffle"),
    over_images("round_images"),
    over_images("zero_pad"),
)  # fmt: skip
OPERATIONS: Mapping[str, KernelOperation] = MappingProxyType({o.name: o for o in _ALL})
"""Operations by name."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "matmul": "gemm", "linear": "gemm", "block_sparse_gemm": "gemm_block_sparse",
        "sparse_gemm": "gemm_bitmap", "bitmap_gemm": "gemm_bitmap",
        "matmul_nbits": "gemm_nbits", "low_rank": "low_rank_gemm",
        "conv": "conv2d", "convolution": "conv2d", "depthwise_conv": "depthwise",
        "winograd_conv": "winograd", "flash_attention": "attention",
        "flash_attention_2": "attention", "sdpa": "attention",
        "sliding_window_attention": "windowed_attention", "lstm": "recurrent", "gru": "recurrent",
        "layer_norm": "norm", "rms_norm": "norm", "group_norm": "channel_norm",
        "instance_norm": "channel_norm", "embedding": "gather", "elementwise": "chain",
        "argmax": "arg_reduce", "argmin": "arg_reduce", "max_pool": "pool",
        "average_pool": "pool", "global_average_pool": "global_pool", "upsample": "resize",
        "pixel_shuffle": "channel_shuffle", "kv_cache_append": "kv_append", "range": "iota",
    }
)  # fmt: skip
"""Other names of operations; every attention kernel here is flash attention."""
