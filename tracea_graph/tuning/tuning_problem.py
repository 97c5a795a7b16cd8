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
    """A kernel call without its row count; equal problems are measured once.

    ``str`` gives its display name.
    """

    @property
    def dtype(self) -> str:
        """Type of the multiplication: ``f32``, ``bf16`` …"""
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
        """A representative row count of each class, tuned even if not requested."""
        ...

    @property
    def unit(self) -> str:
        """What one row is called."""
        ...

    @property
    def reuses_weights(self) -> bool:
        """Whether even a single row reads the weights many times."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of the stored weights."""
        ...

    @property
    def tile(self) -> Mapping[str, str]:
        """Settings of a hint's tile, with the schedule's names for them."""
        ...

    @property
    def stages(self) -> str:
        """The schedule's parameter that is 0 for one stage and 1 for two; empty if none."""
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
        """Return the rows of a call from its first view's dims; 0 if it is another problem."""
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
    """Return the index of the row class, and thereby of the default schedule, of a row count."""
    return next(i for i, schedule in enumerate(problem.defaults) if rows <= schedule.limit)


def default_schedule(case: Case) -> Schedule:
    """Return the default schedule of a case, which candidates have to beat."""
    return case.problem.defaults[row_class(case.problem, case.rows)]


def problems_of(
    placed: Iterable[tuple[Program, Sequence[TensorSpec]]],
    problem_of: ProblemOf,
    bindings: Sequence[Mapping[str, int]] = (),
) -> tuple[Workload, ...]:
    """Return the distinct problems of a model's programs, in order of appearance.

    Each program comes with the specs of its node's operands.  Row counts follow from the specs and
    the symbol values of each binding; they are left out if a symbol is unbound.
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
