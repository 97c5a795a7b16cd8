"""Restore the head axis of batched matrices ``[B·H,S,D]``.

Reshape(op(Reshape(x, [B·H,S,D]), Tile(w, [B,1,1])), [B,H,S,T])   ->   op(x, w)

``torch.bmm`` takes one axis of matrices, so exporters flatten heads before it, split them again
after it, and repeat operands that all items or heads share.  With a separate axis of heads such
operands broadcast and need not be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracea_graph.ir import Attr, DType, Extent, Node, TensorSpec, Weight, combine
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.passes.layout.axis_selection import BY_ELEMENT
from tracea_graph.passes.prove_extents import equal_as_polynomials, tail_agrees
from tracea_graph.passes.region_helpers import (
    attribute,
    first_value_read_outside,
    int_constant,
    with_private_producers,
)
from tracea_graph.reason_codes import Code, Reason, other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.region import region_of

__all__ = ["UnflattenHeads"]

_SWAP = (0, 2, 1)
_MAX_DEPTH = 24


class UnflattenHeads:
    """Let operators between two Reshapes work on ``[B,H,…]`` instead of ``[B·H,…]``.

    This applies if the operators treat every matrix separately.
    """

    name = "unflatten-heads"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or region.op != "Reshape" or len(region.operands) < 2:
            return
        flat, batched = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
        if flat is None or batched is None or (len(flat), len(batched)) != (3, 4):
            why = unsuited_reason(
                f"it does not split the first axis of {region.operands[0]!r} in two"
            )
            yield Miss(self.name, region.id, why)
            return
        root = graph.producer(region.operands[0])
        if root is None or not isinstance(batched[1], int) or not tail_agrees(flat, batched, 2):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason("it does not split an axis of batch and heads"),
            )
            return
        if _model(graph, root) is None or not equal_as_polynomials(
            flat[0], combine("mul", *batched[:2])
        ):
            yield Miss(
                self.name, region.id, unsuited_reason("the operator before it may mix heads")
            )
            return
        shared = set[str]()
        while True:
            new = _UnflattenedHeads(
                graph, region.results[0], (batched[0], batched[1]), shared=frozenset(shared)
            )
            try:
                made = new.value(region.operands[0])
            except NoMatch as why:
                yield Miss(self.name, region.id, str(why))
                return
            if new.products and len(new.specs[made].shape or ()) == 4:
                covered = with_private_producers(
                    graph, [*new.covered.values(), region], tuple(new.kept)
                )
                gone = (old.results[0] for old in new.covered.values())
                others = first_value_read_outside(graph, gone, covered)
                if not others:
                    yield self._proposal(region, new, made, covered)
                    return
                shared.add(others)
                continue
            if shared:
                yield Miss(self.name, region.id, other_readers_reason(min(shared)))
            yield Miss(
                self.name,
                region.id,
                unsuited_reason("no product lies between flattening and unflattening"),
            )
            return

    def _proposal(
        self, region: Region, new: _UnflattenedHeads, made: str, covered: Sequence[Region]
    ) -> Proposal:
        *rest, last = new.nodes
        result = region.results[0]
        nodes = (*rest, Node(last.op, last.inputs, (result,), last.attrs, "", last.name))
        del new.specs[made]
        regions = (region_of(n, i) for i, n in enumerate(nodes))
        named = tuple(
            Region(f"{self.name}:{r.results[0]}", r.op, r.operands, r.results, r.nodes)
            for r in regions
        )
        return Proposal(self.name, tuple(covered), named, new.specs, new.weights, step=True)


def _model(graph: TileGraph, region: Region) -> str | None:
    """Return how an operator treats the axis of matrices; None if it may mix matrices."""
    if region.fused or region.captures or len(region.results) != 1:
        return None
    rank = graph.spec(region.results[0]).rank
    if rank != 3:
        return None
    if region.op in BY_ELEMENT:
        return "elements"
    if region.op == "MatMul":
        ranks = [graph.spec(v).rank for v in region.operands]
        return "product" if None not in ranks and min(r or 0 for r in ranks) >= 2 else None
    if region.op == "Transpose":
        return "swap" if attribute(region, "perm", ()) == _SWAP else None
    if region.op == "Softmax":
        axis = attribute(region, "axis", -1 if graph.opset >= 13 else 1)
        return "rows" if axis in (-1, 2) else None
    if region.op == "GatherElements":
        return "take" if attribute(region, "axis", 0) in (-1, 2) else None
    return None


@dataclass
class _UnflattenedHeads:
    """Values ``[B·H,…]`` rewritten as ``[B,H,…]``, and the nodes that compute them.

    The names of new nodes begin with ``stem``.
    """

    graph: TileGraph
    stem: str
    lead: tuple[Extent, int]
    nodes: list[Node] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    covered: dict[str, Region] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    made: dict[str, str] = field(default_factory=dict)
    products: int = 0
    shared: frozenset[str] = frozenset()
    """Flattened values that stay because they have other readers; their source is reshaped."""

    def value(self, value: str, depth: int = 0) -> str:
        """Return the name of the unflattened value, ``[B,H,…]`` or broadcast to that.

        Raises NoMatch if the value cannot be unflattened.
        """
        if value not in self.made:
            self.made[value] = self._found(value, depth)
        return self.made[value]

    def _found(self, value: str, depth: int) -> str:
        shape = self.graph.spec(value).shape
        if shape is None or len(shape) > 3:
            raise NoMatch(f"{value!r} is not a batch of matrices")
        if len(shape) < 3 or shape[0] == 1:
            self.kept.add(value)
            return value
        if not equal_as_polynomials(shape[0], combine("mul", *self.lead)):
            raise NoMatch(
                Reason(
                    f"{value!r} is not proven to have {self.lead[1]} matrices per item",
                    Code.UNKNOWN_SHAPE,
                )
            )
        region = self.graph.producer(value)
        if region is not None and (source := self._source(region, shape)):
            self.kept.add(source)
            return source
        model = _model(self.graph, region) if region else None
        if region is None or model is None or depth > _MAX_DEPTH or value in self.shared:
            self.kept.add(value)
            return self._split(value)
        return self._computed(region, model, depth)

    def _source(self, region: Region, shape: tuple[Extent, ...]) -> str:
        """Return the input of a Reshape that flattens, or of a Tile or Expand; else empty."""
        if region.fused or region.op not in ("Reshape", "Tile", "Expand"):
            return ""
        source = region.operands[0]
        before = self.graph.spec(source).shape or ()
        if not tail_agrees(before, shape, 2):
            return ""
        if region.op == "Reshape":
            lead = before[:-2]
            fits = len(lead) == 2 and all(map(equal_as_polynomials, lead, self.lead))
        elif region.op == "Tile":
            fits = before[:-2] == (self.lead[1],)
        else:
            fits = before[:-2] in ((), (1,))
        return source if fits else ""

    def _computed(self, region: Region, model: str, depth: int) -> str:
        self.covered[region.id] = region
        operands = [self.value(v, depth + 1) for v in region.operands]
        attrs: dict[str, Attr] = dict(region.node.attrs)
        shapes = [self._shape(v) for v in operands]
        lead = max((s[:-2] for s in shapes), key=len)
        if len(lead) == 1:  # shared by all items
            lead = max(((s[0],) for s in shapes if len(s) == 3), key=lambda d: d != (1,))
        if model == "swap":
            attrs["perm"] = (*range(len(lead)), len(lead) + 1, len(lead))
        elif model in ("rows", "take"):
            attrs["axis"] = -1
        self.products += model in ("product", "take")
        if model == "take":
            if len(lead) < 2:
                raise NoMatch(f"{region.operands[0]!r} is the same for all items")
            operands[1] = self._repeated(operands[1], operands[0])
        shape = self.graph.spec(region.results[0]).shape or ()
        return self._node(region.op, operands, (*lead, *shape[1:]), region, attrs=attrs)

    # ---- writing -----------------------------------------------------------------------

    def _spec(self, value: str) -> TensorSpec:
        return self.specs.get(value) or self.graph.spec(value)

    def _shape(self, value: str) -> tuple[Extent, ...]:
        return self._spec(value).shape or ()

    def _node(
        self, op: str, operands: list[str], shape: tuple[Extent, ...], of: Region | str,
        dtype: DType | None = None,
        attrs: Mapping[str, Attr] | None = None,
    ) -> str:  # fmt: skip
        """Write a node that replaces a region or reshapes a value."""
        value, name = (of, "") if isinstance(of, str) else (of.results[0], of.node.name)
        result = f"{self.stem}_unflattened{len(self.nodes)}"
        known = dtype or self._spec(value).dtype
        self.nodes.append(Node(op, tuple(operands), (result,), dict(attrs or {}), "", name))
        self.specs[result] = TensorSpec(known, shape)
        return result

    def _ints(self, *numbers: int) -> str:
        constant = int_constant(numbers)
        self.weights[constant.name], self.specs[constant.name] = constant, constant.spec
        return constant.name

    def _unsqueezed(self, value: str, shape: tuple[Extent, ...]) -> str:
        if self.graph.opset < 13:
            return self._node("Unsqueeze", [value], (1, *shape), value, attrs={"axes": (0,)})
        return self._node("Unsqueeze", [value, self._ints(0)], (1, *shape), value)

    def _split(self, value: str) -> str:
        """Write a Reshape from ``[B·H,S,T]`` to ``[B,H,S,T]``."""
        shape = self.graph.spec(value).shape or ()
        lifted = self._unsqueezed(value, shape)
        target = self._ints(-1, self.lead[1], 0, 0)
        return self._node("Reshape", [lifted, target], (*self.lead, *shape[1:]), value)

    def _repeated(self, index: str, x: str) -> str:
        """Expand indices to every matrix, which GatherElements needs."""
        shape = self._shape(index)
        if len(shape) == 4:
            return index
        while len(shape) < 4:
            index = self._unsqueezed(index, shape)
            shape = (1, *shape)
        sizes = self._node("Shape", [x], (4,), x, DType.I64)
        lead = self._node("Gather", [sizes, self._ints(0, 1, 2)], (3,), x, DType.I64, {"axis": 0})
        whole = self._node("Concat", [lead, self._ints(1)], (4,), x, DType.I64, {"axis": 0})
        repeated = (*self._shape(x)[:3], shape[3])
        return self._node("Expand", [index, whole], repeated, index)
