"""Encode a program as its node's ``plan`` attribute: a flat list of int64.

A plan is self-delimiting; the library checks every word of it.

=========  =====================================================================================
part       words
=========  =====================================================================================
header     magic, version, total words, then the counts: inputs, outputs, symbols, loops, temps,
           calls
tensor     (inputs, then outputs) ONNX element code, rank, one expression per dimension
symbol     the input and the axis that bind it
loop       first call, last call, rows of a turn, 1 if turns run apart, expression of all rows;
           its two symbols, the first row and the end of a turn, are numbered after the bound ones
temp       ONNX element code, count expression, first call, last call; in the order of placement
call       opcode, #ints, #floats, #views, #drivers, chain (its key, or -1), ints, floats (bits
           of a double), views, drivers
view       kind (-1 none: nothing follows; 0 input, 1 output, 2 temp), index, rank, offset
           expression, one expression per dimension, one per stride
driver     of products: max_rows, tile_panels, row_chunk, panel_group, prefetch;
           of convolutions: max_images, pixels, lines, part, bands, columns
expression #words, then postfix code: ``0 value``, ``1 symbol``, or an operator (2 add, 3 sub,
           4 mul, 5 floordiv, 6 ceildiv, 7 max, 8 min)
=========  =====================================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from types import MappingProxyType

from tracea_graph.errors import GraphError
from tracea_graph.ir import Extent, TensorSpec
from tracea_graph.ops.program import Call, Program, View

__all__ = ["LIMITS", "MAGIC", "OPCODES", "VERSION", "encode"]

MAGIC = 0x6165_6361_7274
"""``tracea`` in ASCII, little end first."""
VERSION = 3

OPCODES = MappingProxyType(
    {
        name: 1 + i
        for i, name in enumerate(
            (
                "gemm",
                "norm",
                "elementwise",
                "embedding",
                "attention",
                "conv",
                "conv_stem",
                "depthwise",
                "winograd",
                "pool",
                "pool_all",
                "block",
                "unblock",
                "halo",
                "conv_plain",
                "gemm_bf16",
                "round_bf16",
                "reduce",
                "softmax",
                "channel_norm",
                "copy",
                "recurrent",
                "gemm_blocks",
                "attention_bf16",
                "conv_bf16",
                "conv_stem_bf16",
                "depthwise_bf16",
                "winograd_bf16",
                "resize",
                "deal",
                "gemm_blocks_bf16",
                "gemm_masked",
                "gemm_masked_bf16",
                "gemm_int16",
                "round_int16",
                "append",
                "gemm_bf16x2",
                "round_bf16x2",
                "conv_int16",
                "round_images",
                "winograd_int16",
                "arg",
                "take",
                "conv_or_winograd",
                "top_k",
                "attention_rounded",
                "conv_or_winograd_bf16",
                "conv_or_winograd_int16",
                "pool_bf16",
                "split_images",
                "conv_bf16x2",
                "grid",
            )
        )
    }
)
LIMITS = MappingProxyType(
    {
        "words": 1 << 20,
        "inputs": 512,
        "outputs": 64,
        "symbols": 64,
        "loops": 64,
        "temps": 1024,
        "calls": 4096,
        "rank": 8,
        "ints": 16,
        "floats": 16,
        "views": 24,
        "drivers": 16,
        "expression": 2048,
    }
)
"""What the library accepts; the same numbers stand in ``runtime/plan.h``."""

_KINDS = MappingProxyType({"input": 0, "output": 1, "temp": 2})
_OPERATORS = MappingProxyType(
    {"add": 2, "sub": 3, "mul": 4, "floordiv": 5, "ceildiv": 6, "max": 7, "min": 8}
)


def encode(program: Program) -> tuple[int, ...]:
    """The plan of a program.

    Raises GraphError when a signature is not fully typed, an extent uses a symbol the program
    does not bind, or the program exceeds :data:`LIMITS`.
    """
    index = {name: i for i, name in enumerate(program.symbols)}
    turning = [name for loop in program.loops for name in (loop.start, loop.end)]
    body: list[int] = []
    for what, items in (
        ("inputs", program.inputs),
        ("outputs", program.outputs),
        ("symbols", program.symbols),
        ("loops", program.loops),
        ("temps", program.temps),
        ("calls", program.calls),
    ):
        body.append(_counted(what, items))
    for spec in (*program.inputs, *program.outputs):
        body += _tensor(spec, index)
    for where in program.symbols.values():
        body += where
    for loop in program.loops:
        body += (loop.first, loop.last, loop.step, int(loop.apart))
        body += _expression(loop.extent, index)
    for temp in program.temps:
        body += (temp.dtype.onnx, *_expression(temp.count, index), temp.first, temp.last)
    index |= {name: len(program.symbols) + i for i, name in enumerate(turning)}
    for call in program.calls:
        body += _call(call, index)
    plan = (MAGIC, VERSION, len(body) + 3, *body)
    _counted("words", plan)
    return plan


def _counted(what: str, items: Sequence[object] | Iterable[object]) -> int:
    count = len(tuple(items))
    if count > LIMITS[what]:
        raise GraphError(f"A plan holds at most {LIMITS[what]} {what}, this one has {count}.")
    return count


def _tensor(spec: TensorSpec, index: dict[str, int]) -> list[int]:
    if spec.dtype is None or spec.shape is None:
        raise GraphError(f"A program's signature must be fully typed, but it has {spec}.")
    return [spec.dtype.onnx, _counted("rank", spec.shape), *_expressions(spec.shape, index)]


def _call(call: Call, index: dict[str, int]) -> list[int]:
    if call.kernel not in OPCODES:
        raise GraphError(f"No driver runs {call.kernel!r}; plans know {', '.join(OPCODES)}.")
    words = [OPCODES[call.kernel]]
    for what in ("ints", "floats", "views", "drivers"):
        words.append(_counted(what, getattr(call, what)))
    words.append(-1 if call.chain is None else call.chain.key)
    words += call.ints
    words += (struct.unpack("<q", struct.pack("<d", value))[0] for value in call.floats)
    for view in call.views:
        words += _view(view, index)
    for driver in call.drivers:
        words += astuple(driver)
    return words


def _view(view: View | None, index: dict[str, int]) -> list[int]:
    if view is None:
        return [-1]
    if len(view.dims) != len(view.strides):
        raise GraphError(f"A view needs one stride per dimension, but has {view}.")
    head = [_KINDS[view.buffer.kind], view.buffer.index, _counted("rank", view.dims)]
    return head + _expressions((view.offset, *view.dims, *view.strides), index)


def _expressions(extents: Iterable[Extent], index: dict[str, int]) -> list[int]:
    return [word for extent in extents for word in _expression(extent, index)]


def _expression(extent: Extent, index: dict[str, int]) -> list[int]:
    code = _postfix(extent, index)
    return [_counted("expression", code), *code]


def _postfix(extent: Extent, index: dict[str, int]) -> list[int]:
    if isinstance(extent, int):
        return [0, extent]
    if isinstance(extent, str):
        if extent not in index:
            raise GraphError(f"A plan uses the size {extent!r}, which no input of it binds.")
        return [1, index[extent]]
    a, b = extent.args
    return [*_postfix(a, index), *_postfix(b, index), _OPERATORS[extent.op]]
