"""What answers about a graph depend on: values, each in a state that is known by a number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tracea_graph.ttg.region import Region

__all__ = ["History", "States"]

History = dict[tuple[int, Region | None, bool], int]
"""Numbers of states: from the state before, and what came or went."""

_ALL, _SPECS = "", " "
"""Stand for the whole graph, and for what is known of values that are there, where others stand
for a value; none has such a name."""


class States:
    """Numbers the states of values, and notes which of them questions are about."""

    def __init__(self) -> None:
        self._history: History | None = None
        self._states: dict[str, int] = {}
        self._seen: set[str] | None = None

    def record(self, history: History) -> None:
        """Number the states of values from here on.

        Graphs that share a history have the same number where the same happened to what was equal
        when recording began.
        """
        self._history, self._states = history, {}

    def of(self, values: Iterable[str]) -> list[int]:
        """The numbers of values' states: who writes one, who reads it, what is known of it."""
        known = self._states
        return [known.get(value, 0) for value in values]

    @contextmanager
    def watched(self) -> Iterator[set[str]]:
        """What is asked for meanwhile: as long as these are in the same state, so are answers."""
        before, self._seen = self._seen, {_SPECS}
        try:
            yield self._seen
        finally:
            self._seen = before

    def ask(self, value: str) -> None:
        """A question is about a value."""
        if self._seen is not None:
            self._seen.add(value)

    def ask_all(self, values: Iterable[str] = (_ALL,)) -> None:
        """A question is about several values; by default, about the whole graph."""
        if self._seen is not None:
            self._seen.update(values)

    def change(self, region: Region, came: bool) -> None:
        """A region comes or goes, and with it the whole is in another state."""
        self._touch((*region.reads, *region.writes), region, came)

    def relearn(self) -> None:
        """Something else is known of a value that was there before."""
        self._touch((_SPECS,), None, True)

    def _touch(self, values: Iterable[str], by: Region | None, came: bool) -> None:
        if self._history is not None:
            for value in (_ALL, *values):
                step = self._states.get(value, 0), by, came
                self._states[value] = self._history.setdefault(step, len(self._history) + 1)
