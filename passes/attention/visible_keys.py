"""Write the masks of ONNX's Attention as kernels read them.

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

from tracea_graph.ir import Attr, DType, Extent, Node, TensorSpec
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.passes.attention.score_masks import Masks, broadcasts_to
from tracea_graph.ttg import Region

__all__ = ["visible_key_mask", "whole_mask"]


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

    T are the keys of ``past``, or none where it is "", and of ``k``.  ``counts`` is int64 ``[B]``,
    or "" if all keys are valid; ``window`` is (left, right), of which a negative number is no
    limit.  Layers with equal sizes share the mask.  Raises NoMatch unless there is one count per
    item, or if nothing limits the keys.
    """
    batch, _, rows, keys = new.full
    left, right = window
    if counts:
        spec = new.graph.spec(counts)
        if spec.dtype is not DType.I64 or spec.shape != (batch,):
            raise NoMatch("its key counts are not one int64 number for each batch item")
    behind = (new.graph.spec(past).shape or ("", "", ""))[2] if past else 0
    w, found = _MaskWriter(new, f"{counts}.{behind}.{rows}.{keys}"), list[str]()
    key, column = w.ramp("key", w.keys(k, past), keys), new.numbers(-1, 1, 1, 1)
    end = w.write("end", "Reshape", counts, column, shape=(batch, 1, 1, 1)) if counts else ""
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
        """Write the length of an axis of an operand."""
        rank = self.new.graph.spec(value).rank or 0
        sizes = self.write(f"{role}_sizes", "Shape", value, shape=(rank,))
        return self.write(role, "Gather", sizes, self.new.number(axis % rank), shape=(), axis=0)

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
