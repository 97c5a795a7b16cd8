"""Encode a GPU program as its node's ``plan`` attribute, a flat list of int64.

=========  =====================================================================================
part       words
=========  =====================================================================================
header     magic, version, total words, then the counts: inputs, outputs, symbols, sizes, temps,
           launches
symbol     the input and the axis that bind it
size       operator, a, b: ``0 number 0``, ``1 symbol 0``, or an operator on two sizes before it
           (2 add, 3 sub, 4 mul, 5 floordiv, 6 ceildiv, 7 max, 8 min)
tensor     (inputs, then outputs) ONNX element code, rank and, of an input, 16 << axis for each
           loose axis, the size of each dimension
temp       ONNX element code, the size that is its count, first launch, last launch; in the order
           in which they are allocated
launch     the kernel's key, three sizes of the grid, threads, bytes of shared memory, blocks of
           the grid for each SM at most (0: any number), a size that is positive if the launch is
           for these sizes, how many of the next launches do the same instead, how many arguments,
           and these
argument   0 pointer: buffer (inputs, outputs, temps counted through; −1: null), 1 if written,
           bytes of an element, two sizes: offset, and length of the span from the first element
           to the last, 0 if the view is empty; 1 integer: a size; 2 float: its 32 bits;
           3 divisor: a size; 4 whether it is constant: buffer; 5 tensor map: what a pointer has,
           ONNX element code, rank, sizes that are the dimensions (innermost first) and, from axis
           1 on, the strides, and numbers that are the box; 6 tensor map of an image: the same
           with a box of channels and pixels, then for the width, the height and the depth of
           a volume sizes of the padding before, and of the last start beyond the image, and
           the step of starts
=========  =====================================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.extent_bytecode import NUMBER, SYMBOL, operator_opcode, symbol_index
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernel_selection import key_of, launches_for
from tracea_graph.kernels.gpu.launch import Argument, Launch
from tracea_graph.kernels.gpu.release_choice import with_releases
from tracea_graph.kernels.program import Buffer, Call, Program, View
from tracea_graph.ops.chain import FLOATS8

__all__ = ["LIMITS", "MAGIC", "VERSION", "encode"]

MAGIC = 0x7570_6761_6563_6172
"""``raceagpu`` in ASCII, little-endian."""
VERSION = 3
TF32 = 32
"""Element type of a tensor map whose copies round floats to tf32; ONNX has no such type."""
LIMITS = {
    "words": 1 << 20, "inputs": 1024, "outputs": 64, "symbols": 64, "sizes": 1 << 14,
    "temps": 4096, "launches": 8192, "rank": 8, "arguments": 256, "alternatives": 15,
}  # fmt: skip
"""Limits of the library; ``runtime/plan.h`` repeats the numbers."""
_LOOSE = 16
"""Bit for axis 0 as a loose axis, in the word that holds an input's rank."""
_KINDS = ("pointer", "i32", "f32", "divisor", "fixed", "map", "pixels")


@dataclass
class _Sizes:
    """Table of the sizes of a plan, without duplicates."""

    symbols: Mapping[str, int]
    rows: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def of(self, extent: Extent) -> int:
        """Return the index of a size.  Raises GraphError if it uses an unbound symbol."""
        if isinstance(extent, int):
            row = (NUMBER, extent, 0)
        elif isinstance(extent, str):
            row = (SYMBOL, symbol_index(extent, self.symbols), 0)
        else:
            a, b = extent.args
            row = (operator_opcode(extent.op), self.of(a), self.of(b))
        return self.rows.setdefault(row, len(self.rows))


def encode(
    program: Program, chosen: Sequence[Sequence[tuple[Launch, str]]] | None = None
) -> tuple[int, ...]:
    """Encode a program as a plan.

    ``chosen`` are the launches of each call, if not the default ones.  Raises GraphError if the
    program exceeds :data:`LIMITS` or uses an unbound size.
    """
    if program.loops:
        raise GraphError("A GPU plan cannot contain loops.")
    sizes = _Sizes({name: i for i, name in enumerate(program.symbols)})
    body: list[int] = []
    for i, spec in enumerate((*program.inputs, *program.outputs)):
        if spec.dtype is None or spec.shape is None:
            raise GraphError(f"A program's signature must be fully typed, but it has {spec}.")
        rank = _counted("rank", len(spec.shape))
        rank += sum(_LOOSE << axis for n, axis in program.loose if n == i)
        body += (spec.dtype.onnx, rank, *map(sizes.of, spec.shape))
    launches = with_releases(program, chosen or [launches_for(call) for call in program.calls])
    ends = list(accumulate(map(len, launches)))
    for temp in program.temps:
        first = ends[temp.first] - len(launches[temp.first])
        body += (_element_code(temp.dtype), sizes.of(temp.count), first, ends[temp.last] - 1)
    for call, choices in zip(program.calls, launches, strict=True):
        for i, (launch, symbol) in enumerate(choices):
            body += _launch(program, call, launch, symbol, len(choices) - 1 - i, sizes)
    counts = (
        ("inputs", len(program.inputs)), ("outputs", len(program.outputs)),
        ("symbols", len(program.symbols)), ("sizes", len(sizes.rows)),
        ("temps", len(program.temps)), ("launches", sum(map(len, launches))),
    )  # fmt: skip
    head = [_counted(what, count) for what, count in counts]
    head += [word for place in program.symbols.values() for word in place]
    head += [word for row in sizes.rows for word in row]
    words = (MAGIC, VERSION, 3 + len(head) + len(body), *head, *body)
    _counted("words", len(words))
    return words


def _element_code(dtype: DType) -> int:
    """Return the ONNX code of an element type; the library holds 8-bit floats as bytes."""
    return (DType.U8 if dtype in FLOATS8 else dtype).onnx


def _counted(what: str, count: int) -> int:
    if count > LIMITS[what]:
        raise GraphError(f"A GPU plan holds at most {LIMITS[what]} {what}, this one has {count}.")
    return count


def _launch(
    program: Program, call: Call, launch: Launch, symbol: str, others: int, sizes: _Sizes
) -> list[int]:
    schema = CALLS.of(call)
    written = {id(v.buffer): v.buffer for o, v in schema.each(call) if o.written and v is not None}
    buffers = set(written.values())
    count = _counted("arguments", len(launch.arguments))
    words = [key_of(symbol), *map(sizes.of, launch.grid), launch.threads, launch.shared]
    words += [launch.persistent, sizes.of(launch.when), _counted("alternatives", others), count]
    for argument in launch.arguments:
        words += _argument(program, argument, sizes, buffers)
    return words


def _argument(
    program: Program, argument: Argument, sizes: _Sizes, written: set[Buffer]
) -> list[int]:
    value = argument.value
    if argument.kind == "pointer" and not isinstance(value, View):
        return [0, -1, 0, 1, sizes.of(0), sizes.of(0)]
    if isinstance(value, View):
        first = {"input": 0, "output": len(program.inputs),
                 "temp": len(program.inputs) + len(program.outputs)}  # fmt: skip
        number = first[value.buffer.kind] + value.buffer.index
        if argument.kind == "fixed":
            return [4, number]
        size = int(argument.dtype.size)
        ends = sizes.of(value.offset), sizes.of(_span(value))
        words = [_KINDS.index(argument.kind), number, int(value.buffer in written), size, *ends]
        if argument.kind in ("map", "pixels"):
            tensor = (*value.dims[::-1], *value.strides[-2::-1])
            element = TF32 if argument.rounded else _element_code(argument.dtype)
            words += [element, len(value.dims), *map(sizes.of, tensor)]
            words += argument.box[::-1]
        if (window := argument.window) is not None:
            for side in zip(window.before, window.after, window.steps, strict=True):
                words += [*map(sizes.of, side[:2]), side[2]]
        return words
    if argument.kind == "f32":
        assert isinstance(value, float)
        return [2, int(struct.unpack("<I", struct.pack("<f", value))[0])]
    assert not isinstance(value, View | float | None)
    kind = "i32" if argument.kind == "late" else argument.kind
    return [_KINDS.index(kind), sizes.of(value)]


def _span(view: View) -> Extent:
    """Return 1 plus the offset of a view's last element from its first; 0 if the view is empty.

    Strides of launched views are not negative, except in slices with negative steps, whose first
    element has the highest address.
    """
    total: Extent = 1
    for dim, step in zip(view.dims, view.strides, strict=True):
        if isinstance(step, int) and step <= 0:
            continue
        last = combine("max", combine("sub", dim, 1), 0)
        total = combine("add", total, combine("mul", last, step))
    some = combine("min", product(view.dims), 1)
    return combine("mul", total, some) if some != 1 else total
