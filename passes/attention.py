"""Attention as exporters spell it.

    q, k, v [B,S,H·D] -> Reshape, Transpose -> MatMul -> scale -> mask -> Softmax -> MatMul
      -> Transpose, Reshape                                         -> FusedAttention

The keys are transposed in one step, in two, or as matrices ``[B·H,S,D]``; the scale lies on the
scores, or on q and k; the mask is added, or selects by ``Where``; what only sizes the reshapes
goes with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from tracea_graph.ir import DType, Extent, Node, TensorSpec
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.passes.bounds import interval
from tracea_graph.passes.regions import (
    attribute,
    fused,
    is_f32,
    operand_producer,
    with_feeders,
)
from tracea_graph.rewrite import Miss, Proposal, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["RecogniseAttention"]

_SPLIT = (0, 2, 1, 3)
_SPLIT_KEYS = (0, 2, 3, 1)
_SWAP = (0, 1, 3, 2)
_SWAP_MATRICES = (0, 2, 1)
_NEGLIGIBLE = -1e4
"""A score at or below this never contributes beside any other."""
_ABSORBING = -1e30
"""Adding a score to this gives this: adding it is the same as putting it in the score's place."""


class _Unfit(Exception):
    """The graph around a Softmax is no attention we model; the message says why."""


@dataclass(frozen=True)
class _Mask:
    """``inverted`` is set when true drops the key; ``fill`` is what a dropped score becomes."""

    value: str = ""
    kind: str = "none"
    fill: float = -inf
    inverted: bool = False


@dataclass
class _Walk:
    """Steps from value to value, remembering what was covered and the scale found on the way."""

    graph: TileGraph
    covered: list[Region] = field(default_factory=list)
    scale: float = 1.0

    def through(self, value: str, op: str, why: str) -> Region:
        region = operand_producer(self.graph, value, op)
        if region is None:
            raise _Unfit(why)
        self.covered.append(region)
        return region

    def unscale(self, value: str) -> str:
        """Pass multiplications and divisions by a constant."""
        while (region := self.graph.producer(value)) is not None and region.op in ("Mul", "Div"):
            a, b = region.operands
            factor = constant_number(self.graph, b)
            if factor is None and region.op == "Mul":
                a, factor = b, constant_number(self.graph, a)
            if not factor:
                return value
            self.covered.append(region)
            self.scale *= factor if region.op == "Mul" else 1 / factor
            value = a
        return value

    def heads(self, value: str, keys: bool) -> tuple[str, int, int]:
        """The ``[B,S,H·D]`` value behind a head-major one, with H and D."""
        value = self.unscale(value)
        if keys and (swapped := self.before_swap(value)) is not None:
            value, keys = self.unscale(swapped), False
        region = self.through(value, "Transpose", "an operand is not split into heads")
        perm = attribute(region, "perm", ())
        if perm != (_SPLIT_KEYS if keys else _SPLIT):
            raise _Unfit(f"heads are transposed by {perm}")
        source = self.unscale(region.operands[0])
        split = self.through(source, "Reshape", "heads do not come from a Reshape")
        heads, size = self._split_of(split)
        return self.unscale(split.operands[0]), heads, size

    def before_swap(self, value: str) -> str | None:
        """The value of which this one has the last two of four axes swapped, or None."""
        region = operand_producer(self.graph, value, "Transpose")
        if region is not None and attribute(region, "perm", ()) == _SWAP:
            self.covered.append(region)
            return region.operands[0]
        return self._before_matrix_swap(value)

    def _before_matrix_swap(self, value: str) -> str | None:
        """``[B,H,S,D] -> [B·H,S,D] -> [B·H,D,S] -> [B,H,D,S]``"""
        graph = self.graph
        last = operand_producer(graph, value, "Reshape")
        swap = operand_producer(graph, last.operands[0], "Transpose") if last else None
        first = operand_producer(graph, swap.operands[0], "Reshape") if swap else None
        if last is None or swap is None or first is None:
            return None
        source = graph.spec(first.operands[0]).shape
        flat, result = graph.spec(swap.operands[0]).shape, graph.spec(value).shape
        if source is None or flat is None or result is None or len(source) != 4:
            return None
        swapped = (*source[:2], source[3], source[2])
        if attribute(swap, "perm", ()) != _SWAP_MATRICES or flat[1:] != source[2:]:
            return None
        if result != swapped:
            return None
        self.covered += [last, swap, first]
        return first.operands[0]

    def _split_of(self, reshape: Region) -> tuple[int, int]:
        before = self.graph.spec(reshape.operands[0]).shape
        after = self.graph.spec(reshape.results[0]).shape
        if before is None or after is None or len(before) != 3 or len(after) != 4:
            raise _Unfit("heads are not split from a rank-3 tensor")
        heads, size = after[2:]
        if not isinstance(heads, int) or not isinstance(size, int):
            raise _Unfit("the number or size of heads is not known")
        if before[:2] != after[:2] or before[2] != heads * size:
            raise _Unfit(f"the Reshape from {_dims(before)} to {_dims(after)} is no head split")
        return heads, size


class RecogniseAttention:
    """Scaled dot-product attention around one Softmax."""

    name = "attention"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Softmax":
            return
        try:
            yield self._build(graph, region)
        except _Unfit as why:
            yield Miss(self.name, region.id, str(why))

    def _build(self, graph: TileGraph, softmax: Region) -> Proposal:
        walk = _Walk(graph, [softmax])
        rank = graph.spec(softmax.operands[0]).rank
        if attribute(softmax, "axis", -1 if graph.opset >= 13 else 1) not in (-1, (rank or 0) - 1):
            raise _Unfit("the Softmax is not over the last axis")
        scores, mask = _mask(walk, softmax.operands[0])
        product = walk.through(walk.unscale(scores), "MatMul", _no_product(walk, scores))
        q, heads, size = walk.heads(product.operands[0], keys=False)
        k, heads_k, size_k = walk.heads(product.operands[1], keys=True)
        weights, zero_rows = _behind_guard(walk, softmax.results[0], mask)
        v, heads_v, size_v, last = _tail(walk, weights)
        if not heads == heads_k == heads_v or size != size_k:
            raise _Unfit("q, k and v have different heads")
        if not is_f32(graph, q, k, v):
            raise _Unfit("q, k and v are not float32")
        _check_shapes(graph, (q, k, v), mask, heads)
        widths = (heads * size, heads * size, heads * size_v)
        params = AttentionParams(
            heads, size, size_v, walk.scale, mask.kind,
            widths=widths, fill=mask.fill, zero_rows=zero_rows,
        )  # fmt: skip
        return self._proposal(walk, params, (q, k, v), mask, last)

    def _proposal(
        self,
        walk: _Walk,
        params: AttentionParams,
        operands: tuple[str, ...],
        mask: _Mask,
        last: Region,
    ) -> Proposal:
        """The region, and the negation it needs of a mask that is true where keys are dropped."""
        graph, result = walk.graph, last.results[0]
        spec = params.infer([graph.spec(v) for v in operands])[0]
        external = (*operands, *([mask.value] if mask.value else []))
        covered = with_feeders(graph, walk.covered, external)
        _check_interior(graph, covered, last)
        specs, extra = {result: spec}, []
        if mask.inverted:
            kept = f"{result}_keep"
            specs[kept] = graph.spec(mask.value)
            node = Node("Not", (mask.value,), (kept,))
            extra.append(Region(f"not:{kept}", "Not", node.inputs, node.outputs, (node,)))
            external = (*operands, kept)
        new = fused(self.name, params, external, last.results, covered)
        return Proposal(self.name, tuple(covered), (new, *extra), specs)


# ---- the mask --------------------------------------------------------------------------


def _mask(walk: _Walk, value: str) -> tuple[str, _Mask]:
    """The scores before the mask, and the mask."""
    graph = walk.graph
    region = graph.producer(value)
    if region is not None and region.op == "Add":
        a, b = region.operands
        if not _comes_from(graph, a, ("MatMul",)):
            a, b = b, a
        if _comes_from(graph, a, ("MatMul",)):
            walk.covered.append(region)
            return a, _selecting(graph, b) or _Mask(b, "add")
    if region is not None and region.op == "Where":
        condition, a, b = region.operands
        inverted = not _comes_from(graph, a, ("MatMul",))
        scores, fill = (b, a) if inverted else (a, b)
        number = constant_number(graph, fill)
        if number is None or not number <= _NEGLIGIBLE:
            raise _Unfit("a boolean mask does not fill with a very low constant")
        walk.covered.append(region)
        return scores, _Mask(_unexpanded(graph, condition), "bool", number, inverted)
    return value, _Mask()


def _selecting(graph: TileGraph, value: str) -> _Mask | None:
    """The condition behind an additive mask ``Where(keep, 0, very low)``, either way round."""
    region = operand_producer(graph, value, "Where")
    if region is None:
        return None
    condition, *branches = region.operands
    a, b = (constant_number(graph, v) for v in branches)
    if a is None or b is None or {a == 0.0, b == 0.0} != {True, False}:
        return None
    fill, inverted = (b, False) if a == 0.0 else (a, True)
    if not fill <= _ABSORBING:
        return None
    return _Mask(_unexpanded(graph, condition), "bool", fill, inverted)


def _unexpanded(graph: TileGraph, value: str) -> str:
    """What an Expand repeats: kernels broadcast the mask themselves."""
    region = operand_producer(graph, value, "Expand")
    return value if region is None else region.operands[0]


def _behind_guard(walk: _Walk, weights: str, mask: _Mask) -> tuple[str, bool]:
    """Pass ``Where(IsNaN(p), 0, p)``; True if it is needed: rows of scores may be −inf throughout.

    Only such rows are what exporters guard: a NaN or an overflow in the scores themselves is not
    turned into zero any more, it shows.
    """
    graph = walk.graph
    test = next((r for r in _readers(graph, weights) if r.op == "IsNaN"), None)
    if test is None:
        return weights, False
    guard = _reader(graph, test.results[0], "Where")
    if guard is None or constant_number(graph, guard.operands[1]) != 0.0:
        raise _Unfit("a NaN test on the Softmax feeds something else than a zero")
    if guard.operands[2] != weights or len(_readers(graph, weights)) != 2:
        raise _Unfit("a NaN test on the Softmax feeds something else than a zero")
    lowest = mask.fill if mask.kind == "bool" else 0.0
    if mask.kind == "add":
        lowest = interval(graph, mask.value)[0]
    walk.covered += [test, guard]
    return guard.results[0], lowest == -inf


# ---- the rest --------------------------------------------------------------------------


def _tail(walk: _Walk, weights: str) -> tuple[str, int, int, Region]:
    """The v value, its heads, and the region that merges the heads again."""
    graph = walk.graph
    product = _reader(graph, weights, "MatMul")
    if product is None or product.operands[0] != weights:
        raise _Unfit("the Softmax does not feed one product with v")
    walk.covered.append(product)
    scale, walk.scale = walk.scale, 1.0
    v, heads, size = walk.heads(product.operands[1], keys=False)
    if walk.scale != 1.0:
        raise _Unfit("v is scaled")
    walk.scale = scale
    transpose = _reader(graph, product.results[0], "Transpose")
    if transpose is None or attribute(transpose, "perm", ()) != _SPLIT:
        raise _Unfit("the heads are not merged by a Transpose")
    last = _reader(graph, transpose.results[0], "Reshape")
    before = graph.spec(transpose.results[0]).shape
    after = graph.spec(last.results[0]).shape if last else None
    if last is None or before is None or after is None or len(after) != 3:
        raise _Unfit("the heads are not merged into a rank-3 tensor")
    if after[2] != heads * size or after[:2] != before[:2]:
        raise _Unfit(
            f"the Reshape from {_dims(before)} to {_dims(after)} does not merge the heads"
        )
    walk.covered += [transpose, last]
    return v, heads, size, last


def _check_shapes(graph: TileGraph, qkv: tuple[str, ...], mask: _Mask, heads: int) -> None:
    q, k, v = (graph.spec(x).shape or () for x in qkv)
    if k[:2] != v[:2] or q[0] != k[0]:
        raise _Unfit("q, k and v do not provably agree in batch and keys")
    if mask.value:
        _check_mask(graph.spec(mask.value), mask, (q[0], heads, q[1], k[1]))


def _check_mask(spec: TensorSpec, mask: _Mask, full: tuple[Extent, ...]) -> None:
    want = DType.BOOL if mask.kind == "bool" else DType.F32
    if spec.dtype is not want or spec.shape is None or len(spec.shape) > 4:
        raise _Unfit(f"the mask is {spec}")
    for have, need in zip(spec.shape[::-1], full[::-1], strict=False):
        if have not in (1, need):
            raise _Unfit(f"the mask {spec} does not provably broadcast to {_dims(full)}")
    if not spec.shape or spec.shape[-1] != full[-1]:
        raise _Unfit("the mask does not vary over the keys")


def _check_interior(graph: TileGraph, covered: list[Region], last: Region) -> None:
    inside = {r.id for r in covered}
    for region in covered:
        for value in region.writes if region.id != last.id else ():
            if graph.is_output(value):
                raise _Unfit(f"the result {value!r} of {region.op} is a graph output")
            if any(u.region.id not in inside for u in graph.uses(value)):
                raise _Unfit(f"the result {value!r} of {region.op} has other readers")


def _no_product(walk: _Walk, scores: str) -> str:
    """Why no product was found where the scores should come from."""
    masked = _comes_from(walk.graph, scores, ("Add", "Where"))
    return "the scores are masked twice" if masked else "no product feeds the Softmax"


def _comes_from(graph: TileGraph, value: str, ops: tuple[str, ...]) -> bool:
    """True if ``value`` is the result of one of ``ops``, scaled by constants or not."""
    region = graph.producer(_Walk(graph).unscale(value))
    return region is not None and region.op in ops


def _readers(graph: TileGraph, value: str) -> list[Region]:
    """Who reads ``value`` for more than its size, each once."""
    readers = {u.region.id: u.region for u in graph.uses(value)}
    return [r for r in readers.values() if r.op != "Shape"]


def _reader(graph: TileGraph, value: str, op: str) -> Region | None:
    """The only region that reads ``value``, if it is an ``op``."""
    readers = _readers(graph, value)
    return readers[0] if len(readers) == 1 and readers[0].op == op else None


def _dims(shape: tuple[Extent, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
