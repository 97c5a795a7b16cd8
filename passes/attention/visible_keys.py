"""Write which keys each query sees as a boolean mask, where no kernel has that limit.

    first c[b] keys of item b                       key < c[b]
    up to ``left`` keys before a query's position   key >= position - left
    up to ``right`` keys after it                   key <= position + right

Query i of S in item b is at position i + c[b] - S, or if all keys are valid, behind past ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.ir import Attr, DType, Extent, Node, TensorSpec
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.passes.attention.score_masks import Masks
from tracea_graph.ttg import Region

__all__ = ["visible_key_mask"]


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
    w, found = _MaskWriter(new, f"{counts}.{rows}.{keys}"), list[str]()
    every = w.size("keys", k)
    before = w.size("past", past) if past else ""
    key = w.ramp("key", w.integers("all", "Add", before, every) if past else every, keys)
    column = new.numbers(-1, 1, 1, 1)
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
            place = w.integers("behind", "Add", before, place)
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

    def size(self, role: str, value: str) -> str:
        """Write the length of the last axis but one."""
        rank = self.new.graph.spec(value).rank or 0
        sizes = self.write(f"{role}_sizes", "Shape", value, shape=(rank,))
        return self.write(role, "Gather", sizes, self.new.number(rank - 2), shape=(), axis=0)

    def _shape(self, operands: tuple[str, ...]) -> tuple[Extent, ...]:
        shape = broadcast([self.new.spec(v).shape or () for v in operands])
        assert shape is not None  # one extent each of items, queries and keys, or 1
        return shape
