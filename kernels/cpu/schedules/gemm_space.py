"""The search space of matrix-product schedules, and their cost model.

Two schedules that lead to the same tiles and tasks (:class:`TaskDivision`) are one candidate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracea_graph.config import usable_processors
from tracea_graph.kernels.cpu.panels import PANEL
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules.core_constants import (
    DRAM_GBS,
    FMA_LATENCY,
    GHZ,
    HIDDEN,
    L3_GBS,
    TASK_US,
    units_of,
    vectors_per_panel,
)
from tracea_graph.kernels.cpu.schedules.gemm_problem import BYTES, IN_PAIRS, SPLIT, GemmProblem
from tracea_graph.kernels.cpu.variants import gemm_bf16_tile, gemm_int8_tile, gemm_tile
from tracea_graph.kernels.program import Schedule
from tracea_graph.policy import Config, ProcessorFamily, SearchSpace
from tracea_graph.tuning.tuning_problem import Case, default_schedule, row_class

__all__ = ["SEEDS", "TaskDivision", "divide_into_tasks", "modelled_us", "schedule_of", "space_of"]

MCS = (32, 64, 96, 128, 192, 256, 384, 512)
"""Rows per task to try besides the default, rounded to whole register tiles."""
NCS = (1, 2, 4, 8, 16, 32)
_ROWS_OF_TILES, _PANELS_IN_TILES, _ROWS_IN_VECTORS = 32, 2, 4
"""Matrix tiles multiply bytes in blocks of so many rows and panels; so few rows take vectors."""

SEEDS: tuple[tuple[Config, ...], ...] = (
    ({"columns": 8, "stages": 1},),
    ({"columns": 1}, {"tile_n": 2 * PANEL, "columns": 4}),
    ({"tile_m": 64}, {"columns": 4, "tile_m": 128}),
    ({"tile_m": 64},),
)
"""Configurations to measure first, per row class: they were fastest on some machine."""


_TASKS_EACH, _LEAST_ROWS, _IN_PLACE_ROWS, _SMALL = 4, 64, 8, 1e5
_PACK_FLOATS, _THIN_BLOCK, _NEAR_FLOATS, _DEPTH = 64 * 1024, 256, 192 * 1024, 2048
"""The runtime's constants, among them: tasks per processor, least rows of a chunk, multiply-adds
below which work is not divided, floats that stay in cache."""


@dataclass(frozen=True)
class TaskDivision:
    """How a schedule divides a product into tasks.

    ``columns`` is the number of register-tile columns, ``per_group`` those of one task; ``chunks``
    is the number of row ranges.  ``prefetch`` says whether the next weights are prefetched.
    """

    columns: int
    per_group: int
    chunks: int
    prefetch: bool

    @property
    def tasks(self) -> int:
        return -(-self.columns // self.per_group) * self.chunks


def divide_into_tasks(
    case: Case, schedule: GemmSchedule, isa: str, processors: int = usable_processors()
) -> TaskDivision:
    """The division of work that the library chooses for a case and a schedule.

    Mirrors ``divide_work`` in ``runtime/gemm.h`` on ``processors`` processors.
    """
    problem, rows = _product(case), case.rows
    widest = _tile(case, isa)[1]
    panels, plain = -(-problem.n // PANEL), problem.layout == "kn"
    width = min(schedule.nr_panels or widest, widest)
    small = rows * problem.n * _steps(problem) < _SMALL
    wanted = _TASKS_EACH * processors if processors > 1 and not small else 1
    chunks = -(-rows // schedule.mc)

    def tasks(group: int) -> int:
        return chunks * math.ceil(math.ceil(panels / width) / group)

    if not schedule.nc:
        while tasks(1) < wanted and rows // (2 * chunks) >= _LEAST_ROWS:
            chunks *= 2
        while not schedule.nr_panels and tasks(1) < min(wanted, processors) and width > 1:
            width -= 1
    columns = -(-panels // width)
    together = _together(case, columns, width)
    while together > 1 and tasks(together) < wanted:
        together //= 2
    group = min(schedule.nc or together, columns)
    if small:
        group = columns
    prefetch = bool(schedule.prefetch) and not plain and columns > 1
    return TaskDivision(columns, group, chunks, prefetch)


def _together(case: Case, columns: int, width: int) -> int:
    """Register-tile columns per task if there are enough tasks for all processors."""
    rows, k, layout = case.rows, _steps(_product(case)), _product(case).layout
    if layout == "kn":
        packed = _PACK_FLOATS // (width * PANEL * min(-(-k // PANEL) * PANEL, _THIN_BLOCK))
        return max(1, packed) if rows > _IN_PLACE_ROWS else 16
    if rows >= _LEAST_ROWS:
        cut = layout not in ("int16", BYTES) and k > _DEPTH and k * width * PANEL > _NEAR_FLOATS
        return 8 if cut else 1
    return min(max(columns // 4, 1), 2 if rows >= 32 else 4)


def space_of(case: Case, isa: str, on: ProcessorFamily | None = None) -> SearchSpace:
    """All schedules of a case with distinct divisions, the default first.

    * ``tile_n``: columns of a register tile (0: the widest)
    * ``tile_m``, ``columns``: rows and register tiles of a task (0: automatic)
    * ``stages``: 2 to prefetch the next weights

    The search starts with :data:`SEEDS` and with the rows per task recommended for the processor
    family ``on``.
    """
    mr, widest = _tile(case, isa)
    default, large = default_schedule(case), case.rows >= _LEAST_ROWS
    assert isinstance(default, GemmSchedule)
    known = on.known_good["square" if large else "flat"] if on else ()
    known_rows = [k["rows"] // mr * mr or mr for k in known if "rows" in k]
    chunks = [default.mc, *(r // mr * mr for r in (*MCS, *known_rows))]
    space = (
        SearchSpace()
        .tile_n([PANEL * panels for panels in range(widest)])
        .tile_m([c for c in chunks if c])
        .axis("columns", (0, *NCS))
        .stages((1 + default.prefetch, 2 - default.prefetch))
        .once(lambda config: divide_into_tasks(case, schedule_of(case, config), isa))
    )
    for seed in SEEDS[row_class(case.problem, case.rows)]:
        space = space.seed(**{**seed, **_whole_tiles(seed, mr)})
    for rows in known_rows:
        space = space.seed(tile_m=rows)
    return space


def _whole_tiles(seed: Config, mr: int) -> Config:
    rows = seed.get("tile_m", 0)
    return {"tile_m": rows // mr * mr} if rows else {}


def schedule_of(case: Case, config: Config) -> GemmSchedule:
    """Convert a configuration to a schedule of the case's row class."""
    default = default_schedule(case)
    assert isinstance(default, GemmSchedule)
    panels, prefetch = config["tile_n"] // PANEL, config["stages"] - 1
    return GemmSchedule(default.max_rows, panels, config["tile_m"], config["columns"], prefetch)


# ---- the cost model --------------------------------------------------------------------

_STREAM_ROWS = 4
"""Rows up to which a product is memory-bound, so that prefetches only slow it down."""
_PREFETCH_TOLL = 1.15
_LARGEST_TILE, _MATRIX_PACE = 16, 8
"""Largest row count of tiles in vector registers (matrix tiles are taller), and the speed of
matrix tiles relative to one vector unit."""


def modelled_us(case: Case, schedule: Schedule, isa: str, threads: int) -> float:
    """Predicted µs of one product on ``threads`` cores, with the weights not in cache.

    The time is that of the slowest thread: its compute time, the transfer of weights that
    computing does not hide, and rereading the weights for each further range of rows.
    """
    assert isinstance(schedule, GemmSchedule)
    work, problem = divide_into_tasks(case, schedule, isa), _product(case)
    share = math.ceil(work.tasks / threads) / work.tasks
    compute = _compute_us(case, work, isa) * share
    memory = problem.weight_bytes / DRAM_GBS * 1e-3 * max(share, 0.5)
    again = (work.chunks - 1) * problem.weight_bytes / L3_GBS * 1e-3 * share
    if case.rows <= _STREAM_ROWS:
        busy = max(compute, memory * (_PREFETCH_TOLL if work.prefetch else 1.0))
    elif work.prefetch:
        busy = max(compute, memory)
    else:
        busy = max(compute + memory * (1 - HIDDEN), memory)
    return busy + again + TASK_US * work.tasks * share


def _compute_us(case: Case, work: TaskDivision, isa: str) -> float:
    """One core's time for all register tiles, from the bottleneck of one step of k.

    That is the multiply-add units, two loads per cycle, or the latency of a multiply-add if the
    tile has too few accumulators.
    """
    problem = _product(case)
    mr, _ = _tile(case, isa)
    rows = case.rows / work.chunks
    blocks = math.ceil(rows / mr)
    height = rows / blocks
    width = problem.n / PANEL / work.columns * vectors_per_panel(isa)
    units = units_of(isa) * (_MATRIX_PACE if mr > _LARGEST_TILE else 1)
    cycles = max(height * width / units, (height + width) / 2, float(FMA_LATENCY))
    return work.chunks * blocks * work.columns * _steps(problem) * cycles / GHZ * 1e-3


def _tile(case: Case, isa: str) -> tuple[int, int]:
    """Rows and panels of the largest register tile that multiplies these weights.

    Mirrors ``multiply_bytes`` in ``runtime/gemm_tile.h``.
    """
    problem = _product(case)
    if problem.layout == BYTES:
        rows, panels = gemm_int8_tile(isa)
        on_tiles = rows == _ROWS_OF_TILES and case.rows > _ROWS_IN_VECTORS
        return rows, _PANELS_IN_TILES if on_tiles else panels
    return gemm_bf16_tile(isa) if problem.layout in ("vnni2", SPLIT) else gemm_tile(isa)


def _steps(problem: GemmProblem) -> int:
    """Steps of k; 16-bit elements are multiplied in pairs, bytes in fours."""
    if problem.layout == BYTES:
        return problem.k // 4
    return problem.k // 2 if problem.layout in IN_PAIRS else problem.k


def _product(case: Case) -> GemmProblem:
    assert isinstance(case.problem, GemmProblem)
    return case.problem
