"""Encode a program as its node's ``plan`` attribute, a flat list of int64, and decode plans.

A plan is self-delimiting; the library validates every word.

=========  =====================================================================================
part       words
=========  =====================================================================================
header     magic, version, total words, then the counts: inputs, outputs, symbols, loops, temps,
           calls
tensor     (inputs, then outputs) ONNX element code, rank and, of an input, 16 << axis for each
           loose axis, one expression per dimension
symbol     the input and the axis that bind it
loop       first call, last call, rows of an iteration, 1 if parallel, expression of all rows;
           its two symbols, the first row and the end of an iteration, are numbered after the bound
           ones
temp       ONNX element code, count expression, first call, last call; in the order of placement
call       opcode, #ints, #floats, #views, #schedules, #results, chain (its key, or -1), ints,
           floats (bits of a double), views, schedules; the record in ``calls`` defines their order
view       kind (-1 none: nothing follows; 0 input, 1 output, 2 temp), index, rank, offset
           expression, one expression per dimension, one per stride
schedule     the fields of the call's schedule, in order
barrier    (only if it is decided for a call) for each call, the threads from which on they wait
           for each other before it, instead of for rows (0: the library decides), and up to how
           many rows (0: any number)
expression #words, then postfix code: ``0 value``, ``1 symbol``, or an operator (2 add, 3 sub,
           4 mul, 5 floordiv, 6 ceildiv, 7 max, 8 min)
=========  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from types import MappingProxyType

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Expr, Extent, TensorSpec
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.extent_bytecode import (
    FIRST_OPERATOR,
    NUMBER,
    OPERATORS,
    SYMBOL,
    encode_extent,
)
from tracea_graph.kernels.program import Buffer, Call, Loop, Program, Temp, View
from tracea_graph.kernels.schema import CallSchema, bits_float, float_bits

__all__ = ["LIMITS", "MAGIC", "VERSION", "DecodedCall", "DecodedPlan", "decode", "encode"]

MAGIC = 0x6165_6361_7274
"""``tracea`` in ASCII, little-endian."""
VERSION = 5

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
        "schedules": 16,
        "expression": 2048,
    }
)
"""Largest counts that the library accepts, as in ``runtime/plan.h``."""

_KINDS = ("input", "output", "temp")
_LOOSE = 16
"""Bit that marks axis 0 of an input as loose, in the word of its rank."""


# ---- encoding ------------------------------------------------------------------------------


def encode(program: Program) -> tuple[int, ...]:
    """Encode a program as a plan.

    Raises GraphError when a signature is not fully typed, an extent uses a symbol the program
    does not bind, or the program exceeds :data:`LIMITS`.
    """
    index = {name: i for i, name in enumerate(program.symbols)}
    loops = [name for loop in program.loops for name in (loop.start, loop.end)]
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
    for i, spec in enumerate((*program.inputs, *program.outputs)):
        body += _tensor(spec, index, sum(_LOOSE << axis for n, axis in program.loose if n == i))
    for where in program.symbols.values():
        body += where
    for loop in program.loops:
        body += (loop.first, loop.last, loop.step, int(loop.parallel))
        body += _expression(loop.extent, index)
    for temp in program.temps:
        body += (temp.dtype.onnx, *_expression(temp.count, index), temp.first, temp.last)
    index |= {name: len(program.symbols) + i for i, name in enumerate(loops)}
    for call in program.calls:
        body += _call(call, index)
    if any(call.barrier_from for call in program.calls):
        for call in program.calls:
            body += (call.barrier_from, call.barrier_rows)
    plan = (MAGIC, VERSION, len(body) + 3, *body)
    _counted("words", plan)
    return plan


def _counted(what: str, items: Sequence[object] | Iterable[object]) -> int:
    count = len(tuple(items))
    if count > LIMITS[what]:
        raise GraphError(f"A plan holds at most {LIMITS[what]} {what}; this one has {count}.")
    return count


def _tensor(spec: TensorSpec, index: dict[str, int], loose: int) -> list[int]:
    if spec.dtype is None or spec.shape is None:
        raise GraphError(f"A program's signature must be fully typed, but it has {spec}.")
    rank = _counted("rank", spec.shape)
    return [spec.dtype.onnx, rank | loose, *_expressions(spec.shape, index)]


def _call(call: Call, index: dict[str, int]) -> list[int]:
    schema = CALLS.of(call)
    ints, floats = schema.words(call.attributes)
    words = [CALLS.opcode(call)]
    for what, items in (
        ("ints", ints), ("floats", floats), ("views", call.views), ("schedules", call.schedules)
    ):  # fmt: skip
        words.append(_counted(what, items))
    words.append(len(schema.written(call)))
    words.append(-1 if call.chain is None else call.chain.key)
    words += ints
    words += map(float_bits, floats)
    for view in call.views:
        words += _view(view, index)
    for schedule in call.schedules:
        words += astuple(schedule)
    return words


def _view(view: View | None, index: dict[str, int]) -> list[int]:
    if view is None:
        return [-1]
    if len(view.dims) != len(view.strides):
        raise GraphError(f"A view needs one stride per dimension, but has {view}.")
    head = [_KINDS.index(view.buffer.kind), view.buffer.index, _counted("rank", view.dims)]
    return head + _expressions((view.offset, *view.dims, *view.strides), index)


def _expressions(extents: Iterable[Extent], index: dict[str, int]) -> list[int]:
    return [word for extent in extents for word in _expression(extent, index)]


def _expression(extent: Extent, index: dict[str, int]) -> list[int]:
    code = encode_extent(extent, index)
    return [_counted("expression", code), *code]


# ---- decoding ------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecodedCall:
    """A call read from a plan, which holds only the key of its chain (-1: none)."""

    schema: CallSchema
    call: Call
    chain: int
    slices: dict[str, slice]


@dataclass(frozen=True)
class DecodedPlan:
    """A decoded plan; symbols, also those of loops, are named ``s0``, ``s1`` …"""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[tuple[int, int], ...]
    loops: tuple[Loop, ...]
    temps: tuple[Temp, ...]
    calls: tuple[DecodedCall, ...]
    loose: frozenset[tuple[int, int]] = frozenset()


def decode(plan: Sequence[int]) -> DecodedPlan:
    """Decode a plan.

    Raises GraphError for a plan of another version or a malformed plan.
    """
    try:
        return _Reader(plan).plan()
    except (IndexError, ValueError) as error:
        raise GraphError(f"the plan cannot be read: {error}") from error


class _Reader:
    """Sequential reader of a plan's words; malformed plans raise ValueError or IndexError."""

    def __init__(self, words: Sequence[int]) -> None:
        self.words, self.at = words, 0

    def take(self, count: int) -> list[int]:
        found = list(self.words[self.at : self.at + count])
        if count < 0 or len(found) != count:
            raise ValueError("it ends too early")
        self.at += count
        return found

    def plan(self) -> DecodedPlan:
        magic, version, total = self.take(3)
        if (magic, version) != (MAGIC, VERSION):
            raise ValueError("it was written by another version")
        inputs, outputs, symbols, loops, temps, calls = self.take(6)
        found = [self.tensor() for _ in range(inputs + outputs)]
        tensors, marks = [spec for spec, _ in found], [axes for _, axes in found]
        loose = frozenset((i, axis) for i, axes in enumerate(marks) for axis in axes)
        bound = tuple((i, axis) for i, axis in (self.take(2) for _ in range(symbols)))
        made = DecodedPlan(
            tuple(tensors[:inputs]),
            tuple(tensors[inputs:]),
            bound,
            tuple(self.loop(symbols + 2 * i) for i in range(loops)),
            tuple(self.temp() for _ in range(temps)),
            self.calls(calls, total),
            loose,
        )
        if self.at != total or total != len(self.words):
            raise ValueError("its length differs from the one it declares")
        return made

    def tensor(self) -> tuple[TensorSpec, list[int]]:
        code, word = self.take(2)
        marks, rank = divmod(word, _LOOSE)
        loose = [axis for axis in range(rank) if marks >> axis & 1]
        return TensorSpec(_element(code), self.extents(rank)), loose

    def loop(self, symbol: int) -> Loop:
        first, last, step, parallel = self.take(4)
        names = f"s{symbol}", f"s{symbol + 1}"
        return Loop(first, last, self.extent(), step, *names, parallel=bool(parallel))

    def temp(self) -> Temp:
        (code,) = self.take(1)
        return Temp(_element(code), self.extent(), *self.take(2))

    def calls(self, count: int, total: int) -> tuple[DecodedCall, ...]:
        found = [self.call() for _ in range(count)]
        if not count or self.at + 2 * count != total:
            return tuple(found)
        pairs = [self.take(2) for _ in found]
        return tuple(
            replace(one, call=replace(one.call, barrier_from=threads, barrier_rows=rows))
            for one, (threads, rows) in zip(found, pairs, strict=True)
        )

    def call(self) -> DecodedCall:
        opcode, ints, floats, views, schedules, results, chain = self.take(7)
        schema = CALLS.coded(opcode)
        whole, reals = self.take(ints), [bits_float(word) for word in self.take(floats)]
        attributes = schema.attributes_of(whole, reals)
        seen = tuple(self.view() for _ in range(views))
        tables = []
        if schedules and schema.schedule is None:
            raise ValueError(f"{schema.name} takes no schedule")
        for _ in range(schedules):
            assert schema.schedule is not None
            tables.append(schema.schedule.of(self.take(len(fields(schema.schedule)))))
        call = Call(schema.op, schema.dtype, seen, attributes, None, tuple(tables))
        return DecodedCall(schema, call, chain, schema.slices_of(attributes, views, results))

    def view(self) -> View | None:
        (kind,) = self.take(1)
        if kind == -1:
            return None
        index, rank = self.take(2)
        offset, dims, strides = self.extent(), self.extents(rank), self.extents(rank)
        return View(Buffer(_word(_KINDS, kind), index), dims, strides, offset)

    def extents(self, count: int) -> tuple[Extent, ...]:
        return tuple(self.extent() for _ in range(count))

    def extent(self) -> Extent:
        (count,) = self.take(1)
        stack, code = list[Extent](), iter(self.take(count))
        for op in code:
            if op == NUMBER:
                stack.append(next(code, 0))
            elif op == SYMBOL:
                stack.append(f"s{next(code, 0)}")
            else:
                b, a = stack.pop(), stack.pop()
                stack.append(Expr(_word(OPERATORS, op - FIRST_OPERATOR), (a, b)))
        (value,) = stack
        return value


def _word(words: Sequence[str], code: int) -> str:
    """The word with index ``code``.  Raises ValueError if it is negative or too large."""
    if not 0 <= code < len(words):
        raise ValueError(f"{code} is not the number of one of {', '.join(words)}")
    return words[code]


def _element(code: int) -> DType:
    dtype = DType.from_onnx(code)
    if dtype is None:
        raise ValueError(f"it has the unknown element type {code}")
    return dtype
