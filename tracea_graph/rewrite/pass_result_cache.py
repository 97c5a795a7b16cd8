"""Cache the answers of passes about regions for as long as what they read is unchanged.

A rewrite changes the graph in one place, and the pipeline plans the same graph several times with
more and more of it frozen, so most questions repeat.  :meth:`TileGraph.watched` records which
regions an answer depends on; the answer is valid in every copy of the graph in which these have
the recorded states.  Cached proposals are identical objects, so gains and patterns are cached too.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from tracea_graph.errors import RuleErrorContext
from tracea_graph.rewrite.pattern import Miss
from tracea_graph.rewrite.proposal import Pass, Proposal, ProposalPreview
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.cached_query_dependences import History

__all__ = ["Answer", "PassResultCache"]

Answer = tuple[str, Proposal | Miss]
"""Name of a pass and the proposal or miss it returned."""

_MOST = 8
"""Cached answers per region: the next plan takes it through the states of this one again."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Answers, the values they depend on and the states of these."""

    seen: tuple[str, ...]
    states: list[int]
    said: tuple[Answer, ...]


@dataclass
class PassResultCache:
    """Cached answers of passes about the regions of one graph, for one list of phases.

    ``history`` assigns numbers to the states of values; all copies of the graph share it.
    """

    history: History = field(default_factory=dict)
    gains: dict[Proposal, float] = field(default_factory=dict)
    rollouts: dict[Hashable, tuple[float, ...]] = field(default_factory=dict)
    """Gains of competing proposals with all that follows them, by their patterns."""
    _patterns: dict[Proposal, int] = field(default_factory=dict)
    _kinds: dict[Region, int] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _entries: dict[Hashable, dict[Region, tuple[_Entry, ...]]] = field(default_factory=dict)

    def ask(
        self, graph: TileGraph, region: Region, key: Hashable, passes: Sequence[Pass]
    ) -> tuple[Answer, ...]:
        """Return what the passes answer about a region, from the cache if it is valid.

        ``key`` identifies this set of passes.  Raises RuleError if a pass raises.
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
        """Return a number that identifies what a region computes, regardless of its operands."""
        if region not in self._kinds:
            self._kinds[region] = self._number(_kind_of(region))
        return self._kinds[region]

    def pattern(self, graph: TileGraph, proposal: Proposal) -> int:
        """Return a number that identifies a proposal's rule and the kinds of its regions."""
        if proposal not in self._patterns:
            preview = ProposalPreview(graph, proposal)
            old = tuple(self._signature(graph, r) for r in proposal.old)
            new = tuple(self._signature(preview, r) for r in proposal.new)
            self._patterns[proposal] = self._number((proposal.rule, old, new))
        return self._patterns[proposal]

    def _signature(self, graph: TileGraph, region: Region) -> Hashable:
        """Return all that lowering and cost prediction of a region depend on."""
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
