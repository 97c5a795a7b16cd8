"""Match patterns, written as plain functions, on a normalised form of the graph.

    def pattern(op, x, w, b):
        return op.Add(op.MatMul(x, w), b)

Parameters are variables: each binds one value, and repeated uses must bind the same value.  A
float matches a constant with one element.  ``Add``, ``Mul``, ``Max`` and ``Min`` match in either
operand order.  Equivalent forms have one name: ``op.scaled`` (``x*c``, ``x/(1/c)``), ``op.square``
(``x*x``, ``Pow(x, 2)``), ``op.rsqrt`` (``1/Sqrt``, ``Reciprocal(Sqrt)``, ``Pow(x, -½)``),
``op.over_sqrt`` (``a/Sqrt(v)``, ``a*rsqrt(v)``).  ``op.one_of`` matches any of several operators.
Trailing operands beyond the pattern must be constant unless the pattern ends in ``...``.  Fused
regions match by the name of their op: ``op.FusedGemm(x, ...)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from tracea_graph.ir import TensorSpec, Weight
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "Made", "Match", "Miss", "OpBuilder", "Rewrite", "Rule", "constant_number", "match", "matches",
]  # fmt: skip

_COMMUTATIVE = ("Add", "Mul", "Max", "Min")
_LITERAL_RTOL = 5e-5
"""Relative tolerance of a literal: exporters write √2 with as few as five digits."""
_EXACT_RTOL = 1e-6
"""Relative tolerance of literals that are exact in decimal, such as ½, 1 and 3."""


@dataclass(frozen=True)
class PatternVar:
    """A pattern variable, which binds any value."""

    name: str


@dataclass(frozen=True)
class CallPattern:
    """An operator and its leading operands.

    Further operands of a matching node must be constant, unless ``args`` ends with ``...``.
    """

    op: str
    args: tuple[Any, ...]
    label: str = ""


@dataclass(frozen=True)
class EitherPattern:
    """Alternative patterns; the first that matches counts."""

    alternatives: tuple[Any, ...]


class OpBuilder:
    """Builds patterns, of operators and of the normal forms that the module's docstring lists.

    ``op.Name(args, label=…)``, with a capital letter, returns a :class:`CallPattern`.
    """

    def __getattr__(self, name: str) -> Callable[..., CallPattern]:
        def call(*args: Any, label: str = "") -> CallPattern:
            return CallPattern(name, args, label)

        return call

    def either(self, *alternatives: Any) -> EitherPattern:
        """Match any of these patterns."""
        return EitherPattern(alternatives)

    def one_of(self, names: Iterable[str], *args: Any, label: str = "") -> EitherPattern:
        """Match these operands under any of the named operators."""
        return EitherPattern(tuple(CallPattern(name, args, label) for name in names))

    def scaled(self, x: Any, factor: float) -> EitherPattern:
        """Match ``x * factor`` or ``x / (1 / factor)``."""
        return EitherPattern(
            (CallPattern("Mul", (x, factor)), CallPattern("Div", (x, 1 / factor)))
        )

    def square(self, x: Any, label: str = "") -> EitherPattern:
        """Match ``x * x`` or ``Pow(x, 2)``."""
        return EitherPattern(
            (CallPattern("Mul", (x, x), label), CallPattern("Pow", (x, 2.0), label))
        )

    def rsqrt(self, x: Any) -> EitherPattern:
        """Match ``1 / Sqrt(x)``, ``Reciprocal(Sqrt(x))`` or ``Pow(x, -0.5)``."""
        root = CallPattern("Sqrt", (x,))
        return EitherPattern(
            (
                CallPattern("Reciprocal", (root,)),
                CallPattern("Div", (1.0, root)),
                CallPattern("Pow", (x, -0.5)),
            )
        )

    def over_sqrt(self, a: Any, v: Any) -> EitherPattern:
        """Match ``a / Sqrt(v)`` or ``a * rsqrt(v)``."""
        return EitherPattern(
            (
                CallPattern("Div", (a, CallPattern("Sqrt", (v,)))),
                CallPattern("Mul", (a, self.rsqrt(v))),
            )
        )


@dataclass
class Match:
    """Bindings of a pattern: values by variable, regions by label, and all covered regions."""

    graph: TileGraph
    root: Region
    values: dict[str, str] = field(default_factory=dict)
    labels: dict[str, Region] = field(default_factory=dict)
    covered: tuple[Region, ...] = ()

    def spec(self, variable: str) -> TensorSpec:
        return self.graph.spec(self.values[variable])

    def with_value(self, name: str, value: str) -> Match:
        return Match(
            self.graph, self.root, {**self.values, name: value}, self.labels, self.covered
        )

    def with_region(self, region: Region, label: str) -> Match:
        labels = {**self.labels, label: region} if label else self.labels
        covered = self.covered if region in self.covered else (*self.covered, region)
        return Match(self.graph, self.root, self.values, labels, covered)


@dataclass(frozen=True)
class Miss:
    """Why a rule does not apply although its pattern matched."""

    rule: str
    where: str
    reason: str
    match: Match | None = field(default=None, compare=False, repr=False)
    """The match that was refused."""


@dataclass(frozen=True)
class Rewrite:
    """The replacement a rule makes for the regions it covers.

    ``old`` lists the replaced regions if they differ from those the pattern covers.  ``specs`` and
    ``weights`` describe new values.  :class:`~tracea_graph.rewrite.proposal.Proposal` explains the
    other fields.
    """

    new: tuple[Region, ...]
    old: tuple[Region, ...] = ()
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)
    weights: Mapping[str, Weight] = field(default_factory=dict)
    error: float = 0.0
    step: bool = False


Made = Region | Rewrite | Sequence[Rewrite] | str
"""Result of a rule's ``rewrite``: a region, a rewrite, alternatives, or a reason for none."""


@dataclass(frozen=True)
class Rule:
    """A pattern rule: ``patterns`` match, ``check`` may refuse, ``rewrite`` builds new regions.

    ``check`` returns the reason to refuse a match, or None; ``rewrite`` may return a reason too.
    If a covered value has other readers, only a rule with ``keeps`` can match, and its rewrite
    must still compute that value.
    """

    name: str
    patterns: tuple[Callable[..., Any], ...]
    rewrite: Callable[[Match], Made]
    check: Callable[[Match], str | None] = lambda m: None
    keeps: bool = False


def constant_number(graph: TileGraph, value: str) -> float | None:
    """Return the number a constant with one element holds, or None."""
    weight = graph.weight(value)
    if weight is None or weight.count != 1:
        return None
    array = weight.array()
    return float(array.reshape(())) if np.issubdtype(array.dtype, np.number) else None


def match(pattern: Callable[..., Any], graph: TileGraph, root: Region) -> Match | Miss | None:
    """Return the first result of :func:`matches`, or None."""
    return next(matches(pattern, graph, root), None)


def matches(
    pattern: Callable[..., Any], graph: TileGraph, root: Region, keeps: bool = False
) -> Iterator[Match | Miss]:
    """Yield every way in which a pattern that ends in ``root`` matches.

    Without ``keeps``, a match is refused if a covered value has other readers or is a graph
    output.  If the last match found is refused, a Miss with the reason is yielded.
    """
    tree, last = _tree(pattern)
    if root.op not in last:
        return
    blocked: Miss | None = None
    for found in _at_root(tree, root, Match(graph, root)):
        reason = None if keeps else _blocked(found)
        if reason is None:
            blocked = None
            yield found
        else:
            blocked = Miss("", root.id, reason, found)
    if blocked:
        yield blocked


@cache
def _tree(pattern: Callable[..., Any]) -> tuple[Any, frozenset[str]]:
    """Build a pattern once, as it is constant, with the set of operators its root can be."""
    variables = tuple(inspect.signature(pattern).parameters)[1:]
    tree = pattern(OpBuilder(), *map(PatternVar, variables))
    return tree, _ops_at_root(tree)


def _ops_at_root(tree: Any) -> frozenset[str]:
    """Return the operators that the root of a pattern can be."""
    if isinstance(tree, EitherPattern):
        return frozenset[str]().union(*map(_ops_at_root, tree.alternatives))
    return frozenset((tree.op,))


def _blocked(found: Match) -> str | None:
    inside = {r.id for r in found.covered}
    for region in found.covered:
        if region.id == found.root.id:
            continue
        for value in region.writes:
            if found.graph.is_output(value):
                return Reason(
                    f"the result {value!r} of {region.op} is a graph output", Code.OTHER_READERS
                )
            if any(u.region.id not in inside for u in found.graph.uses(value)):
                return Reason(
                    f"the result {value!r} of {region.op} has other readers", Code.OTHER_READERS
                )
    return None


def _match(tree: Any, value: str, found: Match) -> Iterator[Match]:
    if isinstance(tree, PatternVar):
        bound = found.values.get(tree.name)
        if bound is None:
            yield found.with_value(tree.name, value)
        elif bound == value:
            yield found
    elif isinstance(tree, EitherPattern):
        for alternative in tree.alternatives:
            yield from _match(alternative, value, found)
    elif isinstance(tree, float):
        number = constant_number(found.graph, value)
        tolerance = _EXACT_RTOL if (4 * tree).is_integer() else _LITERAL_RTOL
        rounded = number == float(np.float16(tree))  # as converters of models write it
        if number is not None and (rounded or abs(number - tree) <= tolerance * abs(tree)):
            yield found
    else:
        yield from _match_call(tree, found.graph.producer(value), found)


def _at_root(tree: Any, root: Region, found: Match) -> Iterator[Match]:
    """Match each result of the root region that has readers."""
    if isinstance(tree, EitherPattern):
        for alternative in tree.alternatives:
            yield from _at_root(alternative, root, found)
    else:
        yield from _match_call(tree, root, found)


def _match_call(tree: CallPattern, region: Region | None, found: Match) -> Iterator[Match]:
    anything = tree.args[-1:] == (...,)
    args = tree.args[:-1] if anything else tree.args
    if region is None or region.op != tree.op or len(region.operands) < len(args):
        return
    rest = () if anything else region.operands[len(args) :]
    if any(v and found.graph.weight(v) is None for v in rest):
        return
    here = found.with_region(region, tree.label)
    orders = [region.operands]
    if tree.op in _COMMUTATIVE and len(region.operands) == 2:
        orders.append(region.operands[::-1])
    for operands in orders:
        yield from _match_all(args, operands, here)


def _match_all(trees: tuple[Any, ...], values: tuple[str, ...], found: Match) -> Iterator[Match]:
    if not trees:
        yield found
        return
    for partial in _match(trees[0], values[0], found):
        yield from _match_all(trees[1:], values[1:], partial)
