"""Writing a GPU's program: numbers between calls in a narrow type, counters, placed scratch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tracea_graph.ir import DType, Extent, evaluate
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.program import Buffer, Program, View
from tracea_graph.kernels.program_writer import ProgramWriter, Shape, Value
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ttg.arena import Lifetime, placement_order

__all__ = ["ZERO", "Writer"]

ZERO = Chain((), (Step("add", (0.0, 0.0)),), (0,))
HALVES = (DType.F16, DType.BF16)


@dataclass
class Writer(ProgramWriter):
    """Collects a program.

    ``narrow`` is the type numbers between calls are stored in; ``sizes`` are values of symbols
    that are likely, where these are known.
    """

    narrow: DType = DType.F32
    sizes: Mapping[str, int] = field(default_factory=dict)
    counts: int = 0
    counted: tuple[int, Buffer] | None = None

    def about(self, extent: Extent) -> int | None:
        """What a size is likely to be; None where nobody knows."""
        try:
            return evaluate(extent, self.sizes)
        except KeyError:
            return None

    def number(self, shape: Shape, order: Sequence[int] = ()) -> Value:
        """Scratch for numbers, in the type they are stored in here."""
        return self.temp(self.narrow, shape, order)

    def arrivals(self, count: int) -> View:
        """Whole numbers that are 0 until a call counts in them; all of a program are cleared by
        one launch, before the first of these calls."""
        if self.counted is None:
            self.counted = len(self.calls), self.temp(DType.I32, (0,)).view.buffer
        at, self.counts = self.counts, self.counts + count
        return View(self.counted[1], (count,), (1,), at)

    def _cleared(self) -> None:
        """Write the launch that clears what calls count in."""
        if self.counted is None:
            return
        first, buffer = self.counted
        self.temps[buffer.index] = DType.I32, self.counts
        chain = replace(ZERO, stores=(DType.I32,))
        whole = View(buffer, (self.counts,), (1,))
        self.calls.insert(first, CALLS.listed("elementwise", [whole], chain=chain))
        self.counted = None

    def call(self, op: str, dtype: str = "f32", **named: object) -> None:
        """Append a call, its operands and attributes by name; no operand has rank 0."""
        self.calls.append(CALLS.make(op, dtype, **named))

    def elementwise_call(self, chain: Chain, views: Sequence[View]) -> None:
        self.calls.append(CALLS.listed("elementwise", views, chain=chain))

    def copy_call(self, source: View, target: View, dtype: DType) -> None:
        self.call("copy", f"b{int(dtype.size)}", x=source, y=target)

    def done(self, symbols: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> Program:
        """The program; its scratch is placed for these values of its symbols."""
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
