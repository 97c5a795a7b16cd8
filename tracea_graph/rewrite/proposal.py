"""Define what passes hand to the scheduler and how its caller restricts it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from tracea_graph.ir import TensorSpec, Weight
from tracea_graph.reason_codes import EXPECTED, Code, code_of
from tracea_graph.rewrite.pattern import Made, Match, Miss, Rewrite, Rule, matches
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "Cost",
    "Pass",
    "PatternPass",
    "Phase",
    "Price",
    "Proposal",
    "ProposalPreview",
    "RulePass",
    "SchedulerLimits",
]  # fmt: skip

Cost = Callable[[TileGraph, Region], float]
"""Function that predicts the time of one region in µs."""
Price = Callable[[Region], float]
"""Function that predicts the share of the budget spent on building and timing a region kind."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """A replacement of ``old`` by ``new``; ``specs`` and ``weights`` describe new values.

    * ``error``: predicted error of the outputs relative to ``max|y|``; 0 means exact;
    * ``step``: whether the proposal is applied whatever its gain, because later rules build on it;
      the planner drops such a step if it turns out useless;
    * ``shared``: regions that several proposals may need; the graph gets each of them once,
      identified by name.
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
        """Build a proposal from a rule's rewrite of the regions ``old``."""
        return cls(rule, old, made.new, made.specs, made.weights, error=made.error, step=made.step)

    @property
    def where(self) -> str:
        """The value that identifies the site: the first result of the last old region."""
        return self.new[0].results[0]


class Pass(Protocol):
    """A transformation that proposes rewrites anchored at one region."""

    @property
    def name(self) -> str:
        """The name that ``--only`` and ``--skip`` take."""
        ...

    def propose(self, graph: TileGraph, region: Region) -> Iterable[Proposal | Miss]:
        """Yield proposals whose last operator is ``region``, and reasons of near misses."""
        ...


@dataclass(frozen=True)
class RulePass:
    """Adapt a :class:`Rule` to the :class:`Pass` protocol."""

    rule: Rule

    @property
    def name(self) -> str:
        return self.rule.name

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        return _proposed(self.rule, graph, region)


class PatternPass(ABC):
    """Base class of pattern rules whose options are dataclass fields; see :class:`Rule`."""

    name: str
    patterns: ClassVar[tuple[Callable[..., Any], ...]]
    keeps: ClassVar[bool] = False

    def check(self, m: Match) -> str | None:
        """Return why the rule does not apply, or None."""
        return None

    @abstractmethod
    def rewrite(self, m: Match) -> Made:
        """Return the replacement of a match; see :data:`Made`."""

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
            if not reason or code_of(reason) in EXPECTED:
                reason = made
        if reason:
            yield Miss(rule.name, region.id, reason)


def _made(rule: Rule | PatternPass, found: Match | Miss) -> Sequence[Rewrite] | str:
    """Return the rewrites, or a reason for none.

    Raises ValueError if the rule refuses without a reason.
    """
    if isinstance(found, Miss):
        checked = None if found.match is None else rule.check(found.match)
        unsuited = checked is not None and code_of(checked) is Code.NOT_APPLICABLE
        return checked if checked and unsuited else found.reason
    reason = rule.check(found)
    made = rule.rewrite(found) if reason is None else reason
    if isinstance(made, Region):
        return (Rewrite((made,)),)
    if not made:
        raise ValueError(f"rule {rule.name!r} refuses a match without a reason")
    return (made,) if isinstance(made, Rewrite) else made


@dataclass(frozen=True, eq=False)
class Phase:
    """Passes that run together to a fixed point before the next phase starts.

    An ``always`` phase runs whatever rules the caller allows.  With ``rollouts``, proposals for
    overlapping regions are compared by their own gain plus that of all rewrites that follow,
    instead of by their own gain.  Raises ValueError if two passes have the same name, by which the
    scheduler identifies them.
    """

    name: str
    passes: tuple[Pass, ...]
    always: bool = False
    rollouts: bool = False

    def __post_init__(self) -> None:
        names = [p.name for p in self.passes]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"phase {self.name!r} has two passes called {min(twice)!r}")


@dataclass(frozen=True)
class SchedulerLimits:
    """Limits that the caller sets for the scheduler.

    * ``only``: rules that may be applied, all if empty; ``skip``: rules that may not;
    * ``frozen``: values whose operators must stay, with the reason;
    * ``excluded``: for each rule, values whose operators it must not replace, with the reason;
    * ``max_error``: bound on the root of the sum of squares of predicted errors, which are treated
      as independent;
    * ``check``: whether to check the graph after every rewrite;
    * ``has_time``: polled; scheduling ends with OutOfTime once it returns False;
    * ``lacks``: returns why no kernel can run a fused region, "" if one can.
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


class ProposalPreview(TileGraph):
    """A view of a graph in which the new values of a proposal already have specs and constants."""

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
        """Return the producer in the original graph, which the proposal does not change."""
        return self._graph.producer(value)
