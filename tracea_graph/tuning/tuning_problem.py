"""Tuning problems: kernel calls of a model, independent of their row count.

programs, shapes  →  workloads  →  (tuner)  →  schedules by problem  →  programs with schedules

The backend defines its problems; their rows may be images.
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
    "default_schedule",
    "problems_of",
    "row_class",
    "with_schedules",
]  # fmt: skip


class Problem(Protocol):
    """What to tune: a kernel call without its row count.  Equal calls are one problem.

    ``str`` returns the name for display.
    """

    @property
    def dtype(self) -> str:
        """Element type that is multiplied: ``f32``, ``bf16`` …"""
        ...

    @property
    def epilogue(self) -> Chain | None:
        """Its elementwise epilogue, if any."""
        ...

    @property
    def defaults(self) -> tuple[Schedule, ...]:
        """The default schedule of each row class."""
        ...

    @property
    def typical_rows(self) -> tuple[int, ...]:
        """One typical row count for each row class, tuned even if it is not requested."""
        ...

    @property
    def unit(self) -> str:
        """What one row is called."""
        ...

    @property
    def reuses_weights(self) -> bool:
        """Whether a call with a single row already reads its weights many times."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of the stored weights."""
        ...

    @property
    def tile(self) -> Mapping[str, str]:
        """Schedule parameters that a hint may set, by the names that hints use."""
        ...

    @property
    def stages(self) -> str:
        """Name of the schedule parameter that selects one (0) or two (1) stages; "" if none."""
        ...

    @property
    def sizes(self) -> dict[str, int]:
        """Return its sizes by name, for telemetry and for entry points that propose candidates."""
        ...

    @property
    def key(self) -> dict[str, Any]:
        """Return JSON-ready values that identify a problem in the cache."""
        ...

    def rows_of(self, dims: Sequence[int]) -> int:
        """Return the row count of a call, given the dims of its first view.

        Returns 0 if a call with these dims is another problem.
        """
        ...

    def flops(self, rows: int) -> float:
        """Return the FLOPs for ``rows`` rows."""
        ...

    def moved(self, rows: int) -> float:
        """Return the bytes of the weights, x and the results, each counted once."""
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
    """A problem, the number of nodes that have it, and the row counts to time it at."""

    problem: Problem
    count: int = 1
    rows: tuple[int, ...] = ()


ScheduleTables = Mapping[Problem, tuple[Schedule, ...]]
"""For each problem, a table of schedules that covers every row count."""
ProblemOf = Callable[[Program, Call], Problem | None]
"""Returns the problem of a program's call; None if schedules do not affect it."""


def row_class(problem: Problem, rows: int) -> int:
    """Return the index of the row class that a number of rows belongs to.

    Each row class has a default schedule.
    """
    return next(i for i, schedule in enumerate(problem.defaults) if rows <= schedule.limit)


def default_schedule(case: Case) -> Schedule:
    """Return the default schedule of a case, which candidates have to beat."""
    return case.problem.defaults[row_class(case.problem, case.rows)]


def problems_of(
    placed: Iterable[tuple[Program, Sequence[TensorSpec]]],
    problem_of: ProblemOf,
    bindings: Sequence[Mapping[str, int]] = (),
) -> tuple[Workload, ...]:
    """Return the distinct tuning problems of a model's programs, in order of appearance.

    ``placed`` are the programs with the specs of their nodes' operands.  From these and the symbol
    values in ``bindings`` follow the row counts; unless all symbols of a call have values, its row
    count is left out.
    """
    counts: dict[Problem, int] = {}
    rows: dict[Problem, set[int]] = {}
    for program, specs in placed:
        for call in program.calls:
            if (problem := problem_of(program, call)) is None:
                continue
            counts[problem] = counts.get(problem, 0) + 1
            found = rows.setdefault(problem, set())
            dims = (_dims(program, call, specs, b) for b in bindings)
            found.update(r for known in dims if known and (r := problem.rows_of(known)))
    return tuple(Workload(p, n, tuple(sorted(rows[p]))) for p, n in counts.items())


def _dims(
    program: Program, call: Call, specs: Sequence[TensorSpec], binding: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the dims of a call's first operand under a binding; empty if unknown."""
    x = call.views[0]
    assert x is not None
    try:
        local = {
            symbol: evaluate((specs[i].shape or ())[axis], binding)
            for symbol, (i, axis) in program.symbols.items()
        }
        for loop in program.loops:
            local |= next(iter(loop.iterations(evaluate(loop.extent, local))), {})
        return tuple(evaluate(dim, local) for dim in x.dims)
    except (KeyError, IndexError):
        return ()


def with_schedules(program: Program, problem_of: ProblemOf, schedules: ScheduleTables) -> Program:
    """Return the program with the schedules of its calls replaced by better ones."""

    def better(call: Call) -> Call:
        problem = problem_of(program, call)
        found = schedules.get(problem) if problem else None
        return replace(call, schedules=found) if found else call

    return replace(program, calls=tuple(map(better, program.calls)))
