"""What passes said of regions, to be said again as long as all they looked at is as it was.

A rewrite changes the graph in one place, and a plan is made several times over the same graph with
ever more of it frozen.  Most questions were asked before: the graph says what each answer depended
on (:meth:`TileGraph.watched`), and the answer holds in every copy in which that is in the same
state.  Proposals are the same objects then, so what is known of them (gain, pattern) is too.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from tracea_graph.errors import RuleErrorContext
from tracea_graph.rewrite.pattern import Miss
from tracea_graph.rewrite.proposal import Pass, Preview, Proposal
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.states import History

__all__ = ["Answer", "Memo"]

Answer = tuple[str, Proposal | Miss]
"""The name of a pass and what it said."""

_MOST = 8
"""Answers kept of one region: it comes to the same states again in the next plan."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Answers, and the states of what they depend on."""

    seen: tuple[str, ...]
    states: list[int]
    said: tuple[Answer, ...]


@dataclass
class Memo:
    """Answers about one graph under one set of phases, whose copies must share ``history``."""

    history: History = field(default_factory=dict)
    gains: dict[Proposal, float] = field(default_factory=dict)
    _patterns: dict[Proposal, int] = field(default_factory=dict)
    _kinds: dict[Region, int] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _entries: dict[Hashable, dict[Region, tuple[_Entry, ...]]] = field(default_factory=dict)

    def ask(
        self, graph: TileGraph, region: Region, key: Hashable, passes: Sequence[Pass]
    ) -> tuple[Answer, ...]:
        """What passes say of a region; ``key`` tells them from other passes.

        Raises RuleError if one raises.
        """
        about = self._entries.setdefault(key, {})
        entries = about.get(region, ())
        for entry in reversed(entries):
            if graph.states(entry.seen) == entry.states:
                return entry.said
        said: list[Answer] = []
        with graph.watched() as seen, RuleErrorContext() as context:
            for p in passes:
                name = context.rule = p.name
                said += [(name, item) for item in p.propose(graph, region)]
        values = tuple(seen)
        new = _Entry(values, graph.states(values), tuple(said))
        about[region] = (*entries[1 - _MOST :], new)
        return new.said

    def kind(self, region: Region) -> int:
        """A number for what a region computes, whatever it is given."""
        if region not in self._kinds:
            self._kinds[region] = self._number(_kind_of(region))
        return self._kinds[region]

    def pattern(self, graph: TileGraph, proposal: Proposal) -> int:
        """A number for the rule, what it takes and what it makes, wherever that is."""
        if proposal not in self._patterns:
            preview = Preview(graph, proposal)
            old = tuple(self._signature(graph, r) for r in proposal.old)
            new = tuple(self._signature(preview, r) for r in proposal.new)
            self._patterns[proposal] = self._number((proposal.rule, old, new))
        return self._patterns[proposal]

    def _signature(self, graph: TileGraph, region: Region) -> Hashable:
        """What tells a region from others that would be lowered and predicted differently."""
        specs = tuple(
            (graph.spec(v).dtype, graph.spec(v).shape, graph.weight(v) is not None) if v else None
            for v in region.operands
        )
        return self.kind(region), specs

    def _number(self, thing: Hashable) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))


def _kind_of(region: Region) -> Hashable:
    if region.params is not None:
        return region.op, region.params
    return region.op, tuple(sorted((k, repr(v)) for k, v in region.node.attrs.items()))
