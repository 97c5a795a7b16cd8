"""Interfaces through which the doctor and the profiler query a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        """Return cached or, if ``refresh``, new measurements; None without such hardware."""
        ...


class CallWorkQueries(Protocol):
    """Queries about the work of calls whose times the library records."""

    def call_stats(self, words: Sequence[int], symbols: Sequence[int]) -> tuple[CallStats, ...]:
        """Return the work of each call of an encoded program, for these symbol values.

        Raises GraphError if ``words`` are not an encoded program.
        """
        ...


@dataclass(frozen=True)
class TaskRecording:
    """How a backend's libraries record tasks in the file that ``TRACEA_TIMELINE`` names.

    A task runs on a ``processor``.  ``named``: a line has the names of its calls and the numbers
    of processors, each of which may run several tasks at a time.  ``needs`` is the setting of the
    environment under which a library must be built to record; "" if all do.
    """

    processor: str = "thread"
    named: bool = False
    needs: str = ""
