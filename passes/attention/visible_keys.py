"""Write the masks of attention operators as kernels read them.

A mask may have fewer keys than there are: those behind it are masked.  Where its extents are not
proven to be those of the scores, or 1, operators extend it to them.

What kernels cannot limit becomes a boolean mask of the keys that each query sees:

    first c[b] keys of item b                       key < c[b]
    up to ``left`` keys before a query's position   key >= position - left
    up to ``right`` keys after it                   key <= position + right

Query i of S in item b is at position i + c[b] - S, or if all keys are valid, behind past ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tracea_graph.ir import Attr, DType, Extent, Node, TensorSpec, combine
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.passes.attention.kv_cache_positions import size_source
from tracea_graph.passes.attention.score_masks import Masks, broadcasts_to
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.ttg import Region

__all__ = ["counted_padding", "holds_counts", "visible_key_mask", "whole_mask"]

_RANGE = 11
"""Opset of Range, which numbers keys and queries."""


def whole_mask(new: Masks, mask: str, q: str, k: str, past: str) -> str:
    """Return ``mask`` with the extents of the scores, or 1 along an axis; as it is if it has them.

    Keys behind its last axis are masked.  A mask of another rank than 1 to 4, of more keys, or of
    another number of heads is returned as it is.
    """
    spec, (batch, _, rows, keys) = new.graph.spec(mask), new.full
    if spec.dtype is None or not spec.shape or len(spec.shape) > 4:
        return mask
    w, have = _MaskWriter(new, f"{mask}.{batch}.{rows}.{keys}"), spec.shape[-1]
    fits = keys == 1 if have == 1 else broadcasts_to(have, keys)
    if not fits:
        if isinstance(have, int) and isinstance(keys, int) and have > keys:
            return mask
        mask = w.padded(mask, have, w.keys(k, past), spec)
    shape = list(new.spec(mask).shape or ())
    sizes = {-4: ("items", 0, batch), -2: ("rows", -2, rows)}
    target = [new.numbers(1)] * len(shape)
    for axis, (role, of_q, extent) in sizes.items():
        if -axis <= len(shape) and not broadcasts_to(shape[axis], extent):
            target[axis] = w.vector(f"{role}_wanted", w.size(role, q, of_q))
            shape[axis] = extent
    if len({*target}) == 1:
        return mask
    joined = w.write("target", "Concat", *target, shape=(len(shape),), axis=0)
    return w.write("whole", "Expand", mask, joined, shape=tuple(shape), dtype=spec.dtype)


def visible_key_mask(
    new: Masks, q: str, k: str, past: str, counts: str, window: tuple[int, int]
) -> str:
    """Return a boolean mask ``[B or 1,1,S,T]`` or ``[B,1,1,T]``, true for keys a query may see.

    T are the keys of ``past``, or none where it is "", and of ``k``.  ``counts`` are B integers,
    or ""; or more, as of packed sequences, that begin with them.  It is "" if all keys are valid.
    ``window`` is (left, right), of which a negative number is no limit.  Layers with equal sizes
    share the mask.  Raises NoMatch unless there is one count per item, if nothing limits the keys,
    or at an opset without Range.
    """
    if new.graph.opset < _RANGE:
        raise NoMatch(f"its mask needs Range, which requires opset {_RANGE}")
    (rows, keys), (left, right) = new.full[2:], window
    behind = (new.graph.spec(past).shape or ("", "", ""))[2] if past else 0
    w, found = _MaskWriter(new, f"{counts}.{behind}.{rows}.{keys}"), list[str]()
    key, column = w.ramp("key", w.keys(k, past), keys), new.numbers(-1, 1, 1, 1)
    end = w.counted(counts, q, column) if counts else ""
    if end and right != 0:  # else no query is behind the last valid key
        found.append(w.compared("valid", "Less", key, end))
    if max(window) >= 0:
        count = w.size("rows", q)
        place = w.write("down", "Reshape", w.ramp("query", count, rows), new.numbers(-1, 1),
                        shape=(rows, 1))  # fmt: skip
        if end:
            place = w.integers("place", "Add", w.integers("first", "Sub", end, count), place)
        elif past:
            place = w.integers("place", "Add", w.size("past", past), place)
        if left >= 0:
            first = w.integers(f"low.{left}", "Sub", place, new.numbers(left))
            found.append(w.compared(f"after.{left}", "GreaterOrEqual", key, first))
        if right >= 0:
            last = w.integers(f"high.{right}", "Add", place, new.numbers(right))
            found.append(w.compared(f"before.{right}", "LessOrEqual", key, last))
    if not found:
        raise NoMatch("nothing limits its keys")
    total, *rest = found
    for one in rest:
        both = (x.removeprefix(f"{w.stem}.") for x in (total, one))
        total = w.compared(".and.".join(both), "And", total, one)
    return total


def holds_counts(length: Extent, batch: Extent) -> bool:
    """Return whether a vector of a proven length begins with one count for each batch item.

    It holds those alone, or as of packed sequences 3 · B + 2 numbers.
    """
    packed = combine("add", combine("mul", 3, batch), 2)
    return any(equal_as_polynomials(length, known) for known in (batch, packed))


def counted_padding(
    new: Masks, q: str, k: str, past: str, counts: str, number: float | None
) -> str:
    """Return the bias ``[B,1,1,T]``: ``number`` behind the first counts[b] keys of item b, else 0.

    If ``number`` is None, it is a boolean mask instead, true for those keys.  The other arguments
    and errors are those of :func:`visible_key_mask`.
    """
    kept = visible_key_mask(new, q, k, past, counts, (-1, -1))
    if number is None:
        return kept
    shape = new.specs[kept].shape or ()
    numbers = new.constant(0.0), new.constant(number)
    w = _MaskWriter(new, kept)
    return w.write(f"{number:g}", "Where", kept, *numbers, shape=shape, dtype=DType.F32)


@dataclass
class _MaskWriter:
    """Writes operators that layers share; names of their results begin with ``stem``."""

    new: Masks
    stem: str

    def write(
        self, role: str, op: str, *operands: str, shape: tuple[Extent, ...],
        dtype: DType = DType.I64, **attrs: Attr,
    ) -> str:  # fmt: skip
        name = f"{self.stem}.{role}"
        if name not in self.new.specs:
            node = Node(op, operands, (name,), attrs)
            self.new.shared.append(Region(f"keys:{name}", op, operands, (name,), (node,)))
            self.new.specs[name] = TensorSpec(dtype, shape)
        return name

    def integers(self, role: str, op: str, *operands: str) -> str:
        """Write an operator whose operands broadcast."""
        return self.write(role, op, *operands, shape=self._shape(operands))

    def compared(self, role: str, op: str, *operands: str) -> str:
        return self.write(role, op, *operands, shape=self._shape(operands), dtype=DType.BOOL)

    def ramp(self, role: str, count: str, extent: Extent) -> str:
        """Write 0, 1, …, count − 1."""
        zero, one = self.new.number(0), self.new.number(1)
        return self.write(role, "Range", zero, count, one, shape=(extent,))

    def size(self, role: str, value: str, axis: int = -2) -> str:
        """Write the length of an axis of an operand, read from an input of the graph if it can be.

        Other operands may be results of programs, which then would end there.
        """
        shape = self.new.graph.spec(value).shape or ()
        if isinstance(extent := shape[axis], int):
            return self.new.number(extent)
        value, axis = size_source(self.new.graph, extent, value, axis % len(shape))
        rank = self.new.graph.spec(value).rank or 0
        sizes = self.write(f"{role}_sizes", "Shape", value, shape=(rank,))
        return self.write(role, "Gather", sizes, self.new.number(axis), shape=(), axis=0)

    def counted(self, counts: str, q: str, column: str) -> str:
        """Write the number of keys of each item, int64 ``[B,1,1,1]``."""
        spec, batch = self.new.graph.spec(counts), self.new.full[0]
        if spec.dtype not in (DType.I32, DType.I64) or spec.rank != 1:
            raise NoMatch("its key counts are not one integer for each batch item")
        (have,) = spec.shape or ("",)
        if not holds_counts(have, batch):
            raise NoMatch("its key counts are not one integer for each batch item")
        if not equal_as_polynomials(have, batch):
            ends = self.new.numbers(0), self.vector("items", self.size("batch", q, 0))
            counts = self.write("counts", "Slice", counts, *ends, shape=(batch,),
                                dtype=spec.dtype)  # fmt: skip
        if spec.dtype is DType.I32:
            counts = self.write("wide", "Cast", counts, shape=(batch,), to=DType.I64.onnx)
        return self.write("end", "Reshape", counts, column, shape=(batch, 1, 1, 1))

    def keys(self, k: str, past: str) -> str:
        """Write the number of past and new keys."""
        new = self.size("new", k)
        return self.integers("keys", "Add", self.size("past", past), new) if past else new

    def vector(self, role: str, number: str) -> str:
        return self.write(role, "Reshape", number, self.new.numbers(1), shape=(1,))

    def padded(self, mask: str, have: Extent, keys: str, spec: TensorSpec) -> str:
        """Write ``mask`` with masked keys behind its last axis, which has length ``have``."""
        shape, want = spec.shape or (), self.new.full[3]
        none, boolean = 2 * len(shape) - 1, spec.dtype is DType.BOOL
        if isinstance(have, int) and isinstance(want, int):
            pads = self.new.numbers(*(0,) * none, want - have)
        else:
            more = self.integers("fewer", "Sub", keys, self.size("masked", mask, -1))
            parts = self.new.numbers(*(0,) * none), self.vector("more", more)
            pads = self.write("pads", "Concat", *parts, shape=(none + 1,), axis=0)
        fill = () if boolean else (self.new.constant(-inf),)
        dtype = DType.BOOL if boolean else DType.F32
        return self.write(
            "padded", "Pad", mask, pads, *fill, shape=(*shape[:-1], want), dtype=dtype
        )

    def _shape(self, operands: tuple[str, ...]) -> tuple[Extent, ...]:
        shape = broadcast([self.new.spec(v).shape or () for v in operands])
        assert shape is not None  # one extent each of items, queries and keys, or 1
        return shape
