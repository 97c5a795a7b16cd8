"""Read the masks between the product of q and k and its Softmax.

    Where(keep, scores, low), Where(drop, low, scores), scores + Where(keep, 0, low)
                                  causality if the condition is proven causal; else a boolean mask
    scores + mask                 an additive mask
    several masks                 causality and one mask for the rest

If an Expand writes a mask, its input is read instead.  A few operators, which layers share,
combine several masks into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan

import numpy as np

from tracea_graph.ir import DType, Expr, Extent, Node, TensorSpec, Weight, combine
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.passes.attention.attention_matcher import NoMatch, dims
from tracea_graph.passes.attention.interval_arithmetic import interval
from tracea_graph.passes.layout.affine_indices import (
    Band,
    conjunction_factors,
    masked_out_number,
    masking_where,
)
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import int_constant, operand_producer
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.ttg import Region, TileGraph, TilePattern

__all__ = ["ABSORBING", "MaskTerm", "Masking", "Masks", "broadcasts_to", "split_tiles"]

ABSORBING = -1e30
"""Largest number x for which score + x = x in float32: adding x equals replacing the score."""
NEGLIGIBLE = 1e20
"""Magnitude below which a number vanishes in float32 when added to an absorbing one."""
Shape = tuple[Extent, ...]


@dataclass(frozen=True)
class MaskTerm:
    """One masking step on attention scores.

    It adds ``value`` to the scores or, if there is a ``fill``, replaces scores by it where
    ``value`` is false (where it is true, if ``inverted``).  ``flat`` means that the mask has shape
    ``[B·H,S,T]``.  ``factor`` is the scale that is applied to the scores after this step.
    """

    value: str
    fill: float | None = None
    inverted: bool = False
    flat: bool = False
    factor: float = 1.0


@dataclass(frozen=True)
class Masking:
    """The combined mask: causality and at most one additive or boolean mask."""

    causal: str = "none"
    kind: str = "none"
    value: str = ""
    fill: float = -inf


@dataclass(frozen=True)
class _Drop:
    """Drop scores for which a ``kept`` condition or the causal order does not hold.

    If ``selects``, ``fill`` replaces a dropped score; else ``fill`` is added to it, as in the
    original mask ``whole``.
    """

    kept: tuple[str, ...]
    causal: str
    fill: float
    selects: bool
    whole: str = ""


@dataclass
class Masks:
    """Collects the masking steps on scores ``[B, H, S, T]``, innermost first, to combine them.

    Names of new values begin with ``name``.  ``regions`` are new regions, ``shared`` those of them
    that several layers read.
    """

    graph: TileGraph
    full: Shape
    name: str
    steps: list[_Drop | str] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    shared: list[Region] = field(default_factory=list)

    def take(self, term: MaskTerm) -> None:
        """Add a term.  Raises NoMatch for a boolean mask that fills with NaN or +inf."""
        if term.fill is not None:
            if isnan(term.fill) or term.fill == inf:
                raise NoMatch("a boolean mask replaces scores by NaN or +inf")
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
                self.take(MaskTerm(side))
        else:
            self.steps.append(_unexpanded(self.graph, term.value))

    def over_heads(self, term: MaskTerm) -> MaskTerm:
        """Insert a heads axis of size 1 into a mask ``[N,S,T]``; return the changed term."""
        spec = self.graph.spec(term.value)
        shape = spec.shape or ()
        if len(shape) != 3 or spec.dtype is None:
            raise NoMatch(f"the mask {spec} is no matrix per batch item")
        axes = () if self.graph.opset < 13 else (self.numbers(1),)
        attrs = {} if axes else {"axes": (1,)}
        name = f"{self.name}_over_heads{len(self.specs)}"
        node = Node("Unsqueeze", (term.value, *axes), (name,), attrs)
        self.regions.append(Region(f"mask:{name}", node.op, node.inputs, (name,), (node,)))
        self.specs[name] = TensorSpec(spec.dtype, (shape[0], 1, *shape[1:]))
        return replace(term, value=name, flat=False)

    def scale_by_head(self, queries: str, factor: str, name: str) -> None:
        """Multiply the queries ``[B,H,S,D]`` by ``factor`` ``[H,1,1]``; ``name`` is the result.

        This scales the scores of each head.
        """
        spec = self.graph.spec(queries)
        node = Node("Mul", (queries, factor), (name,))
        self.regions.append(Region(f"mask:{name}", node.op, node.inputs, (name,), (node,)))
        self.specs[name] = spec

    def order(self, causal: str, fill: float = -inf) -> None:
        """Add causal masking: replace scores of keys that a query must not see by ``fill``."""
        self.steps.append(_Drop((), causal, fill, True))

    def _sum_as_drop(self, value: str) -> _Drop | None:
        """Return a mask of zeros and one absorbing number as a condition; None for others."""
        fill = masked_out_number(self.graph, value)
        if fill is None or not fill <= ABSORBING:
            return None
        choice = operand_producer(self.graph, _unexpanded(self.graph, value), "Where")
        if choice is not None and (chosen := masking_where(self.graph, choice)) is not None:
            return self._drop(choice.operands[0], fill, False, chosen[1])
        parts = conjunction_factors(self.graph, value)
        return None if parts is None else self._conditions(parts, fill, False)

    def _causal_side(self, value: str) -> tuple[str, ...] | None:
        """Return both operands of a sum of masks if one of them is causality alone, else None."""
        region = operand_producer(self.graph, value, "Add")
        for side in region.operands if region else ():
            drop = self._sum_as_drop(side)
            if drop is not None and drop.causal != "none" and not drop.kept:
                return region.operands if region else None
        return None

    def _drop(self, value: str, fill: float, selects: bool, inverted: bool) -> _Drop:
        parts = conjunction_factors(self.graph, value, inverted)
        drop = self._conditions(parts, fill, selects) if parts is not None else None
        whole = _unexpanded(self.graph, value)
        if inverted and (drop is None or (len(drop.kept) > 1 and drop.causal == "none")):
            whole = self._make("Not", (whole,), f"{self.name}_kept", DType.BOOL)
            return _Drop((whole,), "none", fill, selects)
        if drop is None:
            return _Drop((whole,), "none", fill, selects)
        if len(drop.kept) > 1 and not inverted:  # keep it as one mask
            return _Drop((whole,), drop.causal, fill, selects)
        return drop

    def _conditions(self, parts: Sequence[Band | str], fill: float, selects: bool) -> _Drop | None:
        """Split conditions into causality and others; None if kernels have no causal mode for
        a band."""
        orders = {self._order(p.reach) for p in parts if isinstance(p, Band)}
        if len(orders) > 1 or "" in orders:
            return None
        kept = tuple(dict.fromkeys(p for p in parts if isinstance(p, str)))
        return _Drop(kept, orders.pop() if orders else "none", fill, selects)

    def _order(self, reach: Extent) -> str:
        rows, keys = self.full[2:]
        if equal_as_polynomials(combine("add", rows, reach), keys):
            return "bottom"
        return "top" if equal_as_polynomials(reach, 0) else ""

    # ---- combine --------------------------------------------------------------------------

    def done(self) -> Masking:
        """Combine all terms.  Raises NoMatch for masks that interfere or may not broadcast."""
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
        """Return whether adding these masks to ``fill`` gives ``fill`` because they are far
        smaller."""
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
        """Return the sum of masks where a key is kept and an absorbing number where it is
        dropped."""
        if causal != "none" or drop.causal != "none" or not drop.fill <= ABSORBING:
            raise NoMatch("a mask replaces scores that another mask has changed")
        keep = self._joined("And", drop.kept, DType.BOOL)
        operands = (keep, self._joined("Add", sums, DType.F32), self.constant(drop.fill))
        return self._make("Where", operands, f"{self.name}_{len(self.specs)}", DType.F32)

    def _as_sum(self, drop: _Drop) -> str:
        """Return the additive mask of a drop: the model's own one, or a new one.

        A mask of causality and other conditions is exact only as the model's own mask, which
        layers share.  Raises NoMatch if causality has no such mask, or if the fill does not absorb
        the scores it replaces.
        """
        if drop.causal != "none":
            if drop.whole:
                return drop.whole
            raise NoMatch(
                "a condition that includes causality replaces scores that have another mask"
            )
        if drop.selects and not drop.fill <= ABSORBING:
            raise NoMatch("one mask is added to scores, and another one overwrites scores")
        keep = self._joined("And", drop.kept, DType.BOOL)
        operands = (keep, self.constant(0.0), self.constant(drop.fill))
        return self._make("Where", operands, f"{self.name}_{len(self.specs)}", DType.F32)

    def constant(self, number: float) -> str:
        """Return the name of a float32 scalar."""
        name = f"mask_fill_{number:.9g}"
        self.weights[name] = Weight(name, DType.F32, (), lambda: np.asarray(number, np.float32))
        self.specs[name] = self.weights[name].spec
        return name

    def _make(self, op: str, operands: tuple[str, ...], name: str, dtype: DType) -> str:
        """Return a value computed by one operator."""
        shapes = [self.spec(v).shape for v in operands]
        if any(s is None for s in shapes):
            raise NoMatch("the rank of a mask is not known")
        shape = broadcast([s for s in shapes if s is not None])
        if shape is None:
            raise NoMatch(
                Reason(
                    "the masks are not proven to broadcast against each other",
                    Code.UNKNOWN_SHAPE,
                )
            )
        node = Node(op, operands, (name,))
        self.regions.append(Region(f"mask:{name}", op, operands, (name,), (node,)))
        self.specs[name] = TensorSpec(dtype, shape)
        return name

    def numbers(self, *numbers: int) -> str:
        """Add these integers as a one-dimensional int64 constant; return its name."""
        return self._integers(numbers)

    def number(self, number: int) -> str:
        """Add an int64 scalar constant; return its name."""
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
            if not broadcasts_to(have, need):
                raise NoMatch(
                    Reason(
                        f"the mask {spec} does not provably broadcast to {dims(self.full)}",
                        Code.UNKNOWN_SHAPE,
                    )
                )
        if not spec.shape or (spec.shape[-1] == 1 and self.full[-1] != 1):
            raise NoMatch("the mask does not vary over the keys")


def split_tiles(
    graph: TileGraph, terms: Sequence[MaskTerm]
) -> tuple[tuple[MaskTerm, ...], TilePattern | None]:
    """Separate the mask of hand-set tiles, which comes last, from the other masks."""
    if not graph.patterns or not terms:
        return tuple(terms), None
    first, *others = terms
    cut = operand_producer(graph, first.value, "Slice")
    pattern = graph.patterns.get(first.value if cut is None else cut.operands[0])
    if pattern is None or first.inverted or first.fill != -inf:
        return tuple(terms), None
    return tuple(others), pattern


def _are_one(drops: Sequence[_Drop]) -> bool:
    """Return whether one drop of all conditions equals several drops in sequence."""
    fills = {d.fill for d in drops}
    return len(drops) < 2 or fills == {-inf} or (len(fills) == 1 and all(d.selects for d in drops))


def broadcasts_to(have: Extent, need: Extent) -> bool:
    """Return whether a mask's extent is 1 or, in a valid model, provably that of the scores."""
    return have == 1 or equal_as_polynomials(have, need) or _is_cut(have, need)


def _is_cut(have: Extent, need: Extent) -> bool:
    """Return whether ``have`` is min(``need``, …), and thus equals ``need`` in a valid model.

    If the mask were smaller than the scores, the original model would fail.  A mask of a single
    key would broadcast, but the runtime rejects it.
    """
    if not isinstance(have, Expr) or have.op != "min":
        return False
    return any(equal_as_polynomials(a, need) for a in have.args)


def _unexpanded(graph: TileGraph, value: str) -> str:
    """Return the input of the Expand that writes ``value``, else ``value``: kernels broadcast."""
    region = operand_producer(graph, value, "Expand")
    return value if region is None else region.operands[0]
