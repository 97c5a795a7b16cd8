"""Schemas of kernel calls, the single source of what a backend knows about each call.

A backend lists its calls in one :class:`Calls` table.  A schema determines how a call is encoded
in a plan (opcode and words), how its attributes and operands are checked, which operands it
writes, which rows of an operand a result row reads, its FLOPs and bytes, and its documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.kernels.program import Attributes, Call, Schedule, View
from tracea_graph.ops.chain import Chain

__all__ = [
    "PHASES", "Attribute", "CallSchema", "Calls", "Operand", "Sizes", "Value", "bits", "choice",
    "flag", "number", "numbers", "phase_of", "real", "reals",
]  # fmt: skip

Value = int | float | bool | str | tuple[int, ...] | tuple[float, ...]
Operands = View | None | Sequence[View]

PHASES = ("copy", "mma", "reduce", "comm", "host")
"""What a call spends its time on: moving data, multiplying, reducing, other devices, the host."""
_REDUCING = ("norm", "channel_norm", "softmax", "reduce", "arg_reduce", "top_k", "sum_rows")
_HOST = ("iota", "bytes_equal")

_SHARED = 0
"""``count`` of a list attribute whose length each call decides."""


@dataclass(frozen=True)
class Attribute:
    """A named parameter of a call: a number, or a list of numbers.

    * ``low``, ``high``: inclusive bounds of each number
    * ``count``: length; 0 if each call chooses it, equal for all such lists of the call
    * ``words``: values of an enumeration, each with its number
    * ``as_bits``: the value is a set of small numbers, stored as a bit mask
    * ``default``: the value if the attribute is omitted; None if it must be given
    """

    name: str
    low: float
    high: float
    count: int = 1
    real: bool = False
    words: Mapping[Any, int] | None = None
    boolean: bool = False
    as_bits: bool = False
    default: Value | None = None

    def encode(self, value: Value, of: str) -> list[float]:
        """Encode the value of an attribute as numbers; ``of`` is the call's name, for messages.

        Raises GraphError for a value that is not allowed.
        """
        if self.words is not None:
            if value not in self.words:
                known = ", ".join(map(str, self.words))
                raise GraphError(f"{of}: {self.name} must be one of {known}, not {value}.")
            return [self.words[value]]
        listed = value if isinstance(value, tuple) else (value,)
        if self.as_bits:
            listed = (sum(1 << int(bit) for bit in listed),)
        made = [float(v) if self.real else int(v) for v in listed]
        if self.count not in (_SHARED, len(made)):
            raise GraphError(f"{of}: {self.name} needs {self.count} numbers, not {len(made)}.")
        self._check(made, of)
        return list(made)

    def _check(self, made: Sequence[float], of: str) -> None:
        for one in () if self.real else made:
            if not self.low <= one <= self.high:
                bounds = f"{self.low} .. {self.high}"
                raise GraphError(f"{of}: {self.name} must be in {bounds}, not {one}.")

    def decode(self, made: Sequence[float], of: str) -> Value:
        """Decode the value of an attribute; ``of`` is the call's name, for messages.

        Raises GraphError if the numbers encode no value.
        """
        if self.words is not None:
            for word, stored in self.words.items():
                if [stored] == list(made):
                    found: Value = word
                    return found
            raise GraphError(f"{of}: {self.name} cannot be {made}.")
        self._check(made, of)
        if self.as_bits:
            return tuple(i for i in range(int(made[0]).bit_length()) if int(made[0]) >> i & 1)
        if self.boolean:
            return bool(made[0])
        return made[0] if self.count == 1 else tuple(made)


def number(name: str, low: int, high: int, default: int | None = None) -> Attribute:
    """An integer attribute in ``low`` … ``high``."""
    return Attribute(name, low, high, default=default)


def numbers(name: str, count: int, low: int, high: int) -> Attribute:
    """An attribute of ``count`` integers, or a list of them if ``count`` is 0."""
    return Attribute(name, low, high, count)


def flag(name: str, default: bool | None = None) -> Attribute:
    """A Boolean attribute."""
    return Attribute(name, 0, 1, boolean=True, default=default)


def choice(name: str, words: Sequence[str] | Mapping[Any, int]) -> Attribute:
    """An enumeration, numbered from 0 or as mapped; a single word is also the default."""
    if not isinstance(words, Mapping):
        words = {word: i for i, word in enumerate(words)}
    only = next(iter(words)) if len(words) == 1 else None
    low, high = min(words.values()), max(words.values())
    return Attribute(name, low, high, words=MappingProxyType(dict(words)), default=only)


def bits(name: str, count: int) -> Attribute:
    """A set of integers below ``count``, stored as a bit mask."""
    return Attribute(name, 0, (1 << count) - 1, as_bits=True)


def real(name: str) -> Attribute:
    """A floating-point attribute."""
    return Attribute(name, 0, 0, real=True)


def reals(name: str, count: int) -> Attribute:
    """An attribute of ``count`` floating-point numbers, or a list of them if ``count`` is 0."""
    return Attribute(name, 0, 0, count, real=True)


@dataclass(frozen=True)
class Operand:
    """One operand or result of a call.

    ``shape`` names the axes.  ``...`` stands for any number of axes, the same number in all
    operands of a call; a lone ``*`` allows any rank.  ``types`` are the allowed element
    types; ``chain`` means the type in the call's chain.  ``many`` says how many views the operand
    stands for (None: one): the chain's ``operands``, its ``inputs`` after the first operand, its
    ``results``, or the attribute whose value or length is the count.  ``rows`` says which rows a
    result row reads: its own (``row``), those of a window (``window``) or ``all``.  ``touched``
    says how much of it a call reads: ``all``, the rows that it ``picks``, or ``none``, as of
    fallback weights.
    """

    name: str
    shape: tuple[str, ...] = ("...",)
    types: tuple[str, ...] = ("f32",)
    optional: bool = False
    many: str | None = None
    written: bool = False
    rows: str = "row"
    touched: str = "all"

    @property
    def open(self) -> bool:
        """Whether the shape contains axes whose number each call decides."""
        return "..." in self.shape

    @property
    def named(self) -> int:
        """The number of named axes."""
        return len([axis for axis in self.shape if axis not in ("...", "*")])

    @property
    def rank(self) -> int | None:
        """The number of axes; None if each call decides it."""
        return None if self.open or self.shape == ("*",) else self.named


class Sizes:
    """A call's operand dims, by name, and its attributes, at given sizes of the symbols."""

    def __init__(self, call: Call, named: Mapping[str, Sequence[tuple[int, ...]]]) -> None:
        self.call, self.attributes, self._dims = call, call.attributes, named

    def __getitem__(self, attribute: str) -> Any:
        return self.attributes[attribute]

    def of(self, operand: str) -> tuple[int, ...]:
        """Dims of an operand; dims of the last view if the operand stands for several."""
        return self._dims[operand][-1]

    def each(self, operand: str) -> Sequence[tuple[int, ...]]:
        """Dims of each view that an operand stands for."""
        return self._dims[operand]


Problem = Callable[[Sizes], tuple[int, ...]]
"""Function that returns (batch, M, N, K) of the matrix multiplications in a call."""


def phase_of(call: str, multiplies: bool) -> str:
    """Return what a call spends its time on, one of :data:`PHASES`.

    ``call`` is the name of the call; ``multiplies`` says whether it multiplies matrices.
    """
    if call in _HOST:
        return "host"
    if multiplies:
        return "mma"
    return "reduce" if call.startswith(_REDUCING) else "copy"


@dataclass(frozen=True)
class CallSchema:
    """The schema of one kind of call: an op on one element type.

    ``chain`` says which elementwise expression a call takes: ``none``, ``required``, ``epilogue``
    (optional; its first operand is the result of the op) or ``prologue`` (optional; computes the
    only fp32 operand).  ``schedule`` is the class of its tiling parameters, None if the library
    decides.  ``kernels`` are the micro-kernels it needs: op names, or pairs of op and element
    type.  ``problem`` gives the sizes of its matrix multiplications (None: there are none), on
    elements of ``product_type`` (default: ``dtype``).  ``row_tiled`` calls can compute part of
    their result's rows, in multiples of the attribute ``granularity``.
    """

    op: str
    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...] = ()
    dtype: str = "f32"
    chain: str = "none"
    schedule: type[Schedule] | None = None
    kernels: tuple[str | tuple[str, str], ...] = ()
    problem: Problem | None = None
    product_type: str = ""
    row_tiled: bool = False
    granularity: str = ""

    @property
    def name(self) -> str:
        """The op, followed by its element type if that is not fp32."""
        return Call.name_of(self.op, self.dtype)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the micro-kernels that the call needs."""
        own = ((k, self.dtype) if isinstance(k, str) else k for k in self.kernels)
        return tuple(Call.name_of(*kernel) for kernel in own)

    @property
    def integers(self) -> tuple[Attribute, ...]:
        return tuple(a for a in self.attributes if not a.real)

    @property
    def reals(self) -> tuple[Attribute, ...]:
        return tuple(a for a in self.attributes if a.real)

    @property
    def phase(self) -> str:
        """What a call spends its time on, one of :data:`PHASES`."""
        return phase_of(self.name, self.problem is not None)

    # ---- making calls ----------------------------------------------------------------------

    def make(
        self,
        chain: Chain | None = None,
        schedules: Sequence[Schedule] = (),
        **named: Value | Operands,
    ) -> Call:
        """Make a call from operands and attributes given by name.

        Raises GraphError if a name is unknown or missing, or a value is out of range.
        """
        values: dict[str, Value] = {}
        for attribute in self.attributes:
            value = named.pop(attribute.name, attribute.default)
            if value is None:
                raise GraphError(f"A call of {self.name} needs {attribute.name}.")
            values[attribute.name] = value  # type: ignore[assignment]
        attributes = Attributes(values.items())
        counts = self._counts(attributes, chain)
        views: list[View | None] = []
        for operand in self.operands:
            views += self._views(operand, named.pop(operand.name, None), counts)
        if named:
            raise GraphError(f"A call of {self.name} does not take {', '.join(sorted(named))}.")
        if self.schedule is None and schedules:
            raise GraphError(f"A call of {self.name} takes no schedule.")
        self.words(attributes)
        return Call(self.op, self.dtype, tuple(views), attributes, chain, tuple(schedules))

    def listed(
        self,
        views: Sequence[View | None],
        chain: Chain | None = None,
        schedules: Sequence[Schedule] = (),
        **attributes: Value,
    ) -> Call:
        """Make a call from views in schema order; see :meth:`make`."""
        values = {a.name: attributes.get(a.name, a.default) for a in self.attributes}
        made = Attributes((name, v) for name, v in values.items() if v is not None)
        found = self._slices(self._counts(made, chain), len(views))
        named: dict[str, Any] = {
            o.name: views[found[o.name]] if o.many else views[found[o.name].start]
            for o in self.operands
        }
        return self.make(chain, schedules, **named, **attributes)

    def _views(
        self, operand: Operand, given: Value | Operands, counts: Mapping[str, int]
    ) -> list[View | None]:
        if operand.many is None:
            if given is None and not operand.optional:
                raise GraphError(f"A call of {self.name} needs {operand.name}.")
            assert given is None or isinstance(given, View)
            return [given]
        if given is None or isinstance(given, View):
            given = () if given is None else (given,)
        assert isinstance(given, Sequence)
        views = [view for view in given if isinstance(view, View)]
        if len(views) != counts[operand.many]:
            raise GraphError(
                f"A call of {self.name} needs {counts[operand.many]} views of {operand.name}, "
                f"not {len(views)}."
            )
        return [*views]

    def _counts(
        self, attributes: Attributes, chain: Chain | None, strict: bool = True
    ) -> dict[str, int]:
        """The number of views for each possible value of ``Operand.many``."""
        if chain is None and self.chain == "required" and strict:
            raise GraphError(f"A call of {self.name} needs a chain.")
        if chain is not None and self.chain == "none":
            raise GraphError(f"A call of {self.name} takes no chain.")
        operands = len(chain.operands) if chain else 1
        parts = attributes.get("parts", 1)
        assert isinstance(parts, int)
        if chain is not None and parts > 1:
            raise GraphError(f"A call of {self.name} with several parts takes no chain.")
        counts = {
            "operands": operands,
            "inputs": operands - 1,
            "results": len(chain.results) if chain else parts,
        }
        for name, value in attributes.items():
            if isinstance(value, tuple):
                counts[name] = len(value)
            elif isinstance(value, int):
                counts[name] = value
        return counts

    # ---- reading calls ---------------------------------------------------------------------

    def slices(self, call: Call) -> dict[str, slice]:
        """The range of each operand's views among the views of a call."""
        counts = self._counts(call.attributes, call.chain)
        return self._slices(counts, len(call.views))

    def slices_of(self, attributes: Attributes, views: int, written: int) -> dict[str, slice]:
        """Like :meth:`slices`, for a decoded call, whose chain is unknown.

        ``views`` is the number of all views, ``written`` that of the written ones.
        """
        counts = self._counts(attributes, None, strict=False)
        fixed = sum(1 for o in self.operands if o.written and o.many is None)
        counts["results"] = written - fixed
        known = sum(
            1 if o.many is None else counts[o.many]
            for o in self.operands
            if o.many not in ("operands", "inputs")
        )
        counts["operands"] = counts["inputs"] = views - known
        return self._slices(counts, views)

    def _slices(self, counts: Mapping[str, int], views: int) -> dict[str, slice]:
        found: dict[str, slice] = {}
        at = 0
        for operand in self.operands:
            count = 1 if operand.many is None else max(counts[operand.many], 0)
            found[operand.name] = slice(at, at + count)
            at += count
        if at != views:
            raise GraphError(f"A call of {self.name} needs {at} views, not {views}.")
        return found

    def written(self, call: Call) -> range:
        """The range of a call's results among its views."""
        found = self.slices(call)
        places = [found[o.name] for o in self.operands if o.written]
        return range(places[0].start, places[-1].stop)

    def named(self, call: Call) -> dict[str, View | tuple[View | None, ...] | None]:
        """Views of a call by operand name; a tuple if the operand stands for several."""
        found = self.slices(call)
        return {
            o.name: call.views[found[o.name]] if o.many else call.views[found[o.name].start]
            for o in self.operands
        }

    def each(self, call: Call) -> Iterator[tuple[Operand, View | None]]:
        """Yield each view of a call with its operand."""
        found = self.slices(call)
        for operand in self.operands:
            for view in call.views[found[operand.name]]:
                yield operand, view

    def words(self, attributes: Attributes) -> tuple[list[int], list[float]]:
        """Encode attributes as the integers and floats of a plan.

        Raises GraphError if an attribute does not allow its value.
        """
        both: tuple[list[int], list[float]] = [], []
        for attribute in self.attributes:
            made = attribute.encode(attributes[attribute.name], self.name)
            if attribute.real:
                both[1].extend(made)
            else:
                both[0].extend(int(v) for v in made)
        return both

    def attributes_of(self, ints: Sequence[int], floats: Sequence[float]) -> Attributes:
        """Decode the attributes that :meth:`words` encoded.  Raises GraphError on a mismatch."""
        values: dict[str, Value] = {}
        for own, held in ((self.integers, ints), (self.reals, floats)):
            values |= self._apart(own, held)
        return Attributes((a.name, values[a.name]) for a in self.attributes)

    def _apart(self, own: Sequence[Attribute], held: Sequence[float]) -> dict[str, Value]:
        """Split a row of numbers into the values of ``own`` attributes, by name."""
        lists = sum(a.count == _SHARED for a in own)
        left = len(held) - sum(a.count for a in own)
        if left < 0 or (left % lists if lists else left):
            raise GraphError(f"A call of {self.name} cannot have {len(held)} numbers.")
        values, at = dict[str, Value](), 0
        for attribute in own:
            count = attribute.count or left // lists
            values[attribute.name] = attribute.decode(held[at : at + count], self.name)
            at += count
        return values


class Calls(Mapping[str, CallSchema]):
    """Call schemas of a backend, by name; an opcode is a position in the list, from 1."""

    def __init__(self, schemas: Sequence[CallSchema]) -> None:
        self._listed = tuple(schemas)
        self._named = {schema.name: schema for schema in schemas}
        self._opcodes = {schema.name: 1 + i for i, schema in enumerate(schemas)}
        if len(self._named) != len(schemas):
            raise ValueError("two calls share a name")

    def __getitem__(self, name: str) -> CallSchema:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def of(self, call: Call) -> CallSchema:
        """The schema of a call.  Raises GraphError if the backend has none."""
        return self._known(call.name)

    def opcode(self, call: Call) -> int:
        """The opcode of a call in plans."""
        return self._opcodes[self.of(call).name]

    def coded(self, opcode: int) -> CallSchema:
        """The schema of an opcode.  Raises GraphError if the opcode is unknown."""
        if not 1 <= opcode <= len(self._listed):
            raise GraphError(f"A plan has opcode {opcode}; the highest is {len(self._listed)}.")
        return self._listed[opcode - 1]

    def make(self, op: str, dtype: str = "f32", **named: object) -> Call:
        """Make a call of ``op`` on ``dtype``; see :meth:`CallSchema.make`."""
        return self._known(Call.name_of(op, dtype)).make(**named)  # type: ignore[arg-type]

    def listed(
        self, op: str, views: Sequence[View | None], dtype: str = "f32", **named: object
    ) -> Call:
        """Make a call of ``op`` from views in order; see :meth:`CallSchema.listed`."""
        schema = self._known(Call.name_of(op, dtype))
        return schema.listed(views, **named)  # type: ignore[arg-type]

    def _known(self, name: str) -> CallSchema:
        if name not in self._named:
            raise GraphError(f"There is no kernel call {name!r}, only {', '.join(self._named)}.")
        return self._named[name]


def float_bits(value: float) -> int:
    """Reinterpret a double as the 64-bit integer stored in a plan."""
    word: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return word


def bits_float(word: int) -> float:
    """The inverse of :func:`float_bits`."""
    value: float = struct.unpack("<d", struct.pack("<q", word))[0]
    return value
