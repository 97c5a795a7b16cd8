"""Interface between the tuner and a backend: tuning problems and their possible schedules.

A backend without choices has no :class:`ScheduleSpace`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.config import Environment
from tracea_graph.ir import Array
from tracea_graph.kernels.program import Call, OpType, Program, Schedule
from tracea_graph.ops.chain import Chain
from tracea_graph.policy import (
    Config,
    KernelCatalog,
    OperatorTopology,
    ProcessorFamily,
    SearchSpace,
)
from tracea_graph.toolchain import Counted, Library, ignore_progress
from tracea_graph.tuning.tuning_problem import Case, Problem

__all__ = ["Fixture", "HostTimed", "ProgramBuilder", "ScheduleSpace", "Tunable"]


class Fixture(Protocol):
    """The part of a benchmark fixture that the tuner uses."""

    def compare(
        self, case: Case, a: Schedule, b: Schedule, threads: int, pairs: int, seconds: float
    ) -> PairedTimes: ...


class HostTimed:
    """Defaults of a :class:`ScheduleSpace` whose schedules are timed as models in ONNX Runtime."""

    can_measure = True
    least_us = 3.0
    """Faster calls are dominated by the overhead of a call."""

    def usual_gain(self, case: Case) -> float:
        """Return 3 %."""
        return 0.03

    def threads(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return all thread counts."""
        return tuple(counts)

    def fixture(
        self, problems: Sequence[Problem], level: str, environment: Environment, cache: int | None
    ) -> AbstractContextManager[Fixture] | None:
        """Return None: schedules are timed as models in ONNX Runtime."""
        return None


class ScheduleSpace(Protocol):
    """The problems of a backend's calls, and their schedules and predicted times.

    ``level`` is the highest level that is tuned for.  The ``from_json`` methods raise KeyError,
    TypeError or ValueError for invalid data.
    """

    @property
    def cache_bytes(self) -> int:
        """Bytes that stay cached between two runs; weights beyond them are cold."""
        ...

    @property
    def can_measure(self) -> bool:
        """Whether schedules can be timed on this machine."""
        ...

    @property
    def least_us(self) -> float:
        """Predicted µs below which calls are not tuned."""
        ...

    def usual_gain(self, case: Case) -> float:
        """Return the share of its time that the best schedule of such a case usually saves."""
        ...

    def threads(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return those of the thread counts at which schedules must be timed, at least one."""
        ...

    def fixture(
        self, problems: Sequence[Problem], level: str, environment: Environment, cache: int | None
    ) -> AbstractContextManager[Fixture] | None:
        """Return a fixture of its own; None if schedules are timed as models in ONNX Runtime.

        ``cache`` are the bytes of weights that stay cached between runs; None: weights are cold.
        Raises BuildError.
        """
        ...

    @property
    def tile(self) -> Sequence[str]:
        """All settings that a hint's tile may have for some problem."""
        ...

    @property
    def architecture(self) -> ProcessorFamily | None:
        """The family of this machine's processor, if known."""
        ...

    @property
    def catalog(self) -> KernelCatalog:
        """The backend's kernels, for the policy that narrows spaces."""
        ...

    def topology(self, case: Case) -> OperatorTopology:
        """Return the topology of the call that a case stands for."""
        ...

    def levels(self, level: str) -> Sequence[str]:
        """Return the levels that a machine of ``level`` can run, lowest first."""
        ...

    def problem_of(self, program: Program, call: Call) -> Problem | None:
        """Return the problem of a kernel call; None if schedules do not affect it."""
        ...

    def problem_to_json(self, problem: Problem) -> dict[str, Any]:
        """Return JSON-ready values."""
        ...

    def problem_from_json(self, data: Mapping[str, Any]) -> Problem:
        """Parse what :meth:`problem_to_json` returned."""
        ...

    def schedule_from_json(self, data: Mapping[str, Any]) -> Schedule:
        """Parse a schedule from its numbers by name."""
        ...

    def space(self, case: Case, level: str, on: ProcessorFamily | None) -> SearchSpace:
        """Return all distinct schedules, the default's values first on every axis.

        The seeds are schedules known to suit the architecture.
        """
        ...

    def schedule(self, case: Case, config: Config) -> Schedule:
        """Convert a configuration of the space to a schedule."""
        ...

    def modelled_us(self, case: Case, schedule: Schedule, level: str, threads: int) -> float:
        """Return the predicted µs of one call on ``threads`` cores with cold weights."""
        ...

    def read_us(self, size: float) -> float:
        """Return the predicted µs to read ``size`` cold bytes."""
        ...

    def text_of(self, problem: Problem, level: str) -> str:
        """Return a digest of all sources of the measured code."""
        ...

    def contents(self, problem: Problem) -> Mapping[int, Array]:
        """Return what some inputs of :meth:`bench` must contain, by index."""
        ...

    def bench(self, problem: Problem, schedules: tuple[Schedule, ...] = ()) -> Program:
        """Return a program of the problem alone.

        Its inputs are x, the weights, further operands, and the previous node's result, which is
        not read; its rows are the symbol ``m``.  A call without weights does not read that input.
        """
        ...


class ProgramBuilder(Protocol):
    """The part of a backend that builds libraries of programs."""

    def encode(self, program: Program) -> tuple[int, ...]:
        """Encode the program for the library.  Raises GraphError if it is too large."""
        ...

    def kernels_of(self, call: Call) -> set[str]:
        """Return the kernels a call needs besides its chain."""
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
        counted: Counted = ignore_progress,
    ) -> Library:
        """Build a library at ``out``; ``counted`` is told how many of its parts are compiled.

        Its domain is ``tracea.`` and ten hex digits, which identifies this tool's files.  Raises
        BuildError without leaving a file.
        """
        ...


class Tunable(ProgramBuilder, Protocol):
    """The part of a backend that the tuner uses."""

    @property
    def name(self) -> str:
        """The word that published tasks name the backend by."""
        ...

    @property
    def schedule_space(self) -> ScheduleSpace | None:
        """Its problems and their schedules; None if there is nothing to choose."""
        ...

    def fingerprint(self) -> Mapping[str, Any]:
        """JSON-ready machine properties that results depend on; ``model`` names the machine."""
        ...

    def levels(self, level: str, precision: str) -> tuple[str, ...]:
        """Return the levels up to ``level``, or all of this machine's if ``level`` is empty.

        Raises UsageError for a level that cannot be verified on this machine.
        """
        ...
