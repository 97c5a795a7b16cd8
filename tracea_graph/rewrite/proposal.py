"""What passes give the scheduler, and what its caller allows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from tracea_graph.ir import TensorSpec, Weight
from tracea_graph.rewrite.pattern import Made, Match, Miss, Rewrite, Rule, matches
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "Cost", "Pass", "PatternPass", "Phase", "Preview", "Price", "Proposal", "RulePass",
    "SchedulerLimits",
]  # fmt: skip

Cost = Callable[[TileGraph, Region], float]
"""Predicted time of one region in µs."""
Price = Callable[[Region], float]
"""Share of the budget that compiling and measuring a new kind of region takes."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """Replace ``old`` by ``new``; ``specs`` and ``weights`` describe values that are new.

    ``error`` is the error it is predicted to bring into the outputs, as a share of ``max|y|``
    (0: exact).  A ``step`` is applied whatever it gains: it is there for what others make of it,
    and whoever planned looks in the end at what is left alone.  ``shared`` are regions it needs
    that other sites need too: equal by name, the graph gets each once.
    """

    rule: str
    old: tuple[Region, ...]
    new: tuple[Region, ...]
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)
    weights: Mapping[str, Weight] = field(default_factory=dict)
    error: float = 0.0
    step: bool = False
    shared: tuple[Region, ...] = ()

    @classmethod
    def of(cls, rule: str, old: tuple[Region, ...], made: Rewrite) -> Proposal:
        """A rule's rewrite of these regions."""
        return cls(rule, old, made.new, made.specs, made.weights, error=made.error, step=made.step)

    @property
    def where(self) -> str:
        """The value that names the site."""
        return self.new[0].results[0]


class Pass(Protocol):
    """Something that proposes rewrites anchored at one region."""

    @property
    def name(self) -> str:
        """The name ``--only`` and ``--skip`` use."""
        ...

    def propose(self, graph: TileGraph, region: Region) -> Iterable[Proposal | Miss]:
        """Proposals whose last operator is ``region``, and near misses with their reason."""
        ...


@dataclass(frozen=True)
class RulePass:
    """A pattern rule as a pass."""

    rule: Rule

    @property
    def name(self) -> str:
        return self.rule.name

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        return _proposed(self.rule, graph, region)


class PatternPass(ABC):
    """A pattern rule with options, which are the fields of its class; see :class:`Rule`."""

    name: str
    patterns: ClassVar[tuple[Callable[..., Any], ...]]
    keeps: ClassVar[bool] = False

    def check(self, m: Match) -> str | None:
        """Why the rule does not apply, or None; "" is a reason that nobody needs to know."""
        return None

    @abstractmethod
    def rewrite(self, m: Match) -> Made:
        """What takes the place of what matched."""

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        return _proposed(self, graph, region)


def _proposed(
    rule: Rule | PatternPass, graph: TileGraph, region: Region
) -> Iterator[Proposal | Miss]:
    if not region.results:
        return
    for pattern in rule.patterns:
        reason = ""
        for found in matches(pattern, graph, region, rule.keeps):
            made = _made(rule, found)
            if not isinstance(made, str):
                covered = found.covered if isinstance(found, Match) else ()
                for one in made:
                    yield Proposal.of(rule.name, one.old or covered, one)
                return
            reason = reason or made
        if reason:
            yield Miss(rule.name, region.id, reason)


def _made(rule: Rule | PatternPass, found: Match | Miss) -> Sequence[Rewrite] | str:
    """The rewrites, or why there are none; nothing where there is nothing to tell."""
    if isinstance(found, Miss):
        fits = found.match is None or rule.check(found.match) != ""
        return found.reason if fits else ""
    reason = rule.check(found)
    made = rule.rewrite(found) if reason is None else reason
    if isinstance(made, Region):
        return (Rewrite((made,)),)
    return (made,) if isinstance(made, Rewrite) else made


@dataclass(frozen=True, eq=False)
class Phase:
    """Passes that run to a fixed point together, before the next phase starts; ``always``,
    whatever rules the caller allows.

    Raises ValueError if two have one name: the scheduler tells them apart by it.
    """

    name: str
    passes: tuple[Pass, ...]
    always: bool = False

    def __post_init__(self) -> None:
        names = [p.name for p in self.passes]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"phase {self.name!r} has two passes called {min(twice)!r}")


@dataclass(frozen=True)
class SchedulerLimits:
    """What the caller allows the scheduler: rules, the least gain in µs, and the error.

    ``frozen`` maps values whose operators stay as they are to the reason; ``excluded`` does so for
    single rules.  ``max_error`` bounds the root of the summed squares of predicted errors, which
    are independent roundings.  ``has_time`` is asked again and again: scheduling ends with
    OutOfTime once it is False.  ``lacks`` says why nothing could run a fused region, "" where
    something can.
    """

    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    frozen: Mapping[str, str] = field(default_factory=dict)
    excluded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    min_gain_us: float = 0.0
    max_error: float = float("inf")
    check: bool = False
    has_time: Callable[[], bool] = lambda: True
    lacks: Callable[[TileGraph, Region], str] = lambda graph, region: ""


class Preview(TileGraph):
    """A graph's questions, answered as if a proposal's new values existed."""

    def __init__(self, graph: TileGraph, proposal: Proposal) -> None:
        self._graph, self._proposal = graph, proposal
        self.opset, self.loose = graph.opset, graph.loose

    def spec(self, value: str) -> TensorSpec:
        if value in self._proposal.specs:
            return self._proposal.specs[value]
        weight = self._proposal.weights.get(value)
        return weight.spec if weight else self._graph.spec(value)

    def weight(self, value: str) -> Weight | None:
        return self._proposal.weights.get(value) or self._graph.weight(value)

    def producer(self, value: str) -> Region | None:
        """As the graph is: what a value is made of does not change."""
        return self._graph.producer(value)
