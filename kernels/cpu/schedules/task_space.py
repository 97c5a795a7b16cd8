"""The search space of task sizes, and the cost model of calls that are cut into tasks.

Two schedules that lead to equally many tasks of equal shape (:class:`TaskCut`) are one candidate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod

from tracea_graph.config import usable_processors
from tracea_graph.ir import evaluate
from tracea_graph.kernels.cpu.panels import PANEL
from tracea_graph.kernels.cpu.schedule import TaskSchedule
from tracea_graph.kernels.cpu.schedules.core_constants import (
    DRAM_GBS,
    GHZ,
    L2_BYTES,
    L2_GBS,
    L3_GBS,
    TASK_US,
    units_of,
    vectors_per_panel,
)
from tracea_graph.kernels.cpu.schedules.task_problem import ROWS, Strided, TaskProblem
from tracea_graph.kernels.cpu.variants import gemm_nbits_tile
from tracea_graph.kernels.program import Schedule
from tracea_graph.ops.elementwise_steps import ELEMENTARY
from tracea_graph.policy import Config, SearchSpace
from tracea_graph.tuning.tuning_problem import Case, default_schedule

__all__ = ["TaskCut", "cut_into_tasks", "modelled_us", "schedule_of", "space_of"]

_QUERIES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_HEADS = (1, 2, 4, 8)
_ROWS = (16, 32, 48, 64, 96, 128, 192, 256, 512)
_PANELS = (1, 2, 4, 8, 16, 32, 64)
_ELEMENTS = (4 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20)
"""Task sizes to try besides the library's choice."""

_QUERY_CHUNK, _FEWEST_TASKS, _GRAIN = 48, 8, 32 << 10
_NEAR_FLOATS, _GROUP, _TOGETHER, _TASKS_EACH = 192 << 10, 16, 4, 4
_STREAMED_BYTES = 16 * _NEAR_FLOATS
_CODE_WORK, _ROWS_OF_TASK = 1 << 17, 96
"""The runtime's constants (``runtime/attention.h``, ``elementwise.h``, ``gemm_block_sparse.h``,
``gemm_nbits.h``)."""

_EFFICIENCY, _SOFTMAX = 0.6, 14.0
"""Share of the peak that tiles of attention and of sparse products reach; operations per score."""
_LANES = 16


@dataclass(frozen=True)
class TaskCut:
    """How a call is divided into tasks.

    Each of ``items`` independent parts is cut into ``rows`` parts along its rows, and into
    ``columns`` parts along heads or columns.
    """

    rows: int
    columns: int
    items: int = 1

    @property
    def tasks(self) -> int:
        return self.rows * self.columns * self.items


def space_of(case: Case, isa: str) -> SearchSpace:
    """Return all schedules that divide a case into different tasks, the library's choice first."""
    problem, rows = _problem(case), case.rows
    if problem.op == "elementwise":
        wide = _columns(problem, rows)
        sizes = sorted({max(1, elements // wide) for elements in _ELEMENTS})
        space = SearchSpace().axis("rows", (0, *(s for s in sizes if s <= rows)))
    elif problem.op == "attention":
        heads = _heads_each(problem)
        space = SearchSpace().axis("rows", (0, *(r for r in _QUERIES if r < rows), rows))
        space = space.axis("columns", (0, *(h for h in _HEADS if h < heads), heads))
    else:
        panels = -(-_columns(problem, rows) // PANEL)
        space = SearchSpace().axis("rows", (0, *(r for r in _ROWS if r < rows), rows))
        columns = [PANEL * p for p in (*_PANELS, panels) if p <= panels]
        space = space.axis("columns", (0, *columns))
    return space.once(lambda config: cut_into_tasks(case, schedule_of(case, config), isa))


def schedule_of(case: Case, config: Config) -> TaskSchedule:
    """Convert a configuration to a schedule of the case's row class."""
    return TaskSchedule(default_schedule(case).limit, config["rows"], config.get("columns", 0))


def cut_into_tasks(
    case: Case, schedule: TaskSchedule, isa: str, processors: int = usable_processors()
) -> TaskCut:
    """Return the tasks into which the library divides a call on ``processors`` processors."""
    problem, rows = _problem(case), case.rows
    if problem.op == "elementwise":
        wide = _columns(problem, rows)
        grain = schedule.rows * wide or _GRAIN
        return TaskCut(-(-rows * wide // min(grain, rows * wide)), 1)
    if problem.op == "attention":
        items, each = _key_heads(problem), _heads_each(problem)
        chunks = max(1, min(-(-rows // _QUERY_CHUNK), max(_FEWEST_TASKS, processors) // items))
        if schedule.rows:
            chunks = -(-rows // schedule.rows)
        parts = max(1, min(each, processors // (items * chunks)))
        if schedule.columns:
            parts = -(-each // schedule.columns)
        return TaskCut(chunks, parts, items)
    cut_product = _cut_nbits if problem.op == "gemm_nbits" else _cut_sparse
    return cut_product(problem, rows, schedule, isa, processors)


def _cut_sparse(
    problem: TaskProblem, rows: int, schedule: TaskSchedule, isa: str, processors: int
) -> TaskCut:
    """Mirrors ``run_gemm_block_sparse``."""
    panels, groups = -(-_columns(problem, rows) // PANEL), -(-rows // _GROUP)
    each = max(1, min(groups, _NEAR_FLOATS // _GROUP // max(_depth(problem, rows), 1)))
    if problem.weight_bytes <= _STREAMED_BYTES:
        each = 1
    if schedule.rows:
        each = min(groups, -(-schedule.rows // _GROUP))
    chunks = -(-groups // each)
    wanted = _TASKS_EACH * processors if processors > 1 else 1
    share = -(-panels // -(-wanted // chunks))
    per_task = -(-share // _TOGETHER) * _TOGETHER
    if schedule.columns:
        per_task = -(-schedule.columns // PANEL)
    return TaskCut(chunks, -(-panels // per_task))


def _cut_nbits(
    problem: TaskProblem, rows: int, schedule: TaskSchedule, isa: str, processors: int
) -> TaskCut:
    """Mirrors ``run_nbits_tiles``."""
    (mr, nv), panels = gemm_nbits_tile(isa), -(-_columns(problem, rows) // PANEL)
    tall = max(1, mr if problem.attributes["int8_rows"] else mr // 3)
    chunks = -(-rows // (schedule.rows or _ROWS_OF_TASK))
    each = -(-math.ceil(rows / chunks) // tall) * tall
    chunks = -(-rows // each)
    wanted = _TASKS_EACH * processors if processors > 1 else 1
    least = -(-_CODE_WORK // (PANEL * max(_depth(problem, rows), 1) * each))
    per_task = -(-min(panels, max(-(-panels * chunks // wanted), least)) // nv) * nv
    if schedule.columns:
        per_task = -(-schedule.columns // PANEL)
    return TaskCut(chunks, -(-panels // per_task))


# ---- the cost model --------------------------------------------------------------------


def modelled_us(case: Case, schedule: Schedule, isa: str, threads: int) -> float:
    """Predicted µs of one call on ``threads`` cores.

    The time is that of the slowest thread: its arithmetic, the work that each task repeats
    (packing keys or rows, reading weights), and a constant per task.
    """
    assert isinstance(schedule, TaskSchedule)
    problem, work = _problem(case), cut_into_tasks(case, schedule, isa)
    rounds = math.ceil(work.tasks / threads)
    share = rounds / work.tasks
    busy = max(_arithmetic_us(case, isa) * share, _transfer_us(case, problem, share))
    return busy + _again_us(case, problem, work) * share + TASK_US * rounds


def _arithmetic_us(case: Case, isa: str) -> float:
    """One core's time for all products and functions."""
    problem, topology = _problem(case), _problem(case).topology(case.rows)
    vectors = vectors_per_panel(isa)
    rate = units_of(isa) * _LANES / vectors * GHZ * 1e3  # multiply-adds per µs
    results = float(topology.batch * topology.m * topology.n)
    if problem.op == "elementwise":
        steps = problem.epilogue.steps if problem.epilogue else ()
        return results * sum(ELEMENTARY[s.op].flops for s in steps) / rate
    faster = 2.0 if topology.dtype != "f32" else 1.0
    products = topology.flops / 2 / (rate * faster * _EFFICIENCY)
    return products + (results * _SOFTMAX / rate if problem.op == "attention" else 0.0)


def _transfer_us(case: Case, problem: TaskProblem, share: float) -> float:
    """Reading and writing each operand once: weights cold, the others from a cache."""
    weights = problem.weight_bytes
    others = case.moved - (weights if problem.weight else 0)
    near = L2_GBS if others < L2_BYTES / 2 else L3_GBS
    return (weights / DRAM_GBS * max(share, 0.5) + others / near * share) * 1e-3


def _again_us(case: Case, problem: TaskProblem, work: TaskCut) -> float:
    """Time to pack keys and values in every task, or to read weights again for further rows.

    Sparse weights are streamed from the second-level cache during the arithmetic.  Packed rows of
    more than one group are read from there again, one vector for each vector of weights.
    """
    if problem.op == "attention":
        (k,), (v,) = problem.named["k"], problem.named["v"]
        floats = work.tasks / work.items * sum(_elements(box, case.rows) for box in (k, v))
        return 2 * 4 * floats / L2_GBS * 1e-3
    if problem.op == "elementwise":
        return 0.0
    far = problem.weight_bytes
    if problem.op != "gemm_block_sparse":
        return (work.rows - 1) * far / L3_GBS * 1e-3
    far = max(0, far - L2_BYTES)
    groups = -(-case.rows // _GROUP)
    packed = groups * problem.weight_bytes if work.rows < groups else 0
    return ((work.rows - 1) * far / L3_GBS + packed / L2_GBS) * 1e-3


# ---- sizes -----------------------------------------------------------------------------


def _elements(box: Strided, rows: int) -> int:
    return prod(evaluate(d, {ROWS: rows}) for d in box.dims)


def _columns(problem: TaskProblem, rows: int) -> int:
    """Columns of the results."""
    results = problem.named["y"]
    wide = [evaluate(y.dims[-1], {ROWS: rows}) for y in results]
    return wide[0] if problem.epilogue else sum(wide)


def _depth(problem: TaskProblem, rows: int) -> int:
    """Floats of a row of x; pairs of bf16 are one."""
    (x,) = problem.named["x"]
    return evaluate(x.dims[-1], {ROWS: rows}) // (2 if x.dtype == "BF16" else 1)


def _key_heads(problem: TaskProblem) -> int:
    """Independent heads of keys of all items."""
    (k,) = problem.named["k"]
    return evaluate(k.dims[0], {}) * evaluate(k.dims[1], {})


def _heads_each(problem: TaskProblem) -> int:
    """Heads of queries that share one of keys."""
    (q,), (k,) = problem.named["q"], problem.named["k"]
    return evaluate(q.dims[1], {}) // evaluate(k.dims[1], {})


def _problem(case: Case) -> TaskProblem:
    assert isinstance(case.problem, TaskProblem)
    return case.problem
