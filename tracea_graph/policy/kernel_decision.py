"""Answers of the policy: the variant, schedules and tiling of one operator, with reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tracea_graph.kernels.program import Schedule
from tracea_graph.policy.operator_topology import OperatorTopology
from tracea_graph.policy.search_space import Config, SearchSpace

__all__ = ["CandidateVariant", "KernelPlan", "PolicyDecision", "RejectedVariant"]

WORTH_MEASURING = 1.25
"""Modelled time, relative to the best of a space, up to which a configuration is worth measuring.

In exhaustive tables of five problems, the fastest schedule had a ratio of at most 1.11.
"""


@dataclass(frozen=True)
class CandidateVariant:
    """A variant, its modelled µs on one core (None: unknown), and why it is chosen or not chosen.

    ``fits`` says whether the target can run the variant.
    """

    id: str
    level: str
    why: str
    us: float | None = None
    fits: bool = True


@dataclass(frozen=True)
class PolicyDecision:
    """The policy's answer for one operator.

    ``tiling`` names how the results are divided and computed: ``grid``, ``stream``, ``map``,
    ``bitmap``, ``band``, ``two-products``, ``transformed``, ``rows`` or ``elements``.
    ``schedules`` are the default schedules of the call, one per range of row counts; empty if the
    library decides by itself.  ``reasons`` has one sentence for each choice above.
    """

    topology: OperatorTopology
    backend: str
    tiling: str
    order: str
    winner: CandidateVariant
    others: tuple[CandidateVariant, ...]
    schedules: tuple[Schedule, ...]
    reasons: tuple[str, ...]

    @property
    def variant_id(self) -> str:
        """The id of the variant that runs."""
        return self.winner.id

    @property
    def schedule(self) -> Schedule | None:
        """The default schedule for the topology's row count; None if the library decides."""
        rows = self.topology.m
        return next((s for s in self.schedules if rows <= s.limit), None)

    @property
    def reason(self) -> str:
        """All reasons as one sentence."""
        return "; ".join(self.reasons)

    def prune(
        self, space: SearchSpace, modelled_us: Callable[[Config], float], keep: Config
    ) -> SearchSpace:
        """Restrict a space of schedules to those worth measuring.

        Seeds and the configuration ``keep`` stay.  Others stay if their modelled time is at most
        ``WORTH_MEASURING`` times the shortest one.
        """
        legal = {_key(config): modelled_us(config) for config in space.legal()}
        if not legal:
            return space
        limit = WORTH_MEASURING * min(legal.values())
        held = {key for key, us in legal.items() if us <= limit}
        held |= {_key(config) for config in (*space.legal_seeds(), *space.seeded(), keep)}
        words = f"its modelled time is within {WORTH_MEASURING:g} times the best candidate's"
        return space.require(words, lambda config: _key(config) in held)


def _key(config: Config) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(config.items()))


@dataclass(frozen=True)
class RejectedVariant:
    """A variant that is not used, and why."""

    variant_id: str
    level: str
    why: str


@dataclass(frozen=True)
class KernelPlan:
    """The kernel that a target runs for a problem, and why: ``docs/schema/kernel.json``.

    ``sizes`` are the sizes of the problem by name; ``shape_note`` says if they are assumed.
    ``precision`` is the element type computed in; ``precision_note`` says why if it is not the
    ``wanted`` type.  ``us`` and ``gflops`` are the modelled time and speed, on one core or one
    GPU; null without a model.  ``schedule`` holds the settings of the default schedule by name;
    it is empty if the library decides.
    """

    op: str
    call: str
    sizes: dict[str, int]
    target: str
    backend: str
    level: str
    variant_id: str
    wanted: str
    precision: str
    tiling: str
    order: str
    schedule: dict[str, int]
    reasons: tuple[str, ...]
    rejected: tuple[RejectedVariant, ...]
    shape_note: str = ""
    precision_note: str = ""
    us: float | None = None
    gflops: float | None = None
    schema_version: Literal[1] = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes in order."""
        return tuple(self.sizes.values())
