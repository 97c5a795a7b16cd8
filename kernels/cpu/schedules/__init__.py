"""How the calls of the CPU backend can be scheduled, for the tuner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import prod
from typing import Any

from tracea_graph.hardware import profile_cpu
from tracea_graph.ir import Array
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.isa_levels import LEVELS, isa_of
from tracea_graph.kernels.cpu.kernel_catalog import CATALOG
from tracea_graph.kernels.cpu.processor_families import architecture_of
from tracea_graph.kernels.cpu.schedule import ConvSchedule, GemmSchedule, TaskSchedule
from tracea_graph.kernels.cpu.schedules import (
    conv_problem,
    conv_space,
    gemm_problem,
    gemm_space,
    problem_json,
    task_space,
)
from tracea_graph.kernels.cpu.schedules.bench_program import bench_program
from tracea_graph.kernels.cpu.schedules.conv_problem import ConvProblem
from tracea_graph.kernels.cpu.schedules.core_constants import DRAM_GBS
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.kernels.cpu.schedules.source_digest import measured_source_digest
from tracea_graph.kernels.cpu.schedules.task_bench import contents_of, task_program
from tracea_graph.kernels.cpu.schedules.task_problem import TaskProblem, tasks_of_call
from tracea_graph.kernels.program import Call, Program, Schedule
from tracea_graph.policy import (
    Config,
    Dense,
    KernelCatalog,
    OperatorTopology,
    ProcessorFamily,
    SearchSpace,
    Transformed,
)
from tracea_graph.tuning.schedule_space import HostTimed
from tracea_graph.tuning.tuning_problem import Case, Problem

__all__ = ["SCHEDULE_SPACE", "CpuScheduleSpace"]

_USUAL_GAINS = {
    "gemm": 0.01,
    "gemm_nbits": 0.01,
    "elementwise": 0.01,
    "attention": 0.05,
}
"""Share saved by the best schedules of recorded cases (models/tuning_tables.json, RESULTS.md)."""
_FEW_ROWS = 32
"""Rows up to which a product is bound by memory; few such cases were recorded."""
_UNKNOWN_CACHE = 32 << 20
"""Bytes assumed if the machine does not report its cache size."""


class CpuScheduleSpace(HostTimed):
    """Schedules of products (:class:`GemmSchedule`), convolutions (:class:`ConvSchedule`) and
    calls that are cut into tasks of rows and columns (:class:`TaskSchedule`).
    """

    tile = tuple(dict.fromkeys((*gemm_problem.TILE, *conv_problem.TILE)))

    @property
    def cache_bytes(self) -> int:
        """Size of the last-level cache in bytes."""
        profile = profile_cpu()
        return profile.l3 or profile.l2 or _UNKNOWN_CACHE

    def usual_gain(self, case: Case) -> float:
        """Return the share of its time that the best schedule of such a case usually saves.

        Shares come from recorded cases.
        """
        problem, usual = case.problem, super().usual_gain(case)
        if isinstance(problem, TaskProblem):
            return _USUAL_GAINS.get(problem.op, usual)
        dense = isinstance(problem, GemmProblem) and case.rows > _FEW_ROWS
        return _USUAL_GAINS["gemm"] if dense else usual

    @property
    def architecture(self) -> ProcessorFamily | None:
        """The family of this machine's processor; None if unknown."""
        return architecture_of(profile_cpu())

    @property
    def catalog(self) -> KernelCatalog:
        """The CPU's kernels."""
        return CATALOG

    def topology(self, case: Case) -> OperatorTopology:
        """The topology of a case's call; for Winograd, that of the direct convolution."""
        problem, rows = case.problem, case.rows
        if isinstance(problem, TaskProblem):
            return problem.topology(rows)
        if isinstance(problem, ConvProblem):
            kind = Transformed(problem.winograd) if problem.winograd else Dense()
            depth = problem.channels // problem.groups * prod(problem.window)
            pixels = rows * prod(problem.outputs)
            return OperatorTopology(
                problem.op, pixels, problem.filters, depth, kind, problem.multiplies
            )
        product = _own(problem)
        assert isinstance(product, GemmProblem)
        return OperatorTopology("gemm", rows, product.n, product.k, dtype=product.multiplies)

    def levels(self, level: str) -> tuple[str, ...]:
        """Levels whose CPU features a level includes, lowest first."""
        features = {*isa_of(level).features}
        return tuple(isa.name for isa in LEVELS if features.issuperset(isa.features))

    def problem_of(self, program: Program, call: Call) -> Problem | None:
        """The tuning problem of a call; None if it takes no schedule or has symbolic sizes."""
        schedule = CALLS.of(call).schedule
        if schedule is ConvSchedule:
            return conv_problem.convolution_of(program, call)
        if schedule is TaskSchedule:
            return tasks_of_call(program, call)
        return gemm_problem.product_of(program, call) if schedule is GemmSchedule else None

    def problem_to_json(self, problem: Problem) -> dict[str, Any]:
        """Encode a problem as JSON-ready values."""
        return problem_json.problem_to_json(_own(problem))

    def problem_from_json(self, data: Mapping[str, Any]) -> Problem:
        """The inverse of :meth:`problem_to_json`.  Raises KeyError, TypeError or ValueError."""
        return problem_json.problem_from_json(data)

    def schedule_from_json(self, data: Mapping[str, Any]) -> Schedule:
        """Decode a schedule from its fields by name.  Raises KeyError, TypeError or ValueError."""
        held = {str(name) for name in data}
        kinds = (GemmSchedule, ConvSchedule, TaskSchedule)
        kind = next((k for k in kinds if held == {f.name for f in fields(k)}), None)
        if kind is None:
            raise ValueError(f"no schedule has {', '.join(sorted(held))}")
        return kind(**{str(name): int(value) for name, value in dict(data).items()})

    def space(self, case: Case, level: str, on: ProcessorFamily | None) -> SearchSpace:
        """Return all distinct schedules of a case; each axis begins with its default value."""
        if isinstance(case.problem, ConvProblem):
            return conv_space.space_of(case, level, on)
        if isinstance(case.problem, TaskProblem):
            return task_space.space_of(case, level)
        return gemm_space.space_of(case, level, on)

    def schedule(self, case: Case, config: Config) -> Schedule:
        """Convert a configuration of the space to a schedule."""
        if isinstance(case.problem, ConvProblem):
            return conv_space.schedule_of(case, config)
        if isinstance(case.problem, TaskProblem):
            return task_space.schedule_of(case, config)
        return gemm_space.schedule_of(case, config)

    def modelled_us(self, case: Case, schedule: Schedule, level: str, threads: int) -> float:
        """Predicted µs of one call on ``threads`` cores, with the weights not in cache."""
        if isinstance(case.problem, ConvProblem):
            return conv_space.modelled_us(case, schedule, level, threads)
        if isinstance(case.problem, TaskProblem):
            return task_space.modelled_us(case, schedule, level, threads)
        return gemm_space.modelled_us(case, schedule, level, threads)

    def read_us(self, size: float) -> float:
        """Predicted µs to read ``size`` cold bytes."""
        return size / DRAM_GBS * 1e-3

    def text_of(self, problem: Problem, level: str) -> str:
        """Digest of all source text that the timing of a problem depends on."""
        return measured_source_digest(_own(problem), level)

    def contents(self, problem: Problem) -> Mapping[int, Array]:
        """Contents of the bench's inputs that cannot be arbitrary, by index."""
        return contents_of(problem) if isinstance(problem, TaskProblem) else {}

    def bench(self, problem: Problem, schedules: tuple[Schedule, ...] = ()) -> Program:
        """Build a program of the problem alone with these schedules; see ``bench_program``."""
        if isinstance(problem, TaskProblem):
            return task_program(problem, schedules)
        product = _own(problem)
        assert not isinstance(product, TaskProblem)
        return bench_program(product, schedules)


def _own(problem: Problem) -> GemmProblem | ConvProblem | TaskProblem:
    assert isinstance(problem, GemmProblem | ConvProblem | TaskProblem)
    return problem


SCHEDULE_SPACE = CpuScheduleSpace()
