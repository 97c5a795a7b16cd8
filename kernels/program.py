"""Programs of custom-op nodes: fixed lists of kernel calls over one scratch arena.

Lowering writes programs, ``kernels.plan`` encodes them as the node's ``plan`` attribute, and the
runtime library decodes, validates and runs them.  All sizes are expressions over symbols bound by
the node's inputs, hence one plan serves every shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any, Self

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.index_map import dense_strides

__all__ = [
    "NO_CONTENTS",
    "Attributes",
    "Buffer",
    "Call",
    "CallStats",
    "LaunchedCall",
    "LibraryContents",
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
    """A buffer that a call may access: ``("input", i)``, ``("output", i)`` or ``("temp", i)``."""

    kind: str
    index: int


@dataclass(frozen=True)
class View:
    """A strided view of a buffer; offset and strides are in elements."""

    buffer: Buffer
    dims: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    offset: Extent = 0

    @classmethod
    def dense(cls, buffer: Buffer, shape: tuple[Extent, ...]) -> View:
        """A contiguous row-major view of a whole buffer."""
        return cls(buffer, shape, dense_strides(shape))

    def stretched(self, full: tuple[Extent, ...]) -> View:
        """Broadcast the view to the shape ``full``; repeated axes get stride 0."""
        extra = len(full) - len(self.dims)
        strides, dims = (0,) * extra + self.strides, (1,) * extra + self.dims
        axes = zip(strides, dims, full, strict=True)
        steps = tuple(0 if d == 1 and f != 1 else s for s, d, f in axes)
        return View(self.buffer, full, steps, self.offset)


@dataclass(frozen=True)
class Schedule:
    """Tiling and work division of one call: named integers that the backend's host loop reads.

    Base class of each backend's dataclasses.  The first field is the largest number of rows
    (images of a convolution) that the schedule applies to; the other fields are tunable.
    """

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Make a schedule from its fields in order.  Raises TypeError if there are too many."""
        make: Callable[..., Self] = cls
        return make(*numbers)

    @property
    def limit(self) -> int:
        """The largest number of rows that the schedule applies to."""
        return next(iter(asdict(self).values()))  # type: ignore[no-any-return]

    def up_to(self, rows: int) -> Self:
        """A copy that applies to up to ``rows`` rows."""
        return self.of((rows, *astuple(self)[1:]))

    def having(self, **settings: int) -> Self:
        """A copy with some fields replaced.  Raises TypeError for an unknown field."""
        return replace(self, **settings)

    @property
    def text(self) -> str:
        """Non-default settings in words, for reports."""
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
    """Hashable mapping of a call's attributes, in schema order."""

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
class LaunchedCall:
    """A call that a device launches separately, by its number in the program, and the reason.

    ``reason`` says what keeps the call from being part of the previous launch; empty for the
    first launch.
    """

    call: int
    kernel: str
    reason: str


@dataclass(frozen=True)
class Call:
    """One kernel call: an op on one element type, its views in schema order, and its attributes.

    Calls are made by their schema (``kernels.schema``), which names views and attributes.
    ``chain`` is the fused elementwise expression, if any.  Each of ``schedules`` applies up to its
    own row limit.  From ``barrier_from`` threads on, and up to ``barrier_rows`` rows, a CPU's
    threads wait for each other before the call instead of for the rows they read; 0 threads: the
    library decides; 0 rows: any number.  ``step`` is the number of the region's step that the call
    belongs to, for reports; −1 if it belongs to none.
    """

    op: str
    dtype: str
    views: tuple[View | None, ...]
    attributes: Attributes = field(default_factory=Attributes)
    chain: Chain | None = None
    schedules: tuple[Schedule, ...] = ()
    barrier_from: int = 0
    barrier_rows: int = 0
    step: int = field(default=-1, compare=False, repr=False)

    @staticmethod
    def name_of(op: str, dtype: str) -> str:
        """The name of a call: its op, followed by its element type if that is not fp32."""
        return op if dtype == "f32" else f"{op}_{dtype}"

    @property
    def name(self) -> str:
        return self.name_of(self.op, self.dtype)

    def having(self, **attributes: Any) -> Call:
        """A copy with some attributes replaced."""
        return replace(self, attributes=Attributes({**self.attributes, **attributes}.items()))


@dataclass(frozen=True)
class Loop:
    """A loop over ``extent`` rows; an iteration runs calls ``first`` to ``last`` on ``step`` rows.

    The last call is included.  Views inside the loop may use two more symbols, ``start`` and
    ``end``, the bounds [start, end) of the iteration's rows.  Iterations of a ``parallel`` loop
    are independent: each thread has its own scratch, and the runtime may shorten iterations so
    that every thread gets one.
    """

    first: int
    last: int
    extent: Extent
    step: int
    start: str
    end: str
    parallel: bool = False

    def iterations(self, extent: int) -> list[dict[str, int]]:
        """Bindings of the loop's symbols for each iteration."""
        rows = range(0, extent, self.step)
        return [{self.start: r, self.end: min(r + self.step, extent)} for r in rows]


@dataclass(frozen=True)
class Program:
    """Kernel calls in order, with the signature of the node that runs them.

    * ``inputs``, ``outputs``: types and shapes; a size is a number, a symbol or an expression
    * ``symbols``: by symbol, the input dimension that defines it: ``{"seq": (0, 1)}`` is axis 1 of
      input 0; other dimensions with this symbol are checked for equality
    * ``temps``: scratch, in the order in which the arena allocates it (``ttg.arena``)
    * ``loops``: disjoint loops, in order
    * ``loose``: (input, axis) pairs at which size 1 is also allowed, and broadcasts
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: Mapping[str, tuple[int, int]]
    temps: tuple[Temp, ...]
    calls: tuple[Call, ...]
    loops: tuple[Loop, ...] = ()
    loose: frozenset[tuple[int, int]] = frozenset()

    def dtype_of(self, buffer: Buffer) -> DType | None:
        """The element type of a buffer; None if the signature leaves it open."""
        if buffer.kind == "temp":
            return self.temps[buffer.index].dtype
        return (self.inputs if buffer.kind == "input" else self.outputs)[buffer.index].dtype


@dataclass(frozen=True)
class OpType:
    """A custom-op type: its name and the element types of its inputs and outputs."""

    name: str
    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]


@dataclass(frozen=True)
class LibraryContents:
    """What a backend's code in a library is made for: op types, kernels by name, and chains.

    Two that differ only in order make the same library.  ``a | b`` holds what either has, sorted;
    ``a <= b`` says whether ``b`` has all that ``a`` has.
    """

    types: Collection[OpType] = ()
    kernels: Collection[str] = ()
    chains: Collection[Chain] = ()

    def __or__(self, other: LibraryContents) -> LibraryContents:
        types = {t.name: t for t in (*self.types, *other.types)}
        chains = {c.key: c for c in (*self.chains, *other.chains)}
        return LibraryContents(
            tuple(t for _, t in sorted(types.items())),
            tuple(sorted({*self.kernels, *other.kernels})),
            tuple(c for _, c in sorted(chains.items())),
        )

    def __le__(self, other: LibraryContents) -> bool:
        return (
            {t.name for t in self.types} <= {t.name for t in other.types}
            and {*self.kernels} <= {*other.kernels}
            and {c.key for c in self.chains} <= {c.key for c in other.chains}
        )


NO_CONTENTS = LibraryContents()


@dataclass(frozen=True)
class ViewAccess:
    """A view that a call reads or writes; ``input`` is None for an output or scratch."""

    input: int | None
    dims: tuple[int, ...]
    bytes: float
    offset: int = 0


@dataclass(frozen=True)
class CallStats:
    """Operation counts of one call: FLOPs of its matrix products, result elements and views.

    ``product_type`` is the products' element type.  ``size`` is a text, such as M × N × K for
    products, preceded by the batch if it is not 1; for other calls it has the dims of the result.
    A call in a loop is counted over all iterations; its text is ``iterations ×`` the size in the
    first one.
    """

    kernel: str
    products: float
    results: float
    views: tuple[ViewAccess, ...]
    size: str
    product_type: str = "f32"

    @property
    def bytes(self) -> float:
        return sum(view.bytes for view in self.views)
