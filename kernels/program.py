"""Programs: what a custom-op node runs, a fixed list of kernel calls over one scratch arena.

Lowering writes programs; ``kernels.plan`` encodes them as the node's ``plan`` attribute; the
library decodes and checks them, then runs them.  All sizes are extents over the symbols bound by
the node's own inputs, so one plan serves every shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any, Self

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.index_map import dense_strides

__all__ = [
    "Attributes",
    "Buffer",
    "Call",
    "CallStats",
    "Loop",
    "OpType",
    "Program",
    "Schedule",
    "Temp",
    "View",
    "ViewAccess",
]  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """Memory a call may touch: ``("input", i)``, ``("output", i)`` or ``("temp", i)``."""

    kind: str
    index: int


@dataclass(frozen=True)
class View:
    """A strided box of a buffer; offset and strides are in elements."""

    buffer: Buffer
    dims: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    offset: Extent = 0

    @classmethod
    def dense(cls, buffer: Buffer, shape: tuple[Extent, ...]) -> View:
        """A whole tensor, the last axis innermost."""
        return cls(buffer, shape, dense_strides(shape))

    def stretched(self, full: tuple[Extent, ...]) -> View:
        """The view seen through a larger shape: stride 0 along repeated axes."""
        extra = len(full) - len(self.dims)
        strides, dims = (0,) * extra + self.strides, (1,) * extra + self.dims
        axes = zip(strides, dims, full, strict=True)
        steps = tuple(0 if d == 1 and f != 1 else s for s, d, f in axes)
        return View(self.buffer, full, steps, self.offset)


@dataclass(frozen=True)
class Schedule:
    """Tiling and work division of one call, as the backend's host loop reads it: integers by name.

    A backend's schedules are dataclasses of this one.  Their first number is the most rows (of a
    convolution: images) a schedule is for, the others are what can be tuned.
    """

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """The schedule of these numbers, in order.  Raises TypeError if there are too many."""
        make: Callable[..., Self] = cls
        return make(*numbers)

    @property
    def limit(self) -> int:
        """The most rows it is for."""
        return next(iter(asdict(self).values()))  # type: ignore[no-any-return]

    def up_to(self, rows: int) -> Self:
        """The schedule for up to so many rows."""
        return self.of((rows, *astuple(self)[1:]))

    def having(self, **settings: int) -> Self:
        """The schedule with some of its numbers replaced.  Raises TypeError for one it lacks."""
        return replace(self, **settings)

    @property
    def text(self) -> str:
        """What it says beyond automatic choices, for people."""
        settings = list(asdict(self).items())[1:]
        return ", ".join(f"{value} {name}" for name, value in settings if value) or "default"


@dataclass(frozen=True)
class Temp:
    """Scratch of ``count`` elements, alive from call ``first`` to call ``last`` (inclusive)."""

    dtype: DType
    count: Extent
    first: int
    last: int


class Attributes(Mapping[str, Any]):
    """A call's parameters by name; hashable, in the order of the call's record."""

    def __init__(self, items: Iterable[tuple[str, Any]] = ()) -> None:
        self._values = dict(items)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return f"Attributes({self._values})"


@dataclass(frozen=True)
class Call:
    """One kernel call: an op on one element type, its views, its attributes by name.

    The backend's record of the call (``kernels.calls``) says what each view and attribute is, and
    makes calls.  ``chain`` is its elementwise part, if any; ``schedules`` tile it, each
    for up to so many rows.
    """

    op: str
    dtype: str
    views: tuple[View | None, ...]
    attributes: Attributes = field(default_factory=Attributes)
    chain: Chain | None = None
    schedules: tuple[Schedule, ...] = ()

    @staticmethod
    def name_of(op: str, dtype: str) -> str:
        """What a call is named in reports: its op, and its element type if not float32."""
        return op if dtype == "f32" else f"{op}_{dtype}"

    @property
    def name(self) -> str:
        return self.name_of(self.op, self.dtype)

    def having(self, **attributes: Any) -> Call:
        """The call with some of its attributes replaced."""
        return replace(self, attributes=Attributes({**self.attributes, **attributes}.items()))


@dataclass(frozen=True)
class Loop:
    """Calls ``first`` to ``last`` (inclusive) run once for every ``step`` of ``extent`` rows.

    Their views use two more symbols: the rows [``start``, ``end``) of each iteration.  Iterations
    of a ``parallel`` loop are independent: threads take one each, with scratch of their own, and
    iterations may be shorter so that every thread has some.
    """

    first: int
    last: int
    extent: Extent
    step: int
    start: str
    end: str
    parallel: bool = False

    def iterations(self, extent: int) -> list[dict[str, int]]:
        """Values of its symbols for each iteration."""
        rows = range(0, extent, self.step)
        return [{self.start: r, self.end: min(r + self.step, extent)} for r in rows]


@dataclass(frozen=True)
class Program:
    """Calls in order, with the node's signature.

    ``inputs``/``outputs`` shapes are extents; ``symbols`` says which input dimension binds each
    symbol: ``{"seq": (0, 1)}`` is axis 1 of input 0.  Every other use of the symbol is checked.
    ``temps`` are in the order in which they take their places in the arena (``ttg.arena``).
    ``loops`` are in order and have no call in common.  ``loose`` are inputs and axes that may have
    a size of 1 in place of what the plan says: they are repeated.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: Mapping[str, tuple[int, int]]
    temps: tuple[Temp, ...]
    calls: tuple[Call, ...]
    loops: tuple[Loop, ...] = ()
    loose: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class OpType:
    """One custom-op type: its name and the element types of its inputs and outputs."""

    name: str
    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]


@dataclass(frozen=True)
class ViewAccess:
    """A view as a call sees it: the node's input it lies in (None: an output, or scratch)."""

    input: int | None
    dims: tuple[int, ...]
    bytes: float
    offset: int = 0


@dataclass(frozen=True)
class CallStats:
    """One call: operations of its matrix products, elements of its results, and its views.

    ``multiplies`` is the type its products multiply.  ``size`` is the product's: rows × columns ×
    depth, after their number if above 1; else the dims of the result.  A call of a loop is all its
    iterations; its size is that of the first, after ``iterations ×``.
    """

    kernel: str
    products: float
    results: float
    views: tuple[ViewAccess, ...]
    size: str
    multiplies: str = "f32"

    @property
    def bytes(self) -> float:
        return sum(view.bytes for view in self.views)
