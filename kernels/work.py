"""What each call of a plan does at given sizes, read from the plan: products, bytes, results.

    bytes of a view = its dims, those of stride 0 once, × element size

A table rows are picked from is touched as far as the result is long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from tracea_graph.errors import GraphError
from tracea_graph.ir import EXPR_OPS, DType
from tracea_graph.kernels.plan import MAGIC, OPCODES, VERSION

__all__ = ["CallWork", "calls_of_plan"]

_KERNELS = MappingProxyType({code: name for name, code in OPCODES.items()})
_OPERATORS = ("add", "sub", "mul", "floordiv", "ceildiv", "max", "min")
"""From code 2 on, as in ``plan``."""
_INPUT, _OUTPUT, _ABSENT = 0, 1, -1


@dataclass(frozen=True)
class Touched:
    """A view as a call sees it: the node's input it lies in (None: an output, or scratch)."""

    input: int | None
    dims: tuple[int, ...]
    bytes: float
    offset: int = 0


@dataclass(frozen=True)
class CallWork:
    """One call: operations of its matrix products, elements of its results, and its views.

    ``size`` is the product's: rows × columns × depth, after their number if above 1; else the
    dims of the result.  A call of a loop is all its turns; its size is that of the first, after
    ``turns ×``.
    """

    kernel: str
    products: float
    results: float
    views: tuple[Touched, ...]
    size: str

    @property
    def bytes(self) -> float:
        return sum(view.bytes for view in self.views)


def calls_of_plan(plan: Sequence[int], symbols: Sequence[int]) -> tuple[CallWork, ...]:
    """The work of every call under the values of the program's symbols.

    Raises GraphError for a plan of another version, or one that makes no sense.
    """
    try:
        return _Plan(list(plan), list(symbols)).calls()
    except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
        raise GraphError(f"the plan cannot be read: {error}") from error


class _Plan:
    """Reads words in order, as ``plan.encode`` wrote them."""

    def __init__(self, words: list[int], symbols: list[int]) -> None:
        self.words, self.symbols, self.at = words, symbols, 0

    def calls(self) -> tuple[CallWork, ...]:
        magic, version, _ = self.take(3)
        if (magic, version) != (MAGIC, VERSION):
            raise ValueError("it was written by another version")
        inputs, outputs, symbols, loops, temps, calls = self.take(6)
        sizes = [self.tensor() for _ in range(inputs + outputs)]
        self.take(2 * symbols)
        turns = [self.loop() for _ in range(loops)]
        scratch = [self.temp() for _ in range(temps)]
        held = (sizes[:inputs], sizes[inputs:], scratch)
        bound = self.symbols[:symbols]
        return tuple(self.turns(held, bound, i, turns) for i in range(calls))

    def loop(self) -> tuple[int, int, int, int]:
        """First and last call, rows of a turn, all rows."""
        first, last, step, _ = self.take(4)
        return first, last, step, self.extent()

    def turns(
        self,
        held: Sequence[Sequence[float]],
        bound: Sequence[int],
        index: int,
        loops: Sequence[tuple[int, int, int, int]],
    ) -> CallWork:
        """A call, in all its turns if a loop has it."""
        self.symbols = [*bound, *(0 for _ in loops for _ in "se")]
        for i, (first, last, step, rows) in enumerate(loops):
            if not first <= index <= last or rows <= 0:
                continue
            start, place, found = self.at, len(bound) + 2 * i, list[CallWork]()
            for row in range(0, rows, step):
                self.at = start
                self.symbols[place : place + 2] = row, min(row + step, rows)
                found.append(self.call(held))
            return _together(found)
        return self.call(held)

    def take(self, count: int) -> list[int]:
        found = self.words[self.at : self.at + count]
        if len(found) != count:
            raise ValueError("it ends too early")
        self.at += count
        return found

    def tensor(self) -> float:
        """Bytes of an element of a tensor of the signature."""
        code, rank = self.take(2)
        self.extents(rank)
        return _element(code)

    def temp(self) -> float:
        (code,) = self.take(1)
        self.extent()
        self.take(2)
        return _element(code)

    def call(self, held: Sequence[Sequence[float]]) -> CallWork:
        opcode, ints, floats, views, drivers, _ = self.take(6)
        numbers = tuple(self.take(ints))
        self.take(floats)
        seen = [self.view(held) for _ in range(views)]
        self.take(5 * drivers)
        return _work(_KERNELS[opcode], [view for view in seen if view is not None], numbers)

    def view(self, held: Sequence[Sequence[float]]) -> Touched | None:
        (kind,) = self.take(1)
        if kind == _ABSENT:
            return None
        index, rank = self.take(2)
        offset = self.extent()
        dims, strides = self.extents(rank), self.extents(rank)
        once = prod(d for d, stride in zip(dims, strides, strict=True) if stride or not d)
        where = index if kind == _INPUT else None
        return Touched(where, dims, float(once * held[kind][index]), offset)

    def extents(self, count: int) -> tuple[int, ...]:
        return tuple(self.extent() for _ in range(count))

    def extent(self) -> int:
        (count,) = self.take(1)
        stack, code = list[int](), iter(self.take(count))
        for op in code:
            if op == 0:
                stack.append(next(code))
            elif op == 1:
                stack.append(self.symbols[next(code)])
            else:
                b, a = stack.pop(), stack.pop()
                stack.append(EXPR_OPS[_OPERATORS[op - 2]](a, b))
        (value,) = stack
        return value


def _together(turns: Sequence[CallWork]) -> CallWork:
    """All turns of a call; what each of them sees alike is touched once."""
    first = turns[0]
    views = [
        seen[0] if len({*seen}) == 1 and seen[0].input is not None
        else replace(seen[0], bytes=sum(v.bytes for v in seen))
        for seen in zip(*(t.views for t in turns), strict=True)
    ]  # fmt: skip
    return CallWork(
        first.kernel,
        sum(t.products for t in turns),
        sum(t.results for t in turns),
        tuple(views),
        f"{len(turns)} × {first.size}",
    )


def _element(code: int) -> float:
    """Bytes of an element of an ONNX type."""
    dtype = DType.from_onnx(code)
    if dtype is None:
        raise ValueError(f"it names the element type {code}")
    return dtype.size


# ---- kernels ---------------------------------------------------------------------------

Problem = Callable[[Sequence[Touched], tuple[int, ...]], tuple[int, ...]]
"""From a call's views and ints: how many matrix products, and rows, columns, depth of each."""


def _gemm(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    *outer, rows, depth = views[0].dims
    _, parts = ints
    columns = sum(view.dims[-1] for view in views[-parts:])
    return prod(outer), rows, columns, depth


def _stored(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    """A product by the numbers of a matrix that are stored, as the dense one."""
    (rows, depth), (parts,) = views[0].dims, ints
    return 1, rows, sum(view.dims[-1] for view in views[-parts:]), depth


def _attention(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    """Both products as one: queries × keys × the depths of keys and of values."""
    batch, heads, rows, depth = views[0].dims
    return batch * heads, rows, views[1].dims[2], depth + views[2].dims[3]


def _conv(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    """Pixels × channels × channels read at all taps, those of last blocks as many as there are."""
    groups, *last = ints[4:7]
    _, depth, *taps = views[1].dims[:4]
    missing = 16 - last[1] if groups == 1 else 0
    return 1, *_made(views[-1], ints, last[0]), (depth * 16 - missing) * prod(taps)


def _conv_bf16(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    """The same, where blocks that are read may be broad."""
    *first, depth = _conv(views, ints)
    return (*first, depth * (views[0].dims[4] // 16))


def _stem(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    return 1, *_made(views[-1], ints, ints[8]), prod(views[1].dims[1:4])


def _depthwise(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    """One product per channel."""
    pixels, channels = _made(views[-1], ints, ints[4])
    return channels, pixels, 1, prod(views[1].dims[1:3])


def _winograd(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    """As the direct convolution it stands for."""
    last_out, last_in = ints[1:3]
    depth = (views[1].dims[2] - 1) * 16 + last_in
    return 1, *_made(views[-1], ints, last_out), depth * 9


def _either(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    return _winograd(views[1:], ints)


def _either_whole(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    """Behind the direct filters lie their scales."""
    return _winograd(views[2:], ints)


def _conv_plain(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    groups, (out, *taps), (batch, _, *space) = ints[0], views[1].dims, views[-1].dims
    return groups, batch * prod(space), out // groups, prod(taps)


def _recurrent(views: Sequence[Touched], ints: tuple[int, ...]) -> tuple[int, ...]:
    """The state's products: gates of every step and direction."""
    (directions, steps, batch, _), (_, panels, hidden, width) = views[0].dims, views[1].dims
    return directions * steps, batch, panels * width, hidden


def _made(y: Touched, ints: tuple[int, ...], last: int) -> tuple[int, int]:
    """Pixels of a blocked value without its halo, which the last four ints say, and channels."""
    batch, blocks, height, width, lanes = y.dims
    top, left, bottom, right = ints[-4:]
    pixels = batch * (height - top - bottom) * (width - left - right)
    return pixels, blocks * lanes - 16 + last


_PROBLEMS: Mapping[str, Problem] = MappingProxyType(
    {
        "gemm": _gemm, "gemm_bf16": _gemm, "gemm_int16": _gemm, "gemm_bf16x2": _gemm,
        "attention": _attention,
        "attention_bf16": _attention, "attention_rounded": _attention, "conv": _conv,
        "conv_stem": _stem, "depthwise": _depthwise, "winograd": _winograd,
        "conv_plain": _conv_plain,
        "conv_bf16": _conv_bf16, "conv_stem_bf16": _stem, "depthwise_bf16": _depthwise,
        "winograd_bf16": _winograd, "conv_int16": _conv, "winograd_int16": _winograd,
        "conv_bf16x2": _conv,
        "recurrent": _recurrent, "conv_or_winograd": _either, "conv_or_winograd_bf16": _either,
        "conv_or_winograd_int16": _either_whole,
        "gemm_masked": _stored, "gemm_masked_bf16": _stored,
    }
)  # fmt: skip
"""Kernels whose time goes into products; all others compute something per element."""


def _work(kernel: str, views: Sequence[Touched], ints: tuple[int, ...]) -> CallWork:
    result = views[-1]
    if kernel == "embedding":
        views = [_picked(view, result) for view in views]
    if kernel.startswith("conv_or_winograd"):
        views = [replace(views[0], bytes=0.0), *views[1:]]
    size = "×".join(str(d) for d in result.dims if d > 1)
    products = 0.0
    if kernel in _PROBLEMS:
        count, *problem = _PROBLEMS[kernel](views, ints)
        products = 2.0 * count * prod(problem)
        size = f"{count}·" * (count > 1) + "×".join(map(str, problem))
    return CallWork(kernel, products, float(prod(result.dims)), tuple(views), size)


def _picked(view: Touched, result: Touched) -> Touched:
    return replace(view, bytes=min(view.bytes, result.bytes)) if len(view.dims) == 2 else view
