"""Write a GPU program: narrow types between calls, split-K counters, and scratch placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tracea_graph.ir import DType, Extent, combine, evaluate
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.program import Buffer, Call, Program, View
from tracea_graph.kernels.program_writer import ProgramWriter, Shape, Value
from tracea_graph.kernels.schema import Operand
from tracea_graph.ops.chain import FULL, ROW, Chain, Step
from tracea_graph.ops.norm import Norm
from tracea_graph.ttg.arena_allocation import Lifetime, placement_order

__all__ = ["SCALED", "ZERO", "GpuProgramWriter", "NormedRows", "ScaledImage",
           "channels_last_order", "none_of_one", "of_many_rows", "with_row_operands"]  # fmt: skip

SCALED = Chain((FULL, FULL), (Step("mul", (0, 1)),), (2,))
ZERO = Chain((), (Step("add", (0.0, 0.0)),), (0,))
HALVES = (DType.F16, DType.BF16)


@dataclass
class NormedRows:
    """A norm whose result ``y`` is a scratch matrix, with all that is needed to compute it again.

    ``rows`` are the rows that are normalised.  ``moments`` are their means and inverse standard
    deviations, once a matmul has computed them; ``sums`` are sums of parts of the rows, once the
    matmul that computes the rows writes these.
    """

    y: View
    rows: Value
    norm: Norm
    gamma: Value | None
    beta: Value | None
    moments: tuple[Value, Value] | None = None
    sums: View | None = None


@dataclass(frozen=True)
class ScaledImage:
    """A channels-last image ``y`` of scratch: ``x`` times one factor for each image and channel.

    The views are [N, H, W, C], ``factors`` is [N, C].
    """

    y: View
    x: View
    factors: View


@dataclass
class GpuProgramWriter(ProgramWriter):
    """Builder of a program's calls.

    ``narrow`` is the type in which numbers are stored between calls.  ``rounds`` says whether
    float32 operands of matmuls may be rounded to tf32, ``factor`` and ``promoted`` are those of
    the step being written (see ``RegionStep``).  ``sizes`` are likely values of symbols.
    ``normed`` maps the buffer of a norm's result to the norm, which matmuls can compute again;
    ``scaled`` maps that of an image to what it was scaled from.  ``projects`` says whether the
    step alone reads a depthwise convolution, whose call may compute it too.
    """

    narrow: DType = DType.F32
    rounds: bool = False
    factor: float = 0.0
    promoted: bool = False
    projects: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    counts: int = 0
    counted: tuple[int, Buffer] | None = None
    normed: dict[Buffer, NormedRows] = field(default_factory=dict)
    scaled: dict[Buffer, ScaledImage] = field(default_factory=dict)

    def about(self, extent: Extent) -> int | None:
        """Return the likely value of a size, or None if it is unknown."""
        try:
            return evaluate(extent, self.sizes)
        except KeyError:
            return None

    def number(self, shape: Shape, order: Sequence[int] = ()) -> Value:
        """Allocate scratch for floating-point numbers, in the type ``narrow``."""
        return self.temp(self.narrow, shape, order)

    @property
    def multiplied(self) -> str:
        """Compute type of matmuls; float32 operands become tf32, or sums of two tf32 numbers."""
        wide = "tf32" if self.rounds else "tf32x3"
        return wide if self.narrow is DType.F32 else self.narrow.short

    def arrivals(self, count: int) -> View:
        """Allocate ``count`` int32 counters, which are 0 when the next call starts.

        One launch, before the first call with counters, clears all counters of the program.
        """
        if self.counted is None:
            self.counted = len(self.calls), self.temp(DType.I32, (0,)).view.buffer
        at, self.counts = self.counts, self.counts + count
        return View(self.counted[1], (count,), (1,), at)

    def _cleared(self) -> None:
        """Insert the launch that clears the counters."""
        if self.counted is None:
            return
        first, buffer = self.counted
        self.temps[buffer.index] = DType.I32, self.counts
        chain = replace(ZERO, stores=(DType.I32,))
        whole = View(buffer, (self.counts,), (1,))
        self.calls.insert(first, CALLS.listed("elementwise", [whole], chain=chain))
        self.counted = None

    def drop(self, call: Call) -> None:
        """Remove a call.  Results that no other call uses take no room any more."""
        at = next(i for i, one in enumerate(self.calls) if one is call)
        del self.calls[at]
        if self.counted is not None and self.counted[0] > at:
            self.counted = self.counted[0] - 1, self.counted[1]
        kept = {view.buffer for one in self.calls for view in one.views if view is not None}
        for operand, view in CALLS.of(call).each(call):
            if operand.written and view is not None and view.buffer not in kept:
                self.temps[view.buffer.index] = self.temps[view.buffer.index][0], 0

    def drop_unread(self) -> None:
        """Drop norms and scaled images that nothing reads: their readers compute them.

        Norms that only kernels of several rows read are not computed for one row.
        """
        for y in (*self.normed, *self.scaled):
            found = [
                (i, operand) for i, call in enumerate(self.calls)
                for operand, view in CALLS.of(call).each(call) if view and view.buffer == y
            ]  # fmt: skip
            if not found or not found[0][1].written:
                continue
            at, others = found[0][0], found[1:]
            if others:
                if all(self._repeats(i, operand) for i, operand in others):
                    self.calls[at] = _for_several_rows(self.calls[at])
                continue
            del self.calls[at]
            if self.counted is not None and self.counted[0] > at:
                self.counted = self.counted[0] - 1, self.counted[1]
            self.temps[y.index] = self.temps[y.index][0], 0
        self.normed.clear()
        self.scaled.clear()

    def _repeats(self, number: int, operand: Operand) -> bool:
        """Whether a call computes the norm that an operand holds itself if there is one row.

        Or it has no rows then.
        """
        call = self.calls[number]
        named = CALLS.of(call).named(call)
        if call.op == "gemm" and operand.name == "x":
            x = named["x"]
            assert isinstance(x, View)
            held = self.normed.get(x.buffer)
            if held is None:  # a scaled image
                return False
            norm = held.y.dims[0]
            return x.dims[0] in (of_many_rows(norm), of_many_rows(none_of_one(norm)))
        if call.op != "gemm_nbits" or operand.name != "x":
            return False
        return named["gamma"] is not None

    def call(self, op: str, dtype: str = "f32", **named: object) -> None:
        """Append a call, with operands and attributes by name."""
        self.calls.append(CALLS.make(op, dtype, **named))

    def elementwise_call(self, chain: Chain, views: Sequence[View]) -> None:
        self.calls.append(CALLS.listed("elementwise", views, chain=chain))

    def copy_call(self, source: View, target: View, dtype: DType) -> None:
        self.call("copy", f"b{int(dtype.size)}", x=source, y=target)

    def done(self, symbols: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> Program:
        """Return the program, with scratch buffers placed for these values of its symbols."""
        self._cleared()
        made = self.program(symbols)
        lives = [
            Lifetime(str(i), int(max(0, evaluate(t.count, sizes)) * t.dtype.size), t.first, t.last)
            for i, t in enumerate(made.temps)
        ]
        order = placement_order(lives)
        moved = {Buffer("temp", t): Buffer("temp", place) for place, t in enumerate(order)}
        calls = tuple(
            replace(c, views=tuple(
                v and replace(v, buffer=moved.get(v.buffer, v.buffer)) for v in c.views
            ))
            for c in made.calls
        )  # fmt: skip
        return replace(made, temps=tuple(made.temps[t] for t in order), calls=calls)


def channels_last_order(rank: int) -> tuple[int, ...]:
    """Return the axis order in which images and volumes are stored between steps."""
    return (0, *range(2, rank), 1)


def with_row_operands(chain: Chain, inputs: Sequence[View]) -> Chain:
    """Return an epilogue of sums whose inputs that are equal in all rows are read as one row.

    ``inputs`` are matrices, or batches of them.  Kernels read a row once for a tile.
    """
    kinds = (_row_kind(*pair) for pair in zip(chain.operands[1:], inputs, strict=True))
    return replace(chain, operands=(FULL, *kinds))


def _row_kind(kind: str, view: View) -> str:
    return ROW if kind == FULL and view.strides[-2:] == (0, 1) else kind


LEAST_MANY_ROWS = 256
"""Fewest rows for which a block-quantized matrix is dequantized as a whole."""


def of_many_rows(rows: Extent) -> Extent:
    """Return a number of rows, but 0 for few: of a call that is launched for many rows alone."""
    above = combine("max", 0, combine("sub", rows, LEAST_MANY_ROWS - 1))
    return combine("mul", rows, combine("min", 1, above))


def none_of_one(rows: Extent) -> Extent:
    """Return a number of rows, but 0 for one row: of a call that is not launched for it."""
    return combine("mul", rows, combine("min", 1, combine("sub", rows, 1)))


def _for_several_rows(call: Call) -> Call:
    """Return a call of rows that is not launched if there is one row, for it then has no rows."""
    schema, views = CALLS.of(call), list(call.views)
    for name in ("x", "y", "also"):
        own = schema.slices(call)[name]
        for i in range(own.start, own.stop):
            if (view := views[i]) is not None:
                views[i] = replace(view, dims=(none_of_one(view.dims[0]), *view.dims[1:]))
    return replace(call, views=tuple(views))
