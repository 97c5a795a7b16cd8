"""``FusedAttention``: scaled dot-product attention over heads.

    s = scale · q kᵀ                       scores per head; several query heads may share k and v
    s = softcap · tanh(s / softcap)        if there is a cap
    s = s where the key is not later than the query, else fill        if causal
    s = s + mask, or s where mask else fill                           if masked
    s = s where the key is near the query, else −∞                    in a window
    s = s in the active tiles, else −∞                                in tiles
    y = softmax(s) v

Each of q, k, v and y is stored in one of four layouts.  In ``rows``, a tensor may hold more
columns than are read: q, k and v may be column ranges of one tensor (a merged projection).
Sources: Vaswani et al. 2017; key blocks: Dao et al. 2022; shared keys: Ainslie et al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.ops.attention_tiles import TileGrid
from tracea_graph.ops.bf16 import round_bf16
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import (
    SOFTMAX_COST,
    access_map,
    aligned_access,
    region_model,
)
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import (
    AccessMap,
    Axis,
    DimIndex,
    IterationSpace,
    index_along,
    index_whole,
)
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = [
    "CAUSAL", "FEW_QUERIES", "LAYOUTS", "LOWEST", "MASKS", "STORED", "UNLIMITED", "ZERO_ROWS",
    "AttentionParams", "without_empty_rows",
]  # fmt: skip

MASKS = ("none", "add", "bool")
"""No mask; an additive one; a boolean one, true where the key is kept."""

CAUSAL = ("none", "top", "bottom", "placed")
"""Query i sees every key; keys up to i; keys up to i + T − S (the last query sees all); keys up to
i + the position of its item's first query, given by an operand.
"""

ZERO_ROWS = ("none", "guarded", "masked", "lowest", "infinite")
"""Rows of softmax weights that become zeros.

    none      no row: one whose scores are all −∞ is NaN
    guarded   rows that are NaN
    masked    rows all of whose keys are masked: outside the window, or with ``LOWEST`` or less
              added to the score or in its place
    lowest    rows of several keys, none of which scores above ``LOWEST``
    infinite  like ``masked``, but only −∞ counts
"""

LOWEST = float(np.finfo(np.float32).min)

LAYOUTS = ("rows", "split", "heads", "transposed")
"""Layouts of q, k, v and y: ``[B,S,columns]``, ``[B,S,H,D]``, ``[B,H,S,D]`` and ``[B,H,D,S]``."""

STORED = ("f32", "f16", "bf16", "i8")
"""Element types of keys and values that float32 queries meet."""

FEW_QUERIES = 4
"""Number of queries up to which rounding the keys would cost more than it saves
(``runtime/attention.h``).
"""

UNLIMITED = 1 << 30
"""A side of a window that excludes no key: any position plus it is still an int32."""

_AXES = {"rows": (0, 1), "split": (0, 1), "heads": (0, 2), "transposed": (0, 3)}
"""Axes of batch and sequence in each layout."""
_TO_HEADS = {"split": (0, 2, 1, 3), "transposed": (0, 1, 3, 2)}

Floats = npt.NDArray[np.floating[Any]]

_QUERY_BLOCK = 40
"""Keys a block of queries reads beyond the window of a single query."""


@dataclass(frozen=True)
class AttentionParams:
    """Parameters of attention.

    Operands: q, k, v, then a mask (broadcast to ``[B, H, S, T]``) or positions (int64 ``[B]``),
    and, with ``tiles``, a map of the active tiles (int32).

    * ``kv_heads``: number of heads of k and v, each of which serves an equal number of consecutive
      query heads; 0 means one per query head;
    * ``layouts``: layouts of q, k, v and y;
    * ``offsets``: in layout ``rows``, the first columns of q, k and v in their tensors;
    * ``widths``: in layout ``rows``, the last dimensions of these tensors;
    * ``fill``: score of a key that a boolean mask or causality drops;
    * ``zero_rows``: what happens to queries with no key left (:data:`ZERO_ROWS`);
    * ``window``: numbers of keys that a query sees before and after its own position; without
      causality, the last query is at the last key's;
    * ``in_bf16``: whether q, k, v and the weights are rounded to bf16 before they are multiplied;
      sums and softmax stay in float32;
    * ``whole``: whether q, k and v are stored in float32, and not rounded in calls with up to
      ``FEW_QUERIES`` queries;
    * ``stored``: element type of k and v, one of :data:`STORED`; they are converted as they are
      read, integers without a scale.

    With positions there is no mask; a position p lies in ``[0, T − S]``, and keys from p + S on
    are never read.  Raises ValueError for inconsistent parameters.
    """

    heads: int
    head: int
    head_v: int
    scale: float
    mask: str = "none"
    offsets: tuple[int, int, int] = (0, 0, 0)
    widths: tuple[int, int, int] = (0, 0, 0)
    fill: float = float("-inf")
    zero_rows: str = "none"
    kv_heads: int = 0
    layouts: tuple[str, str, str, str] = ("rows", "rows", "rows", "rows")
    causal: str = "none"
    softcap: float = 0.0
    window: tuple[int, int] | None = None
    global_keys: int = 0
    in_bf16: bool = False
    whole: bool = False
    tiles: TileGrid | None = None
    stored: str = "f32"

    def __post_init__(self) -> None:
        if min(self.heads, self.head, self.head_v) < 1 or self.mask not in MASKS:
            raise ValueError(f"invalid attention: {self.heads} heads, mask {self.mask!r}")
        if self.zero_rows not in ZERO_ROWS:
            raise ValueError(f"unknown zero_rows of attention: {self.zero_rows!r}")
        if self.in_bf16 and (self.head % 2 or "transposed" in self.layouts):
            raise ValueError("attention in bf16 needs an even head size and k not transposed")
        if self.stored not in STORED or (self.stored != "f32" and self.in_bf16):
            raise ValueError(f"keys and values stored in {self.stored} are not supported")
        if self.stored != "f32" and "transposed" in self.layouts:
            raise ValueError("transposed keys must be stored in float32")
        if self.whole and not self.in_bf16:
            raise ValueError("only attention in bf16 may keep operands in float32 (whole)")
        if self.kv_heads < 0 or self.heads % self.shared_heads:
            raise ValueError(f"{self.kv_heads} key heads do not divide {self.heads} query heads")
        if self.causal not in CAUSAL or not self.softcap >= 0:
            raise ValueError(f"invalid attention: causal {self.causal!r}, softcap {self.softcap}")
        if self.causal == "placed" and (self.mask != "none" or self.global_keys or self.tiles):
            raise ValueError("attention with positions must have no mask, global keys or tiles")
        ordered = self.window or self.causal != "none" or self.mask == "none"
        if self.tiles and not self.tiles.masks and ordered:
            raise ValueError("tiles of a mask need that mask, and no causality or window")
        if min(self.global_keys, *(self.window or (0,))) < 0:
            raise ValueError(
                f"window {self.window} or global keys {self.global_keys}: must not be negative"
            )
        if self.causal != "none" and self.reach[1]:
            raise ValueError("a window of causal attention ends at the query's own position")
        unknown = any(layout not in LAYOUTS for layout in self.layouts)
        if unknown or "transposed" in (self.layouts[0], *self.layouts[2:]):
            raise ValueError(f"unsupported layouts of attention: {', '.join(self.layouts)}")
        parts = zip(self.offsets, self.sizes, self.widths, self.layouts, strict=False)
        for first, size, width, layout in parts:
            if layout == "rows" and (first < 0 or first + size > width):
                raise ValueError(
                    f"columns of q, k or v lie outside tensors of widths {self.widths}"
                )

    @property
    def operands(self) -> int:
        return 3 + (self.mask != "none") + (self.causal == "placed") + (self.tiles is not None)

    @property
    def shared_heads(self) -> int:
        """Number of heads of k and v."""
        return self.kv_heads or self.heads

    @property
    def counts(self) -> tuple[int, int, int]:
        """Number of heads of q, k and v."""
        return self.heads, self.shared_heads, self.shared_heads

    @property
    def reach(self) -> tuple[int, int]:
        """Numbers of keys that a query sees before and after its own position.

        (−1, 0) means that no window limits them.
        """
        return self.window or (-1, 0)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Total columns of q, k and v over all their heads."""
        return (
            self.heads * self.head,
            self.shared_heads * self.head,
            self.shared_heads * self.head_v,
        )

    def axes(self, which: int) -> tuple[int, int]:
        """Return the batch and sequence axes of q, k, v or y (``which`` is 0 to 3)."""
        return _AXES[self.layouts[which]]

    def extents(self, which: int, spec: TensorSpec) -> tuple[Extent, Extent]:
        """Return batch and sequence sizes of q, k, v or y (0 to 3).

        Raises ValueError for a wrong rank.
        """
        layout = self.layouts[which]
        rank = 3 if layout == "rows" else 4
        if spec.shape is None or len(spec.shape) != rank:
            raise ValueError(f"{'qkvy'[which]} is not a rank-{rank} tensor")
        batch, sequence = self.axes(which)
        return spec.shape[batch], spec.shape[sequence]

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the spec of y in its layout, with the batch and sequence sizes of q."""
        batch, rows = self.extents(0, specs[0])
        shapes: dict[str, tuple[Extent, ...]] = {
            "rows": (batch, rows, self.heads * self.head_v),
            "split": (batch, rows, self.heads, self.head_v),
            "heads": (batch, self.heads, rows, self.head_v),
        }
        return (TensorSpec(DType.F32, shapes[self.layouts[3]]),)

    # ---- NumPy ---------------------------------------------------------------------------

    def reference(self, arrays: Sequence[Any]) -> list[Floats]:
        few = self.whole and np.shape(arrays[0])[self.axes(0)[1]] <= FEW_QUERIES
        rounded = round_bf16 if self.in_bf16 and not few else np.asarray
        wide = (arrays[0], *(self._widened(a) for a in arrays[1:3]))
        q, k, v = (self._heads(rounded(a), i) for i, a in enumerate(wide))
        scores = self.scale * (q @ np.swapaxes(k, -1, -2))
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        if self.causal != "none":
            place = self._places(arrays, *scores.shape[-2:])
            scores = np.where(np.arange(scores.shape[-1]) <= place, scores, self.fill)
        if self.mask == "add":
            scores = scores + arrays[3]
        elif self.mask == "bool":
            scores = np.where(arrays[3], scores, self.fill)
        if self.window:
            place = self._places(arrays, *scores.shape[-2:])
            scores = np.where(self._near(place, scores.shape[-1]), scores, -np.inf)
        if self.tiles and self.tiles.masks:
            scores = np.where(self.tiles.kept(arrays[-1], *scores.shape[-2:]), scores, -np.inf)
        with np.errstate(invalid="ignore"):  # −inf − −inf, where no key is left
            weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
            shares = weights / weights.sum(-1, keepdims=True)
        shares = without_empty_rows(shares, scores, self._seen(arrays, scores), self.zero_rows)
        y: Any = shares @ v
        if self.layouts[3] == "heads":
            return [y]
        y = np.moveaxis(y, 1, 2)
        shape = self.infer([TensorSpec(DType.F32, np.shape(arrays[0]))])[0].shape
        return [y.reshape(shape)]

    def _widened(self, x: Any) -> Any:
        """Return keys or values that are computed with in float32, or as they are."""
        return x if self.stored == "f32" else np.asarray(x, np.float32)

    @property
    def _masked(self) -> float:
        """Largest addend, or replacement score, that counts as masked."""
        return -inf if self.zero_rows == "infinite" else LOWEST

    def _seen(self, arrays: Sequence[Any], scores: Floats) -> npt.NDArray[np.bool_]:
        """Return True where a key is not masked, broadcast to the scores."""
        seen = np.ones(scores.shape, bool)
        place = self._places(arrays, *scores.shape[-2:])
        if self.causal != "none" and self.fill <= self._masked:
            seen &= np.arange(scores.shape[-1]) <= place
        if self.mask == "add":
            seen &= ~(arrays[3] <= self._masked)
        elif self.mask == "bool" and self.fill <= self._masked:
            seen &= arrays[3]
        if self.window:
            seen &= self._near(place, scores.shape[-1])
        if self.tiles and self.tiles.masks:
            seen &= self.tiles.kept(arrays[-1], *scores.shape[-2:])
        return seen

    def _places(self, arrays: Sequence[Any], rows: int, keys: int) -> npt.NDArray[np.int64]:
        """Return the positions of queries among the keys: ``[S,1]``, or per item ``[B,1,S,1]``."""
        if self.causal == "placed":
            first = np.asarray(arrays[3])[:, None, None, None]
        else:
            first = np.asarray(0 if self.causal == "top" else keys - rows)
        return first + np.arange(rows)[:, None]

    def _near(self, place: npt.NDArray[np.int64], keys: int) -> npt.NDArray[np.bool_]:
        """Return True where a key lies in a query's window."""
        key, (before, after) = np.arange(keys), self.reach
        near = (key >= place - before) & (key <= place + after)
        return near | (key < self.global_keys) | (place < self.global_keys)

    def _heads(self, x: Floats, which: int) -> Floats:
        """Return an operand as ``[B,H,S,D]``, with shared heads repeated."""
        layout, count = self.layouts[which], self.counts[which]
        if layout == "rows":
            first, size = self.offsets[which], self.sizes[which]
            part = x[..., first : first + size]
            x = np.moveaxis(part.reshape(*x.shape[:2], count, size // count), 2, 1)
        elif layout in _TO_HEADS:
            x = x.transpose(_TO_HEADS[layout])
        return np.repeat(x, self.heads // count, 1)

    # ---- ONNX ----------------------------------------------------------------------------

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        batch, rows = (operands[0][axis] for axis in self.axes(0))
        keys = operands[1][self.axes(1)[1]]
        if self.causal != "none":  # the last query sees all keys, the first one only its own
            keys = max(1.0, keys - (min(rows, keys) - 1.0) / 2.0)
        heads = batch * self.heads
        if self.window:  # a block of queries reads the union of its queries' windows
            keys = min(keys, sum(self.reach) + 1 + self.global_keys + _QUERY_BLOCK)
        scores = heads * rows * keys
        if self.tiles:
            scores *= self.tiles.share_of(operands[-1][0])
        share = fit.shares["FusedAttention bf16" if self.in_bf16 else "FusedAttention"]
        product = 2.0 * scores * (self.head + self.head_v) / share
        softmax = scores * fit.instructions["fused softmax"]
        return OpCost(product, softmax, heads * fit.us["attention head"], one_pass=True)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        wide = [
            b("Cast", x, to=DType.F32.onnx) if i and self.stored != "f32" else x
            for i, x in enumerate(b.inputs[:3])
        ]
        q, k, v = (self._heads_to_onnx(b, wide[i], i) for i in range(3))
        scores = b("Mul", b("MatMul", q, k), b.number(self.scale))
        if self.softcap:
            capped = b("Tanh", b("Div", scores, b.number(self.softcap)))
            scores = b("Mul", capped, b.number(self.softcap))
        if self.causal != "none":
            scores = b("Where", self._later_to_onnx(b, scores), b.number(self.fill), scores)
        if self.mask == "add":
            scores = b("Add", scores, b.inputs[3])
        elif self.mask == "bool":
            scores = b("Where", b.inputs[3], scores, b.number(self.fill))
        if self.window:
            scores = b("Where", self._near_to_onnx(b, scores), scores, b.number(-float("inf")))
        if self.tiles and self.tiles.masks:
            scores = b("Where", self._tiles_to_onnx(b, scores), scores, b.number(-float("inf")))
        shares = self._zero_rows_to_onnx(b, scores, b("Softmax", scores, axis=3))
        y = b("MatMul", shares, v)
        if self.layouts[3] == "heads":
            return b.done(y)
        y = b("Transpose", y, perm=(0, 2, 1, 3))
        if self.layouts[3] == "rows":
            y = b("Reshape", y, b.ints(0, 0, self.heads * self.head_v))
        return b.done(y)

    def _heads_to_onnx(self, b: BodyBuilder, x: str, which: int) -> str:
        """Write an operand as ``[B,H,S,D]``, keys as ``[B,H,D,T]``."""
        layout, count, keys = self.layouts[which], self.counts[which], which == 1
        if layout == "rows":
            first, size = self.offsets[which], self.sizes[which]
            if size != self.widths[which]:
                x = b.slice_last(x, first, first + size, 2)
            x = b("Reshape", x, b.ints(0, 0, count, size // count))
            layout = "split"
        if layout == "split":
            x = b("Transpose", x, perm=(0, 2, 3, 1) if keys else (0, 2, 1, 3))
        elif layout == "heads" and keys:
            x = b("Transpose", x, perm=(0, 1, 3, 2))
        if count == self.heads:
            return x
        repeated = np.repeat(np.arange(count), self.heads // count)
        return b("Gather", x, b.ints(*map(int, repeated)), axis=1)

    def _zero_rows_to_onnx(self, b: BodyBuilder, scores: str, shares: str) -> str:
        if self.zero_rows == "none":
            return shares
        if self.zero_rows == "guarded":
            empty = b("IsNaN", shares)
        else:
            lowest = self.zero_rows == "lowest"
            seen = _above_lowest_to_onnx(b, scores) if lowest else self._seen_to_onnx(b, scores)
            if not seen:
                return shares
            count = b.reduce("ReduceSum", b("Cast", seen, to=DType.F32.onnx), (-1,))
            empty = b("Less", count, b.number(0.5))
        return b("Where", empty, b.number(0.0), shares)

    def _seen_to_onnx(self, b: BodyBuilder, scores: str) -> str:
        """Write a mask that is true where a key is visible, ``[…,1 or S,1 or T]``; "" for all."""
        parts = []
        if self.mask == "add":
            parts.append(_above(b, b.inputs[3], self._masked))
        if self.mask == "bool" and self.fill <= self._masked:
            parts.append(b.inputs[3])
        if self.causal != "none" and self.fill <= self._masked:
            parts.append(b("Not", self._later_to_onnx(b, scores)))
        if self.window:
            parts.append(self._near_to_onnx(b, scores))
        if self.tiles and self.tiles.masks:
            parts.append(self._tiles_to_onnx(b, scores))
        return reduce(lambda seen, part: b("And", seen, part), parts) if parts else ""

    def _places_to_onnx(self, b: BodyBuilder, scores: str) -> tuple[str, str]:
        """Write the positions of keys ``[T]`` and of queries ``[S,1]`` or ``[B,1,S,1]``."""
        sizes = b("Shape", scores)
        zero, one = (b("Constant", value=np.asarray(i, np.int64)) for i in (0, 1))
        rows, keys = (
            b("Gather", sizes, b("Constant", value=np.asarray(i, np.int64))) for i in (2, 3)
        )
        i = b("Range", zero, rows, one)
        if self.causal == "bottom" or (self.window and self.causal == "none"):
            i = b("Add", i, b("Sub", keys, rows))
        i = b("Reshape", i, b.ints(-1, 1))
        if self.causal == "placed":
            i = b("Add", i, b("Reshape", b.inputs[3], b.ints(-1, 1, 1, 1)))
        return b("Range", zero, keys, one), i

    def _later_to_onnx(self, b: BodyBuilder, scores: str) -> str:
        """Write a mask that is true where a key comes after its query."""
        return b("Greater", *self._places_to_onnx(b, scores))

    def _near_to_onnx(self, b: BodyBuilder, scores: str) -> str:
        """Write a mask that is true where a key lies in a query's window."""
        key, place = self._places_to_onnx(b, scores)
        behind, (before, after) = b("Sub", key, place), self.reach
        near = b(
            "And",
            b("Less", behind, b.ints(after + 1)),
            b("Greater", behind, b.ints(-before - 1)),
        )
        if not self.global_keys:
            return near
        first = b.ints(self.global_keys)
        return b("Or", near, b("Or", b("Less", key, first), b("Less", place, first)))

    def _tiles_to_onnx(self, b: BodyBuilder, scores: str) -> str:
        """Write a mask that is true where a score lies in an active tile."""
        assert self.tiles is not None
        sizes = b("Shape", scores)
        zero, one = (b("Constant", value=np.asarray(i, np.int64)) for i in (0, 1))
        rows, keys = (
            b("Range", zero, b("Gather", sizes, b("Constant", value=np.asarray(i, np.int64))), one)
            for i in (2, 3)
        )
        rows = b("Reshape", rows, b.ints(-1, 1))
        return self.tiles.kept_to_onnx(b, b.inputs[-1], rows, keys)

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model heads as independent problems, queries as their rows, keys as the reduction.

        Where heads share keys, head h is the pair (g, r) with h = g · (heads per key head) + r.
        """
        q, k, v, *mask = region.operands[: len(region.operands) - (self.tiles is not None)]
        try:
            batch, queries = self.extents(0, graph.spec(q))
            keys = self.extents(1, graph.spec(k))[1]
        except ValueError:
            return None
        shared = self.heads // self.shared_heads
        heads = (("g", shared), ("r", 1)) if shared > 1 else (("h", 1),)
        of_keys = heads[:1] if shared == 1 else (("g", 1),)
        extents = {"g": self.shared_heads, "r": shared, "h": self.heads}
        names = tuple(name for name, _ in heads)
        space = IterationSpace(
            (
                Axis("b", batch), *(Axis(n, extents[n]) for n in names), Axis("s", queries),
                Axis("e", self.head_v), Axis("t", keys, True),
            )
        )  # fmt: skip
        whole_head, value = index_whole(self.head), index_along("e")
        reads = [
            _head_access(graph, q, self, 0, heads, "s", whole_head),
            _head_access(graph, k, self, 1, of_keys, "t", whole_head),
            _head_access(graph, v, self, 2, of_keys, "t", value),
            *(
                aligned_access(graph, m, ("b",))
                if self.causal == "placed"
                else _mask_access(graph, m, heads)
                for m in mask
            ),
        ]
        writes = [_head_access(graph, region.results[0], self, 3, heads, "s", value)]
        scores = ("b", *names, "s", "t")
        work = (LoopWork(scores, 2 * self.head + SOFTMAX_COST), LoopWork((*scores, "e"), 2))
        return region_model(
            region, space, reads, writes, work, ("s",), ("e",), ("t",), ("b", *names)
        )


def _above(b: BodyBuilder, x: str, limit: float = LOWEST) -> str:
    """Write a mask that is true where x is above the limit or NaN."""
    least = np.nextafter(np.float32(limit), np.float32(0))
    return b("Not", b("Less", x, b.number(float(least))))


def _above_lowest_to_onnx(b: BodyBuilder, scores: str) -> str:
    """Write a mask that is true where a key scores above ``LOWEST`` or is the only key."""
    keys = b("Gather", b("Shape", scores), b.ints(3))
    return b("Or", _above(b, scores), b("Less", keys, b.ints(2)))


def without_empty_rows(
    shares: Floats, scores: Floats, seen: npt.NDArray[np.bool_], zero_rows: str
) -> Floats:
    """Zero those rows of softmax weights that have no key left, as ``zero_rows`` selects them.

    ``shares`` are the weights and ``scores`` their scores, both ``[…,S,T]``.  ``seen`` is true
    where a key is not masked. :data:`ZERO_ROWS` defines the values of ``zero_rows``.
    """
    if zero_rows == "guarded":
        return np.asarray(np.where(np.isnan(shares), 0.0, shares))
    if zero_rows == "none":
        return shares
    if zero_rows == "lowest":
        seen = ~(scores.astype(np.float32) <= LOWEST) | (scores.shape[-1] == 1)
    return np.asarray(np.where(seen.any(-1, keepdims=True), shares, 0.0))


HeadTerms = tuple[tuple[str, int], ...]


def _head_access(
    graph: TileGraph, name: str, p: AttentionParams, which: int, heads: HeadTerms, row: str,
    columns: DimIndex,
) -> AccessMap | None:  # fmt: skip
    """Access map of q, k, v or y (0 to 3); ``columns`` indexes the columns within a head."""
    layout, rows = p.layouts[which], index_along(row)
    if layout == "rows":
        size, offset = (p.head if which < 2 else p.head_v), (*p.offsets, 0)[which]
        terms = tuple((n, c * size) for n, c in heads)
        merged = DimIndex((*terms, *columns.terms), offset, columns.window)
        return access_map(graph, name, (index_along("b"), rows, merged))
    own = DimIndex(heads)
    dims = {
        "split": (index_along("b"), rows, own, columns),
        "heads": (index_along("b"), own, rows, columns),
        "transposed": (index_along("b"), own, columns, rows),
    }
    return access_map(graph, name, dims[layout])


def _mask_access(graph: TileGraph, name: str, heads: HeadTerms) -> AccessMap | None:
    """Access map of a mask that broadcasts to ``[B, H, S, T]``."""
    shape = graph.spec(name).shape
    if shape is None or len(shape) > 4:
        return None
    full = (index_along("b"), DimIndex(heads), index_along("s"), index_along("t"))[
        4 - len(shape) :
    ]
    dims = [DimIndex() if e == 1 else d for d, e in zip(full, shape, strict=True)]
    return access_map(graph, name, dims)
