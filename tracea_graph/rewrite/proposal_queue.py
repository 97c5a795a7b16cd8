"""Queue proposals in a heap, equal ones grouped, the largest gain per cost first.

    worth of a group = predicted gain of one site / (1 + share of the budget the group costs)

Sites belong to one group if one rule makes equal regions from equal operators on operands of
equal shapes.  They are lowered, tuned, compiled and measured once, so they share that cost and are
applied together.  A kind of region that the model already contains costs nothing.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from tracea_graph.rewrite.pass_result_cache import PassResultCache
from tracea_graph.rewrite.proposal import Price, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ProposalQueue", "QueuedProposal"]


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


class ProposalQueue:
    """Proposals grouped by kind and ordered by phase, then by worth, then by age."""

    def __init__(self, price: Price, memo: PassResultCache) -> None:
        self.price, self._memo = price, memo
        self._heap: list[tuple[int, float, int, Hashable]] = []
        self._patterns: dict[Hashable, _ProposalKind] = {}
        self._keys: dict[QueuedProposal, Hashable] = {}
        self._at: dict[str, dict[QueuedProposal, None]] = {}  # by id of an old region
        self._known: set[int] = set()
        self._prices: dict[int, float] = {}
        self._count = 0

    def push(self, graph: TileGraph, waiting: QueuedProposal) -> None:
        """Add a proposal to the group of its kind and update the worth of the group."""
        key = self._keys[waiting] = (
            waiting.phase,
            self._memo.pattern(graph, waiting.proposal),
        )
        self._count += 1
        pattern = self._patterns.setdefault(key, _ProposalKind(self._count))
        pattern.sites[waiting] = None
        for region in waiting.proposal.old:
            self._at.setdefault(region.id, {})[waiting] = None
        self._place(key, pattern)

    def rivals(self, site: QueuedProposal) -> list[QueuedProposal]:
        """Return queued proposals of this phase that replace a region that ``site`` replaces."""
        found: dict[QueuedProposal, None] = {}
        for region in site.proposal.old:
            found |= self._at.get(region.id, {})
        return [s for s in found if s.phase == site.phase and s is not site]

    def withdraw(self, waiting: QueuedProposal) -> bool:
        """Remove a proposal if it is still queued, and return whether it was."""
        key = self._keys.pop(waiting, None)
        if key is None:
            return False
        pattern = self._patterns[key]
        del pattern.sites[waiting]
        for region in waiting.proposal.old:
            self._at[region.id].pop(waiting, None)
        if pattern.sites:
            self._place(key, pattern)
        else:
            del self._patterns[key]
        return True

    def pop(self) -> QueuedProposal | None:
        """Remove and return the first proposal of the best group; None if the queue is empty."""
        while self._heap:
            _, worth, first, key = heapq.heappop(self._heap)
            pattern = self._patterns.get(key)
            if pattern is not None and (pattern.worth, pattern.first) == (-worth, first):
                self.withdraw(site := next(iter(pattern.sites)))
                return site
        return None

    def resolve(self, proposal: Proposal) -> None:
        """Record the region kinds of an applied proposal: deciding about more of them is free."""
        self._known.update(map(self._memo.kind, proposal.new))

    def _place(self, key: Hashable, pattern: _ProposalKind) -> None:
        """Push an entry with the group's current worth; :meth:`pop` skips outdated entries."""
        site = next(iter(pattern.sites))
        kinds = {self._memo.kind(r): r for r in site.proposal.new}
        new = sum(self._cost(kind, r) for kind, r in kinds.items() if kind not in self._known)
        pattern.worth = site.gain / (1.0 + new)
        heapq.heappush(self._heap, (site.phase, -pattern.worth, pattern.first, key))

    def _cost(self, kind: int, region: Region) -> float:
        if kind not in self._prices:
            self._prices[kind] = self.price(region)
        return self._prices[kind]
