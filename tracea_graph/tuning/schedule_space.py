"""What the tuner asks of a backend: which problems its calls pose, and how they can be scheduled.

A backend that has nothing to choose has no :class:`ScheduleSpace`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tracea_graph.config import Environment
from tracea_graph.kernels.program import Call, OpType, Program, Schedule
from tracea_graph.ops.chain import Chain
from tracea_graph.policy import Config, Processor, SearchSpace
from tracea_graph.toolchain import Library
from tracea_graph.tuning.problem import Case, Problem

__all__ = ["Builder", "ScheduleSpace", "Tunable"]


class ScheduleSpace(Protocol):
    """The problems of a backend's calls, and what the tuner has to know of each.

    ``level`` is the highest one that is tuned for.  What a ``from_json`` reads raises KeyError,
    TypeError or ValueError where it makes no sense.
    """

    @property
    def cache_bytes(self) -> int:
        """Bytes that stay near between two runs: weights beyond them are cold."""
        ...

    @property
    def tile(self) -> Sequence[str]:
        """Every word a hint's tile may say of some problem."""
        ...

    @property
    def architecture(self) -> Processor | None:
        """The family this machine belongs to, if it is known."""
        ...

    def problem_of(self, program: Program, call: Call) -> Problem | None:
        """The problem a kernel call poses, or None where schedules have no say."""
        ...

    def problem_to_json(self, problem: Problem) -> dict[str, Any]:
        """JSON-ready values."""
        ...

    def problem_from_json(self, data: Mapping[str, Any]) -> Problem:
        """The inverse of :meth:`problem_to_json`."""
        ...

    def schedule_from_json(self, data: Mapping[str, Any]) -> Schedule:
        """A schedule from its numbers by name."""
        ...

    def space(self, case: Case, level: str, on: Processor | None) -> SearchSpace:
        """Every schedule worth telling apart, the default's numbers first on every axis; seeds are
        what suits an architecture."""
        ...

    def schedule(self, case: Case, config: Config) -> Schedule:
        """A configuration of the space as a schedule."""
        ...

    def modelled_us(self, case: Case, schedule: Schedule, level: str, threads: int) -> float:
        """Predicted µs of one call on ``threads`` cores, weights cold."""
        ...

    def read_us(self, size: float) -> float:
        """Predicted µs to read so many cold bytes."""
        ...

    def text_of(self, problem: Problem, level: str) -> str:
        """A digest of all text the measured code is made of."""
        ...

    def bench(self, problem: Problem, schedules: tuple[Schedule, ...] = ()) -> Program:
        """The problem alone: its inputs are x, the weights, further operands, and the result of
        the node before, which is not read; rows are the symbol ``m``."""
        ...


class Builder(Protocol):
    """The part of a backend that makes libraries of programs."""

    def encode(self, program: Program) -> tuple[int, ...]:
        """The program as the library reads it.  Raises GraphError for one that is too large."""
        ...

    def kernels_of(self, call: Call) -> set[str]:
        """The kernels a call needs beside its chain."""
        ...

    def build(
        self,
        types: Sequence[OpType],
        kernels: Sequence[str],
        chains: Sequence[Chain],
        levels: Sequence[str],
        out: Path,
        environment: Environment,
        quick: bool = False,
    ) -> Library:
        """A library at ``out``, whose domain is ``tracea.`` and ten hex digits, by which files are
        known for this tool's.  Raises BuildError without leaving anything there."""
        ...


class Tunable(Builder, Protocol):
    """The part of a backend that the tuner works with."""

    @property
    def schedule_space(self) -> ScheduleSpace | None:
        """Its problems and their schedules; None if it has nothing to choose."""
        ...

    def fingerprint(self) -> Mapping[str, Any]:
        """What results depend on of this machine, as JSON-ready values; ``model`` names it."""
        ...

    def levels(self, level: str, precision: str) -> tuple[str, ...]:
        """Levels up to ``level``, all of this machine for "".  Raises UsageError for one that
        nothing can be checked for here."""
        ...
