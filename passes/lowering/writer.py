"""Writing a program: its symbols, scratch, calls, and the views calls take."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tracea_graph.ir import DType, Extent, TensorSpec, combine, evaluate, product
from tracea_graph.kernels.calls import CALLS
from tracea_graph.ops.elementwise import is_clipped
from tracea_graph.ops.index_map import dense_strides, factors
from tracea_graph.ops.program import Buffer, Call, Loop, Program, Temp, View
from tracea_graph.ttg.arena import Life, placement, span

__all__ = [
    "Shape", "Slot", "Writer", "broadcast", "clipped", "dense", "localise", "matrix", "over_rows",
    "stretched", "touches",
]  # fmt: skip

Shape = tuple[Extent, ...]


@dataclass(frozen=True)
class Slot:
    """A value of a program: the buffer it fills, its element type and shape.

    ``rounded`` is where the same numbers lie in bf16 too, for those who read them so.
    """

    buffer: Buffer
    spec: TensorSpec
    rounded: Buffer | None = None

    @property
    def shape(self) -> Shape:
        return self.spec.shape or ()

    @property
    def view(self) -> View:
        """All of it, as it lies."""
        return dense(self.buffer, self.shape)

    @property
    def in_bf16(self) -> Slot | None:
        """The value in bf16, if it lies so."""
        if self.spec.dtype is DType.BF16:
            return self
        spec = TensorSpec(DType.BF16, self.spec.shape)
        return Slot(self.rounded, spec) if self.rounded else None

    @property
    def in_f32(self) -> Slot | None:
        """The value in float32, if it lies so."""
        return None if self.spec.dtype is DType.BF16 else self


@dataclass
class Writer:
    """Collects a program: local symbols, temporaries, calls and loops over them.

    ``carried`` are temporaries that hold something from one turn of a loop to the next.
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
        """Dense scratch."""
        self.temps.append((spec.dtype or DType.F32, product(spec.shape or ())))
        return Slot(Buffer("temp", len(self.temps) - 1), spec)

    def dtype(self, buffer: Buffer) -> DType:
        """The type of what a buffer holds."""
        if buffer.kind == "temp":
            return self.temps[buffer.index][0]
        specs = self.inputs if buffer.kind == "input" else self.outputs
        return specs[buffer.index].dtype or DType.F32

    def done(self, sizes: Mapping[str, int]) -> Program:
        """The program; its scratch is planned by ``ttg.arena`` for these values of its symbols."""
        loops = [(loop.first, loop.last) for loop in self.loops]
        used: dict[Buffer, list[int]] = {}
        for i, call in enumerate(self.calls):
            for buffer in dict.fromkeys(v.buffer for v in call.views if v is not None):
                used.setdefault(buffer, []).append(i)
        temps, lives = list[Temp](), list[Life]()
        for t, (dtype, count) in enumerate(self.temps):
            buffer = Buffer("temp", t)
            temp = Temp(dtype, count, *span(used[buffer], loops, buffer in self.carried))
            temps.append(temp)
            size = int(max(0, evaluate(count, sizes)) * dtype.size)
            lives.append(Life(str(t), size, temp.first, temp.last))
        order = placement(lives)
        moved = {Buffer("temp", t): Buffer("temp", place) for place, t in enumerate(order)}
        calls = tuple(_with_buffers(call, moved) for call in self.calls)
        return Program(
            self.inputs, self.outputs, self.symbols, tuple(temps[t] for t in order), calls,
            tuple(self.loops),
        )  # fmt: skip


def _with_buffers(call: Call, moved: Mapping[Buffer, Buffer]) -> Call:
    """A call whose views lie elsewhere."""
    views = (v and replace(v, buffer=moved.get(v.buffer, v.buffer)) for v in call.views)
    return replace(call, views=tuple(views))


def touches(call: Call, buffer: Buffer) -> bool:
    """True if a view of the call lies in the buffer."""
    return any(v is not None and v.buffer == buffer for v in call.views)


def clipped(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Specs of operands that broadcast: min(n, …) is n there, see :func:`is_clipped`."""
    symbols = sorted({d for s in specs for d in s.shape or () if isinstance(d, str)})

    def whole(dim: Extent) -> Extent:
        return next((d for d in symbols if is_clipped(dim, d)), dim)

    return tuple(replace(s, shape=tuple(whole(d) for d in s.shape or ())) for s in specs)


def localise(
    specs: Sequence[TensorSpec],
) -> tuple[tuple[TensorSpec, ...], dict[str, tuple[int, int]]]:
    """Specs over local symbols ``s0``, ``s1`` …, and where each symbol is bound.

    A dimension the graph knows only as an expression is a symbol like any other, or a multiple of
    one: windows of an image are so many times as many as images.
    """
    names: dict[Extent, str] = {}
    where: dict[str, tuple[int, int]] = {}
    shapes = [spec.shape or () for spec in specs]
    parts = _multiples({dim for shape in shapes for dim in shape if not isinstance(dim, int)})
    for i, shape in enumerate(shapes):
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int) and dim not in parts and dim not in names:
                names[dim] = f"s{len(names)}"
                where[names[dim]] = (i, axis)
    sizes: dict[Extent, Extent] = {**names}
    sizes |= {dim: combine("mul", names[base], times) for dim, (base, times) in parts.items()}
    local = [
        TensorSpec(spec.dtype, tuple(sizes.get(dim, dim) for dim in shape))
        for spec, shape in zip(specs, shapes, strict=True)
    ]
    return tuple(local), where


def _multiples(extents: Collection[Extent]) -> dict[Extent, tuple[Extent, int]]:
    """Of the extents those that are a whole multiple of another one: of which, how many times."""
    alike: dict[tuple[tuple[str, int], ...], list[tuple[int, Extent]]] = {}
    for extent in sorted(extents, key=str):
        number, symbols = factors([extent])
        key = tuple(sorted((str(s), n) for s, n in symbols.items()))
        alike.setdefault(key, []).append((number, extent))
    found: dict[Extent, tuple[Extent, int]] = {}
    for group in alike.values():
        least, base = min(group, key=lambda pair: pair[0])
        for number, extent in group:
            if extent != base and least > 0 and number % least == 0:
                found[extent] = base, number // least
    return found


# ---- views -----------------------------------------------------------------------------


def dense(buffer: Buffer, shape: Shape) -> View:
    return View(buffer, shape, dense_strides(shape))


def matrix(slot: Slot) -> View:
    """A dense tensor as ``[rows, columns]``."""
    rows, columns = product(slot.shape[:-1]), slot.shape[-1]
    return View(slot.buffer, (rows, columns), (columns, 1))


def over_rows(slot: Slot, kind: str, rows: Extent, columns: Extent) -> View:
    """An epilogue operand as a ``[rows, columns]`` view; stride 0 where it repeats."""
    strides: dict[str, Shape] = {"full": (columns, 1), "row": (0, 1), "col": (1, 0)}
    return View(slot.buffer, (rows, columns), strides.get(kind, (0, 0)))


def broadcast(slot: Slot, full: Shape) -> View:
    """A tensor seen through a larger shape: stride 0 along repeated axes."""
    return stretched(slot.view, full)


def stretched(view: View, full: Shape) -> View:
    """A view seen through a larger shape: stride 0 along repeated axes."""
    extra = len(full) - len(view.dims)
    strides, dims = (0,) * extra + view.strides, (1,) * extra + view.dims
    axes = zip(strides, dims, full, strict=True)
    steps = tuple(0 if d == 1 and f != 1 else s for s, d, f in axes)
    return View(view.buffer, full, steps, view.offset)
