"""The heap proposals wait in: equal ones together, the most gain per cost first.

    worth of a pattern = predicted gain of a site / (1 + share of the budget the pattern costs)

Sites are of one pattern if the same rule makes the same region of the same operators on operands
of the same shapes: they are lowered, tuned, compiled and measured once, so they share the cost and
are disposed of together.  A kind of region the model has already costs nothing more.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from tracea_graph.rewrite.memo import Memo
from tracea_graph.rewrite.proposal import Price, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Heap", "QueuedProposal"]


@dataclass(frozen=True, eq=False)
class QueuedProposal:
    """A proposal, the phase its pass belongs to and its predicted gain in µs."""

    phase: int
    proposal: Proposal
    gain: float


@dataclass
class _ProposalKind:
    first: int
    sites: OrderedDict[QueuedProposal, None] = field(default_factory=OrderedDict)
    worth: float = 0.0


class Heap:
    """Patterns by phase, then worth, then the order they were first seen in."""

    def __init__(self, price: Price, memo: Memo) -> None:
        self._price, self._memo = price, memo
        self._heap: list[tuple[int, float, int, Hashable]] = []
        self._patterns: dict[Hashable, _ProposalKind] = {}
        self._keys: dict[QueuedProposal, Hashable] = {}
        self._known: set[int] = set()
        self._prices: dict[int, float] = {}
        self._count = 0

    def push(self, graph: TileGraph, waiting: QueuedProposal) -> None:
        """Add a site to its pattern, which goes up (or down) in the heap."""
        key = self._keys[waiting] = (
            waiting.phase,
            self._memo.pattern(graph, waiting.proposal),
        )
        self._count += 1
        pattern = self._patterns.setdefault(key, _ProposalKind(self._count))
        pattern.sites[waiting] = None
        self._place(key, pattern)

    def withdraw(self, waiting: QueuedProposal) -> None:
        """Take a site back, if it still waits."""
        key = self._keys.pop(waiting, None)
        if key is None:
            return
        pattern = self._patterns[key]
        del pattern.sites[waiting]
        if pattern.sites:
            self._place(key, pattern)
        else:
            del self._patterns[key]

    def pop(self) -> QueuedProposal | None:
        """The first site of the best pattern, or None if nothing waits."""
        while self._heap:
            _, worth, first, key = heapq.heappop(self._heap)
            pattern = self._patterns.get(key)
            if pattern is not None and (pattern.worth, pattern.first) == (-worth, first):
                self.withdraw(site := next(iter(pattern.sites)))
                return site
        return None

    def resolve(self, proposal: Proposal) -> None:
        """The kinds of region it makes are decided: further sites cost nothing."""
        self._known.update(map(self._memo.kind, proposal.new))

    def _place(self, key: Hashable, pattern: _ProposalKind) -> None:
        """An entry with the pattern's present worth; the older ones are passed over by pop."""
        site = next(iter(pattern.sites))
        kinds = {self._memo.kind(r): r for r in site.proposal.new}
        new = sum(self._cost(kind, r) for kind, r in kinds.items() if kind not in self._known)
        pattern.worth = site.gain / (1.0 + new)
        heapq.heappush(self._heap, (site.phase, -pattern.worth, pattern.first, key))

    def _cost(self, kind: int, region: Region) -> float:
        if kind not in self._prices:
            self._prices[kind] = self._price(region)
        return self._prices[kind]
