"""What is tuned: the problems that a model's kernel calls pose, at any number of rows.

programs, shapes  →  workloads  →  (tuner)  →  schedules by problem  →  programs with schedules

What a problem is, is the backend's to say; its rows may be images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tracea_graph.ir import TensorSpec, evaluate
from tracea_graph.kernels.program import Call, Program, Schedule
from tracea_graph.ops.chain import Chain

__all__ = [
    "Case",
    "Problem",
    "ProblemOf",
    "ScheduleTables",
    "Workload",
    "default_of",
    "problems_of",
    "row_class",
    "with_schedules",
]  # fmt: skip


class Problem(Protocol):
    """One kernel call up to its row count; equal ones are measured once.

    ``str`` names it for people.
    """

    @property
    def dtype(self) -> str:
        """What is multiplied: ``f32``, ``bf16`` …"""
        ...

    @property
    def epilogue(self) -> Chain | None:
        """Its elementwise part."""
        ...

    @property
    def defaults(self) -> tuple[Schedule, ...]:
        """The schedule of each class of row counts."""
        ...

    @property
    def typical_rows(self) -> tuple[int, ...]:
        """The row count that stands for each class, to be tuned though nobody asked for it."""
        ...

    @property
    def unit(self) -> str:
        """What one row is called."""
        ...

    @property
    def reuses_weights(self) -> bool:
        """Whether even one row reads its weights many times."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of the stored weights."""
        ...

    @property
    def tile(self) -> Mapping[str, str]:
        """What a hint's tile may say of it, and the schedule's names for that."""
        ...

    @property
    def stages(self) -> str:
        """The schedule's number that is 0 for one stage and 1 for two; empty if it has none."""
        ...

    @property
    def sizes(self) -> dict[str, int]:
        """Its sizes by name, for telemetry and the entry points of candidates."""
        ...

    @property
    def key(self) -> dict[str, Any]:
        """JSON-ready values that tell problems apart in the cache."""
        ...

    def flops(self, rows: int) -> float:
        """Operations at so many rows."""
        ...

    def moved(self, rows: int) -> float:
        """Bytes of the weights, x and the results, once each."""
        ...


@dataclass(frozen=True)
class Case:
    """A problem at one row count."""

    problem: Problem
    rows: int

    @property
    def flops(self) -> float:
        return self.problem.flops(self.rows)

    @property
    def moved(self) -> float:
        return self.problem.moved(self.rows)

    def __str__(self) -> str:
        return f"{self.problem}, {self.rows} {self.problem.unit}{'s' * (self.rows != 1)}"


@dataclass(frozen=True)
class Workload:
    """A problem, how many nodes of a model have it, and their row counts when timed."""

    problem: Problem
    count: int = 1
    rows: tuple[int, ...] = ()


ScheduleTables = Mapping[Problem, tuple[Schedule, ...]]
"""A table for every row count, by problem."""
ProblemOf = Callable[[Program, Call], Problem | None]
"""The problem a call of a program poses, if schedules have a say there."""


def row_class(problem: Problem, rows: int) -> int:
    """The index of the default schedule, and so of the class, that a row count belongs to."""
    return next(i for i, schedule in enumerate(problem.defaults) if rows <= schedule.limit)


def default_of(case: Case) -> Schedule:
    """The schedule of the case's row class that a candidate has to beat."""
    return case.problem.defaults[row_class(case.problem, case.rows)]


def problems_of(
    placed: Iterable[tuple[Program, Sequence[TensorSpec]]],
    problem_of: ProblemOf,
    bindings: Sequence[Mapping[str, int]] = (),
) -> tuple[Workload, ...]:
    """The distinct problems of a model's programs, in order of appearance.

    Each program comes with the specs of its node's operands in the graph; row counts follow from
    them and the symbol values of each binding, and stay out where a symbol is not bound.
    """
    counts: dict[Problem, int] = {}
    rows: dict[Problem, set[int]] = {}
    for program, specs in placed:
        for call in program.calls:
            if (problem := problem_of(program, call)) is None:
                continue
            counts[problem] = counts.get(problem, 0) + 1
            found = rows.setdefault(problem, set())
            found.update(r for b in bindings if (r := _rows(program, call, specs, b)))
    return tuple(Workload(p, n, tuple(sorted(rows[p]))) for p, n in counts.items())


def _rows(
    program: Program, call: Call, specs: Sequence[TensorSpec], binding: Mapping[str, int]
) -> int:
    """Rows of a call's first operand under a binding; 0 where they are unknown."""
    x = call.views[0]
    assert x is not None
    try:
        local = {
            symbol: evaluate((specs[i].shape or ())[axis], binding)
            for symbol, (i, axis) in program.symbols.items()
        }
        for loop in program.loops:
            local |= next(iter(loop.iterations(evaluate(loop.extent, local))), {})
        return evaluate(x.dims[0], local)
    except (KeyError, IndexError):
        return 0


def with_schedules(program: Program, problem_of: ProblemOf, schedules: ScheduleTables) -> Program:
    """The program with its calls' schedules replaced where there are better ones."""

    def better(call: Call) -> Call:
        problem = problem_of(program, call)
        found = schedules.get(problem) if problem else None
        return replace(call, schedules=found) if found else call

    return replace(program, calls=tuple(map(better, program.calls)))
