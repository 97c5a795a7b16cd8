"""Stable topological order of nodes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

__all__ = ["topological"]


def topological(reads: Sequence[Sequence[str]], writes: Sequence[Sequence[str]]) -> list[int]:
    """Return indices of nodes, producers first and in the given order otherwise.

    Nodes on a cycle, and those after one, are missing from the result.
    """
    producer = {v: i for i, values in enumerate(writes) for v in values if v}
    needs = [{producer[v] for v in values if v in producer} for values in reads]
    waiting = [len(n) for n in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for i, sources in enumerate(needs):
        for source in sources:
            readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return order
