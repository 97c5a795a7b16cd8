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
from tracea_graph.kernels.program import Call, LibraryContents, Program, Schedule
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

    def concurrent_schedule(self, case: Case, runs: int) -> Schedule | None:
        """Return None: schedules do not depend on the number of concurrent runs."""
        return None

    def threads(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return all thread counts."""
        return tuple(counts)

    def fixture(
        self, problems: Sequence[Problem], level: str, environment: Environment, cache: int | None
    ) -> AbstractContextManager[Fixture] | None:
        """Return None: schedules are timed as models in ONNX Runtime."""
        return None


class ScheduleSpace(Protocol):
    """A backend's tuning problems, the schedules they can have, and predictions of their times.

    In all methods, ``level`` is the highest instruction set level or architecture to tune for.
    The ``from_json`` methods raise KeyError, TypeError or ValueError for invalid data.
    """

    @property
    def cache_bytes(self) -> int:
        """Bytes of weights that can stay in the cache from one run to the next."""
        ...

    @property
    def can_measure(self) -> bool:
        """Whether schedules can be timed on this machine."""
        ...

    @property
    def least_us(self) -> float:
        """Predicted time in µs from which on a call is worth tuning."""
        ...

    def usual_gain(self, case: Case) -> float:
        """Return the share of a case's time that tuning usually saves."""
        ...

    def concurrent_schedule(self, case: Case, runs: int) -> Schedule | None:
        """Return the schedule of a case where so many runs share a device; None: the usual."""
        ...

    def threads(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return those of the thread counts at which to time schedules; at least one."""
        ...

    def fixture(
        self, problems: Sequence[Problem], level: str, environment: Environment, cache: int | None
    ) -> AbstractContextManager[Fixture] | None:
        """Return the backend's own fixture; None if schedules are timed as models in ONNX Runtime.

        ``cache`` is the number of bytes of weights that stay cached between runs; with None, the
        weights are not cached.  Raises BuildError if kernels cannot be built.
        """
        ...

    @property
    def tile(self) -> Sequence[str]:
        """Names of all settings that a schedule hint may contain for some problem."""
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
        """Return the operator topology (the policy's input) of a case's kernel call."""
        ...

    def levels(self, level: str) -> Sequence[str]:
        """Return the levels that a machine with ``level`` as its highest can run, lowest first."""
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
        """Parse a schedule from its settings by name."""
        ...

    def space(self, case: Case, level: str, on: ProcessorFamily | None) -> SearchSpace:
        """Return the space of all distinct schedules of a case.

        On every axis, the value of the default schedule is the first.  Seeds of the space are
        schedules that are known to be good on the processor family ``on``.
        """
        ...

    def schedule(self, case: Case, config: Config) -> Schedule:
        """Convert a configuration of the space to a schedule."""
        ...

    def modelled_us(self, case: Case, schedule: Schedule, level: str, threads: int) -> float:
        """Return the predicted µs of one call on ``threads`` cores if weights are not cached."""
        ...

    def read_us(self, size: float) -> float:
        """Return the predicted µs to read ``size`` bytes that are not cached."""
        ...

    def text_of(self, problem: Problem, level: str) -> str:
        """Return a digest of all source code that a problem's measurements depend on."""
        ...

    def contents(self, problem: Problem) -> Mapping[int, Array]:
        """Return the arrays to pass for some inputs of the program :meth:`bench`, by input index.

        The other inputs may have any contents.
        """
        ...

    def bench(self, problem: Problem, schedules: tuple[Schedule, ...] = ()) -> Program:
        """Return a program that consists of the problem's kernel call, for a benchmark.

        Its inputs are x, the weights, further operands, and the previous node's result; this last
        input is not read, nor are weights by a call without weights.  The number of rows is the
        symbol ``m``.
        """
        ...


class ProgramBuilder(Protocol):
    """The part of a backend that builds libraries of programs."""

    def encode(self, program: Program) -> tuple[int, ...]:
        """Encode the program for the library.  Raises GraphError if it is too large."""
        ...

    def kernels_of(self, call: Call) -> set[str]:
        """Return the kernels that a call needs, except the one generated for its chain."""
        ...

    def build(
        self,
        contents: LibraryContents,
        levels: Sequence[str],
        out: Path,
        environment: Environment,
        quick: bool = False,
        counted: Counted = ignore_progress,
    ) -> Library:
        """Build a library at ``out``.

        Its operator domain is ``tracea.`` and ten hex digits, by which libraries of this tool are
        recognized.  ``counted`` is called with the numbers of compiled and of all parts.  On
        failure, BuildError is raised and no file is left.
        """
        ...


class Tunable(ProgramBuilder, Protocol):
    """The part of a backend that the tuner uses."""

    @property
    def name(self) -> str:
        """Name of the backend in published tuning tasks."""
        ...

    @property
    def schedule_space(self) -> ScheduleSpace | None:
        """The backend's schedule space; None if its kernels have no choice of schedules."""
        ...

    def fingerprint(self) -> Mapping[str, Any]:
        """JSON-ready machine properties that results depend on; ``model`` names the machine."""
        ...

    def levels(self, level: str, precision: str) -> tuple[str, ...]:
        """Return the levels up to ``level``, or all of this machine's if ``level`` is empty.

        Raises UsageError for a level that cannot be verified on this machine.
        """
        ...
