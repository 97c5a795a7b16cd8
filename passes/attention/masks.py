"""The masks between a product of q and k and its Softmax.

    Where(keep, scores, low), Where(drop, low, scores), scores + Where(keep, 0, low)
                                  causal, where the condition proves to be; else a boolean mask
    scores + mask                 an additive mask
    several of them               causality, and one mask that says the rest

Masks are read where they come from, before an Expand; several become one by a few operators that
layers share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan

import numpy as np

from tracea_graph.ir import DType, Expr, Extent, Node, TensorSpec, Weight, combine
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.passes.attention.intervals import interval
from tracea_graph.passes.attention.matcher import NoMatch, dims
from tracea_graph.passes.extents import where_equal
from tracea_graph.passes.layout.affine import Band, conjunction, dropped_number, drops
from tracea_graph.passes.regions import int_constant, operand_producer
from tracea_graph.reasons import Code, Reason
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ABSORBING", "Masking", "Masks", "Term"]

ABSORBING = -1e30
"""Adding a score to this gives this: adding it is the same as putting it in the score's place."""
NEGLIGIBLE = 1e20
"""Numbers that vanish beside an absorbing one."""
Shape = tuple[Extent, ...]


@dataclass(frozen=True)
class Term:
    """One masking step: ``value`` is added, or where it is true (``inverted``: is not) the score
    stays and becomes ``fill`` elsewhere.  ``flat``: it lies over matrices ``[B·H,S,T]``;
    ``factor``: it is added before the scores are scaled by that."""

    value: str
    fill: float | None = None
    inverted: bool = False
    flat: bool = False
    factor: float = 1.0


@dataclass(frozen=True)
class Masking:
    """What all terms amount to: causality and at most one mask."""

    causal: str = "none"
    kind: str = "none"
    value: str = ""
    fill: float = -inf


@dataclass(frozen=True)
class _Drop:
    """Scores become ``fill`` unless every condition holds and the key is seen in this order;
    ``selects``: whatever was there before, else by adding ``fill``, as the mask ``whole`` does.
    """

    kept: tuple[str, ...]
    causal: str
    fill: float
    selects: bool
    whole: str = ""


@dataclass
class Masks:
    """Collects terms, innermost first, for scores of shape ``[B, H, S, T]``; makes what is new.

    ``name`` begins the names of new values; ``shared`` are regions other layers need too.
    """

    graph: TileGraph
    full: Shape
    name: str
    steps: list[_Drop | str] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    shared: list[Region] = field(default_factory=list)

    def take(self, term: Term) -> None:
        """Raises NoMatch for a boolean mask that puts NaN or +inf in the place of scores."""
        if term.fill is not None:
            if isnan(term.fill) or term.fill == inf:
                raise NoMatch("a boolean mask puts no number in the place of scores")
            self.steps.append(self._drop(term.value, term.fill, True, term.inverted))
        elif term.factor != 1.0:
            operands = (_unexpanded(self.graph, term.value), self.constant(term.factor))
            self.steps.append(
                self._make("Mul", operands, f"{self.name}_scaled{len(self.steps)}", DType.F32)
            )
        elif (drop := self._sum_as_drop(term.value)) is not None:
            self.steps.append(replace(drop, whole=_unexpanded(self.graph, term.value)))
        elif (sides := self._causal_side(term.value)) is not None:
            for side in sides:
                self.take(Term(side))
        else:
            self.steps.append(_unexpanded(self.graph, term.value))

    def over_heads(self, term: Term) -> Term:
        """A term over matrices ``[N,S,T]``, each an item with one head."""
        spec = self.graph.spec(term.value)
        shape = spec.shape or ()
        if len(shape) != 3 or spec.dtype is None:
            raise NoMatch(f"the mask {spec} lies over no matrices")
        axes = () if self.graph.opset < 13 else (self.numbers(1),)
        attrs = {} if axes else {"axes": (1,)}
        name = f"{self.name}_over_heads{len(self.specs)}"
        node = Node("Unsqueeze", (term.value, *axes), (name,), attrs)
        self.regions.append(Region(f"mask:{name}", node.op, node.inputs, (name,), (node,)))
        self.specs[name] = TensorSpec(spec.dtype, (shape[0], 1, *shape[1:]))
        return replace(term, value=name, flat=False)

    def scale_by_head(self, queries: str, factor: str, name: str) -> None:
        """Queries ``[B,H,S,D]`` times ``[H,1,1]``: then the scores are."""
        spec = self.graph.spec(queries)
        node = Node("Mul", (queries, factor), (name,))
        self.regions.append(Region(f"mask:{name}", node.op, node.inputs, (name,), (node,)))
        self.specs[name] = spec

    def order(self, causal: str, fill: float = -inf) -> None:
        """Keys are seen in this order, others score ``fill``."""
        self.steps.append(_Drop((), causal, fill, True))

    def _sum_as_drop(self, value: str) -> _Drop | None:
        """A mask of zeros and one absorbing number, by its condition."""
        fill = dropped_number(self.graph, value)
        if fill is None or not fill <= ABSORBING:
            return None
        choice = operand_producer(self.graph, _unexpanded(self.graph, value), "Where")
        if choice is not None and (chosen := drops(self.graph, choice)) is not None:
            return self._drop(choice.operands[0], fill, False, chosen[1])
        parts = conjunction(self.graph, value)
        return None if parts is None else self._conditions(parts, fill, False)

    def _causal_side(self, value: str) -> tuple[str, ...] | None:
        """The sides of a sum of masks one of which is causality alone."""
        region = operand_producer(self.graph, value, "Add")
        for side in region.operands if region else ():
            drop = self._sum_as_drop(side)
            if drop is not None and drop.causal != "none" and not drop.kept:
                return region.operands if region else None
        return None

    def _drop(self, value: str, fill: float, selects: bool, inverted: bool) -> _Drop:
        parts = conjunction(self.graph, value, inverted)
        drop = self._conditions(parts, fill, selects) if parts is not None else None
        whole = _unexpanded(self.graph, value)
        if inverted and (drop is None or (len(drop.kept) > 1 and drop.causal == "none")):
            whole = self._make("Not", (whole,), f"{self.name}_kept", DType.BOOL)
            return _Drop((whole,), "none", fill, selects)
        if drop is None:
            return _Drop((whole,), "none", fill, selects)
        if len(drop.kept) > 1 and not inverted:  # one mask that says more than it must
            return _Drop((whole,), drop.causal, fill, selects)
        return drop

    def _conditions(self, parts: Sequence[Band | str], fill: float, selects: bool) -> _Drop | None:
        """None if a band is not causality as the kernels know it."""
        orders = {self._order(p.reach) for p in parts if isinstance(p, Band)}
        if len(orders) > 1 or "" in orders:
            return None
        kept = tuple(dict.fromkeys(p for p in parts if isinstance(p, str)))
        return _Drop(kept, orders.pop() if orders else "none", fill, selects)

    def _order(self, reach: Extent) -> str:
        rows, keys = self.full[2:]
        if where_equal(combine("add", rows, reach), keys):
            return "bottom"
        return "top" if where_equal(reach, 0) else ""

    # ---- all of them together ------------------------------------------------------------

    def done(self) -> Masking:
        """Raises NoMatch for masks that interfere or do not provably broadcast to the scores."""
        drops = [s for s in self.steps if isinstance(s, _Drop)]
        if len(drops) == len(self.steps) and _are_one(drops):
            orders = {d.causal for d in drops} - {"none"}
            kept = list(dict.fromkeys(v for d in drops for v in d.kept))
            if len(orders) < 2:
                return self._dropping(orders.pop() if orders else "none", kept, drops)
        causal, fill, sums = "none", -inf, list[str]()
        for i, step in enumerate(self.steps):
            if isinstance(step, str):
                sums.append(step)
                continue
            if step.selects and step.fill != -inf and not self._vanish(self.steps[:i], step.fill):
                sums = [self._choosing(step, sums, causal)]
                continue
            if step.causal != "none" and not step.kept and causal == "none":
                causal, fill = step.causal, step.fill
                continue
            sums.append(self._as_sum(step))
        value = self._joined("Add", sums, DType.F32)
        self._check(value, DType.F32)
        return Masking(causal, "add", value, fill)

    def _vanish(self, steps: Sequence[_Drop | str], fill: float) -> bool:
        """True if adding these masks to ``fill`` gives ``fill``: they are far smaller."""
        sums = [interval(self.graph, s) for s in steps if isinstance(s, str)]
        negligible = all(low >= -NEGLIGIBLE and high <= NEGLIGIBLE for low, high in sums)
        return not steps or (fill <= ABSORBING and negligible and len(sums) == len(steps))

    def _dropping(self, causal: str, kept: list[str], drops: Sequence[_Drop]) -> Masking:
        if not drops:
            return Masking()
        if not kept:
            return Masking(causal, fill=drops[0].fill)
        value = self._joined("And", kept, DType.BOOL)
        self._check(value, DType.BOOL)
        return Masking(causal, "bool", value, drops[0].fill)

    def _joined(self, op: str, values: Sequence[str], dtype: DType) -> str:
        total, *rest = values
        for i, value in enumerate(rest):
            total = self._make(op, (total, value), f"{self.name}_mask{i}", dtype)
        return total

    def _choosing(self, drop: _Drop, sums: Sequence[str], causal: str) -> str:
        """All masks so far where a key is kept, one absorbing number where it is dropped."""
        if causal != "none" or drop.causal != "none" or not drop.fill <= ABSORBING:
            raise NoMatch("a mask takes the place of scores that another mask has changed")
        keep = self._joined("And", drop.kept, DType.BOOL)
        operands = (keep, self._joined("Add", sums, DType.F32), self.constant(drop.fill))
        return self._make("Where", operands, f"{self.name}_{len(self.specs)}", DType.F32)

    def _as_sum(self, drop: _Drop) -> str:
        """Causality mixed with other conditions is exact as one only: the mask as it was, which
        layers share.  Raises NoMatch where it is none that is added, or one that does not absorb
        the scores it is to take the place of."""
        if drop.causal != "none":
            if drop.whole:
                return drop.whole
            raise NoMatch("causality and another condition are masked as one beside a second mask")
        if drop.selects and not drop.fill <= ABSORBING:
            raise NoMatch("a mask is added where another one takes the place of scores")
        keep = self._joined("And", drop.kept, DType.BOOL)
        operands = (keep, self.constant(0.0), self.constant(drop.fill))
        return self._make("Where", operands, f"{self.name}_{len(self.specs)}", DType.F32)

    def constant(self, number: float) -> str:
        """A float32 scalar."""
        name = f"mask_fill_{number:.9g}"
        self.weights[name] = Weight(name, DType.F32, (), lambda: np.asarray(number, np.float32))
        self.specs[name] = self.weights[name].spec
        return name

    def _make(self, op: str, operands: tuple[str, ...], name: str, dtype: DType) -> str:
        """A value computed by one operator."""
        shapes = [self.spec(v).shape for v in operands]
        if any(s is None for s in shapes):
            raise NoMatch("the rank of a mask is not known")
        shape = broadcast([s for s in shapes if s is not None])
        if shape is None:
            raise NoMatch(
                Reason(
                    "the masks do not provably broadcast against each other", Code.UNKNOWN_SHAPE
                )
            )
        node = Node(op, operands, (name,))
        self.regions.append(Region(f"mask:{name}", op, operands, (name,), (node,)))
        self.specs[name] = TensorSpec(dtype, shape)
        return name

    def numbers(self, *numbers: int) -> str:
        """int64 along one axis."""
        return self._integers(numbers)

    def number(self, number: int) -> str:
        """An int64 scalar."""
        return self._integers(number)

    def _integers(self, numbers: int | tuple[int, ...]) -> str:
        constant = int_constant(numbers)
        self.weights[constant.name] = constant
        self.specs[constant.name] = constant.spec
        return constant.name

    def spec(self, value: str) -> TensorSpec:
        return self.specs.get(value) or self.graph.spec(value)

    def _check(self, value: str, dtype: DType) -> None:
        spec = self.spec(value)
        if spec.dtype is not dtype or spec.shape is None or len(spec.shape) > 4:
            raise NoMatch(f"the mask is {spec}")
        for have, need in zip(spec.shape[::-1], self.full[::-1], strict=False):
            if have != 1 and not where_equal(have, need) and not _is_cut(have, need):
                raise NoMatch(
                    Reason(
                        f"the mask {spec} does not provably broadcast to {dims(self.full)}",
                        Code.UNKNOWN_SHAPE,
                    )
                )
        if not spec.shape or (spec.shape[-1] == 1 and self.full[-1] != 1):
            raise NoMatch("the mask does not vary over the keys")


def _are_one(drops: Sequence[_Drop]) -> bool:
    """True if a key is dropped by all of them together as by any: one number takes its place."""
    fills = {d.fill for d in drops}
    return len(drops) < 2 or fills == {-inf} or (len(fills) == 1 and all(d.selects for d in drops))


def _is_cut(have: Extent, need: Extent) -> bool:
    """True for min(``need``, anything): added to scores of that size the two are equal.

    Were they not, the mask would be smaller than the scores, and the original would fail; a mask
    cut to a single key is refused by the runtime.
    """
    if not isinstance(have, Expr) or have.op != "min":
        return False
    return any(where_equal(a, need) for a in have.args)


def _unexpanded(graph: TileGraph, value: str) -> str:
    """What an Expand repeats: kernels broadcast the mask themselves."""
    region = operand_producer(graph, value, "Expand")
    return value if region is None else region.operands[0]
