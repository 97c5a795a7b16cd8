"""Build a region's program: symbols, scratch, calls and their views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tracea_graph.ir import DType, Extent, TensorSpec, evaluate, product
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.program import Buffer, Call, Loop, Program, Temp, View
from tracea_graph.ttg.arena_allocation import Lifetime, live_range, placement_order

__all__ = [
    "RegionWriter",
    "Shape",
    "Slot",
    "as_matrix",
    "broadcast_view",
    "over_rows",
    "touches",
]  # fmt: skip

Shape = tuple[Extent, ...]


@dataclass(frozen=True)
class Slot:
    """A value of a program: the buffer it fills, its element type and shape.

    ``rounded`` is a bf16 copy of the value, for calls that read bf16.
    """

    buffer: Buffer
    spec: TensorSpec
    rounded: Buffer | None = None

    @property
    def shape(self) -> Shape:
        return self.spec.shape or ()

    @property
    def view(self) -> View:
        """A contiguous view of the whole value."""
        return View.dense(self.buffer, self.shape)

    @property
    def in_bf16(self) -> Slot | None:
        """The value in bf16; None if it is not stored in bf16."""
        if self.spec.dtype is DType.BF16:
            return self
        spec = TensorSpec(DType.BF16, self.spec.shape)
        return Slot(self.rounded, spec) if self.rounded else None

    @property
    def in_f32(self) -> Slot | None:
        """The value in the type of its ``spec``; None if that is bf16."""
        return None if self.spec.dtype is DType.BF16 else self


@dataclass
class RegionWriter:
    """Builder of the program of one region; ``symbols`` are local to the program.

    ``carried`` holds the temporaries whose rows are kept for the next iteration of a loop.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: dict[str, tuple[int, int]]
    temps: list[tuple[DType, Extent]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    carried: set[Buffer] = field(default_factory=set)

    def operands(self) -> list[Slot]:
        return [Slot(Buffer("input", i), s) for i, s in enumerate(self.inputs)]

    def results(self) -> list[Slot]:
        return [Slot(Buffer("output", i), s) for i, s in enumerate(self.outputs)]

    def call(self, op: str, dtype: str = "f32", **named: object) -> None:
        """Append a call of ``op`` on ``dtype``, its operands and attributes by name."""
        self.calls.append(CALLS.make(op, dtype, **named))

    def temp(self, spec: TensorSpec) -> Slot:
        """Allocate contiguous scratch for a value."""
        self.temps.append((spec.dtype or DType.F32, product(spec.shape or ())))
        return Slot(Buffer("temp", len(self.temps) - 1), spec)

    def dtype(self, buffer: Buffer) -> DType:
        """The element type of a buffer."""
        if buffer.kind == "temp":
            return self.temps[buffer.index][0]
        specs = self.inputs if buffer.kind == "input" else self.outputs
        return specs[buffer.index].dtype or DType.F32

    def done(self, sizes: Mapping[str, int]) -> Program:
        """Build the program; its scratch is laid out for ``sizes``, the values of its symbols."""
        loops = [(loop.first, loop.last) for loop in self.loops]
        used: dict[Buffer, list[int]] = {}
        for i, call in enumerate(self.calls):
            for buffer in dict.fromkeys(v.buffer for v in call.views if v is not None):
                used.setdefault(buffer, []).append(i)
        temps, lives = list[Temp](), list[Lifetime]()
        for t, (dtype, count) in enumerate(self.temps):
            buffer = Buffer("temp", t)
            temp = Temp(dtype, count, *live_range(used[buffer], loops, buffer in self.carried))
            temps.append(temp)
            size = int(max(0, evaluate(count, sizes)) * dtype.size)
            lives.append(Lifetime(str(t), size, temp.first, temp.last))
        order = placement_order(lives)
        moved = {Buffer("temp", t): Buffer("temp", place) for place, t in enumerate(order)}
        calls = tuple(_with_buffers(call, moved) for call in self.calls)
        return Program(
            self.inputs, self.outputs, self.symbols, tuple(temps[t] for t in order), calls,
            tuple(self.loops),
        )  # fmt: skip


def _with_buffers(call: Call, moved: Mapping[Buffer, Buffer]) -> Call:
    """A copy of the call with its buffers renamed."""
    views = (v and replace(v, buffer=moved.get(v.buffer, v.buffer)) for v in call.views)
    return replace(call, views=tuple(views))


def touches(call: Call, buffer: Buffer) -> bool:
    """Whether the call reads or writes the buffer."""
    return any(v is not None and v.buffer == buffer for v in call.views)


# ---- views -----------------------------------------------------------------------------


def as_matrix(slot: Slot) -> View:
    """A dense tensor as ``[rows, columns]``."""
    rows, columns = product(slot.shape[:-1]), slot.shape[-1]
    return View(slot.buffer, (rows, columns), (columns, 1))


def over_rows(slot: Slot, kind: str, rows: Extent, columns: Extent) -> View:
    """An epilogue operand as a ``[rows, columns]`` view; stride 0 where it repeats."""
    strides: dict[str, Shape] = {"full": (columns, 1), "row": (0, 1), "col": (1, 0)}
    return View(slot.buffer, (rows, columns), strides.get(kind, (0, 0)))


def broadcast_view(slot: Slot, full: Shape) -> View:
    """A tensor seen through a larger shape: stride 0 along repeated axes."""
    return slot.view.stretched(full)
