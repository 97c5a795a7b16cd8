"""What the doctor and the profiler ask of a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tracea_graph.config import Environment
from tracea_graph.hardware.decision import Decision
from tracea_graph.hardware.measurements import Measurements
from tracea_graph.kernels.program import CallStats

__all__ = ["Diagnostics"]


class Diagnostics(Protocol):
    """What a backend can say of this machine, of which variant a problem gets on it, and of what
    its calls do.

    A backend that measures nothing has none.
    """

    @property
    def problems(self) -> Mapping[str, Sequence[str]]:
        """Operations it decides about, with the sizes each takes."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """What this machine has beyond levels that kernels could use."""
        ...

    def measure(self, environment: Environment, refresh: bool = False) -> Measurements:
        """What this machine does; from the cache unless to ``refresh``."""
        ...

    def plan_kernel(
        self,
        op: str,
        shape: Sequence[int],
        precision: str,
        figures: Measurements,
        cap: str | None = None,
    ) -> Decision:
        """The variant a problem gets here, of levels up to ``cap``, and why not the others.

        Raises UsageError for an unknown op or shape, if no variant qualifies, or if two tie.
        """
        ...

    def call_stats(self, words: Sequence[int], symbols: Sequence[int]) -> tuple[CallStats, ...]:
        """The work of an encoded program's calls.  Raises GraphError for words that are none."""
        ...
