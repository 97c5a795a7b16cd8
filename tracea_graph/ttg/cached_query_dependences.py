"""Tracking of the values that the answer to a query depends on; their states are numbered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tracea_graph.ttg.region import Region

__all__ = ["History", "ValueStates"]

History = dict[tuple[int, Region | None, bool], int]
"""Number of a state, by previous state, region, and whether the region was added."""

_ALL, _SPECS = "", " "
"""Names, in place of a value, for the whole graph and for the specs of existing values; no value
has such a name.
"""


class ValueStates:
    """Assigns numbers to the states of values, and records on which values queries depend."""

    def __init__(self) -> None:
        self._history: History | None = None
        self._states: dict[str, int] = {}
        self._seen: set[str] | None = None

    def record(self, history: History) -> None:
        """Start to assign numbers to the states of values.

        Graphs with a common history assign equal numbers to values that were equal when recording
        began and that changed in equal ways since.
        """
        self._history, self._states = history, {}

    def of(self, values: Iterable[str]) -> list[int]:
        """Return a number for the state of each value, that is, its writer, readers and spec."""
        known = self._states
        return [known.get(value, 0) for value in values]

    @contextmanager
    def watched(self) -> Iterator[set[str]]:
        """Collect the values queried in this context; answers stay valid until a state changes."""
        before, self._seen = self._seen, {_SPECS}
        try:
            yield self._seen
        finally:
            self._seen = before

    def ask(self, value: str) -> None:
        """Record a query about a value."""
        if self._seen is not None:
            self._seen.add(value)

    def ask_all(self, values: Iterable[str] = (_ALL,)) -> None:
        """Record a query about several values; by default, about the whole graph."""
        if self._seen is not None:
            self._seen.update(values)

    def change(self, region: Region, came: bool) -> None:
        """Update the states of values, and of the graph, after a region was added or removed."""
        self._touch((*region.reads, *region.writes), region, came)

    def relearn(self) -> None:
        """Update the states after the spec of an existing value changed."""
        self._touch((_SPECS,), None, True)

    def _touch(self, values: Iterable[str], by: Region | None, came: bool) -> None:
        if self._history is not None:
            for value in (_ALL, *values):
                step = self._states.get(value, 0), by, came
                self._states[value] = self._history.setdefault(step, len(self._history) + 1)
