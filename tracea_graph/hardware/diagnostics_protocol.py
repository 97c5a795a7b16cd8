"""Interfaces through which the doctor and the profiler query a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tracea_graph.config import Environment
from tracea_graph.hardware.machine_measurements import Measurements

if TYPE_CHECKING:  # options load this package, and help texts load nothing heavy
    from tracea_graph.kernels.program import CallStats

__all__ = ["CallWorkQueries", "MachineDiagnostics"]


class MachineDiagnostics(Protocol):
    """Queries about the machine.  A backend that measures nothing has no diagnostics."""

    @property
    def features(self) -> tuple[str, ...]:
        """Return the machine's features beyond ISA levels that kernels can use."""
        ...

    def measure(self, environment: Environment, refresh: bool = False) -> Measurements | None:
        """Measure the machine; uses the cache unless ``refresh``.  None if nothing is there."""
        ...


class CallWorkQueries(Protocol):
    """Queries about the work of calls whose times the library writes down."""

    def call_stats(self, words: Sequence[int], symbols: Sequence[int]) -> tuple[CallStats, ...]:
        """The work of an encoded program's calls.  Raises GraphError for words that are none."""
        ...
