"""The search space: legal drivers of one case, those worth measuring first.

A driver counts by what it comes to: two drivers that cut a case into the same tasks of the same
tiles are one candidate.  The cost model only ranks; what is kept is decided by measuring.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tracea_graph.config import usable_processors
from tracea_graph.kernels.variants import gemm_tile
from tracea_graph.ops.gemm import PANEL
from tracea_graph.ops.program import GemmDriver
from tracea_graph.passes.lower_gemm import DRIVERS
from tracea_graph.tuning.problem import Case, row_class

__all__ = ["HEROES", "Division", "candidates", "default_of", "divide", "legal", "modelled_us"]

ROW_CHUNKS = (32, 64, 96, 192, 256, 384, 512)
"""Rows per task to try besides the default's; rounded to whole register tiles."""
PANEL_GROUPS = (1, 2, 4, 8, 16, 32)

HEROES: tuple[tuple[GemmDriver, ...], ...] = (
    (GemmDriver(4, panel_group=8, prefetch=0),),
    (GemmDriver(32, panel_group=1), GemmDriver(32, tile_panels=2, panel_group=4)),
    (GemmDriver(512, row_chunk=64), GemmDriver(512, panel_group=4)),
    (GemmDriver(2**31 - 1, row_chunk=64), GemmDriver(2**31 - 1, row_chunk=256)),
)
"""Per row class, drivers that won before on some machine: measured first."""


_TASKS_EACH, _LEAST_ROWS, _IN_PLACE_ROWS = 4, 64, 8
_PACK_FLOATS, _THIN_BLOCK, _NEAR_FLOATS = 64 * 1024, 256, 192 * 1024
"""The runtime's constants: tasks per processor, rows a chunk keeps, floats that stay near."""


@dataclass(frozen=True)
class Division:
    """What a driver comes to: register-tile columns, columns per task, row chunks, prefetching."""

    columns: int
    per_group: int
    chunks: int
    prefetch: bool

    @property
    def tasks(self) -> int:
        return -(-self.columns // self.per_group) * self.chunks


def divide(
    case: Case, driver: GemmDriver, isa: str, processors: int = usable_processors()
) -> Division:
    """How the library divides the work of a case under a driver (``divide_work`` in
    ``runtime_gemm.h``) on a machine of so many processors."""
    widest = gemm_tile(isa)[1]
    panels, rows, plain = -(-case.problem.n // PANEL), case.rows, case.problem.layout != "panels"
    width, wanted = min(driver.tile_panels or widest, widest), _TASKS_EACH * processors
    wanted = wanted if processors > 1 else 1
    chunks = -(-rows // driver.row_chunk)

    def tasks(group: int) -> int:
        return chunks * math.ceil(math.ceil(panels / width) / group)

    if not driver.panel_group:
        while tasks(1) < wanted and rows // (2 * chunks) >= _LEAST_ROWS:
            chunks *= 2
        while not driver.tile_panels and tasks(1) < processors and width > 1:
            width -= 1
    columns = -(-panels // width)
    together = _together(case, columns, width)
    while together > 1 and tasks(together) < wanted:
        together //= 2
    group = min(driver.panel_group or together, columns)
    if rows * case.problem.n * case.problem.k < 1e5:
        group = columns
    prefetch = bool(driver.prefetch) and not plain and columns > 1
    return Division(columns, group, chunks, prefetch)


def _together(case: Case, columns: int, width: int) -> int:
    """Columns a task would take if there were tasks enough."""
    rows, k = case.rows, case.problem.k
    if case.problem.layout == "kn":
        packed = _PACK_FLOATS // (width * PANEL * min(-(-k // PANEL) * PANEL, _THIN_BLOCK))
        return max(1, packed) if rows > _IN_PLACE_ROWS else 16
    if rows >= _LEAST_ROWS:
        return 8 if k * width * PANEL > _NEAR_FLOATS else 1
    return min(max(columns // 4, 1), 2 if rows >= 32 else 4)


def default_of(case: Case) -> GemmDriver:
    """The driver of the case's row class that a candidate has to beat."""
    return DRIVERS[row_class(case.rows)]


def legal(case: Case, isa: str) -> Iterator[GemmDriver]:
    """Every driver worth telling apart, the default first; each division of the work once."""
    mr, widest = gemm_tile(isa)
    default = default_of(case)
    chunks = [default.row_chunk, *(c // mr * mr for c in ROW_CHUNKS if c // mr * mr)]
    widths, prefetches = (0, *range(1, widest)), (default.prefetch, 1 - default.prefetch)
    axes = product(widths, chunks, (0, *PANEL_GROUPS), prefetches)
    seen: set[Division] = set()
    for tile_panels, row_chunk, panel_group, prefetch in axes:
        driver = GemmDriver(default.max_rows, tile_panels, row_chunk, panel_group, prefetch)
        division = divide(case, driver, isa)
        if division not in seen:
            seen.add(division)
            yield driver


def candidates(case: Case, isa: str, threads: Sequence[int], limit: int) -> list[GemmDriver]:
    """The challengers to measure, at most ``limit``: heroes, then by modelled time.

    Ties are broken by the order of :func:`legal`; the default is not among them.
    """
    default = default_of(case)
    known = {divide(case, driver, isa): driver for driver in legal(case, isa)}
    known.pop(divide(case, default, isa))
    heroes = dict.fromkeys(divide(case, hero, isa) for hero in HEROES[row_class(case.rows)])
    first = [known.pop(d) for d in heroes if d in known]
    rest = sorted(known.values(), key=lambda d: _total_us(case, d, isa, threads))
    return [*first, *rest][:limit]


def _total_us(case: Case, driver: GemmDriver, isa: str, threads: Sequence[int]) -> float:
    """Modelled times relative to the default's, over all thread counts."""
    default = default_of(case)
    return sum(
        modelled_us(case, driver, isa, t) / modelled_us(case, default, isa, t) for t in threads
    )


# ---- the cost model --------------------------------------------------------------------

_GHZ = 4.0
_FMA_LATENCY = 4
_DRAM_GBS = 30.0
"""One core's share of memory bandwidth."""
_L3_GBS = 60.0
_HIDDEN = 0.6
"""Share of the memory time that the processor hides without being told what comes next."""
_STREAM_ROWS = 4
"""Up to so many rows a product runs at memory speed, and prefetches only stand in the way."""
_PREFETCH_TOLL = 1.15
_TASK_US = 0.15


def modelled_us(case: Case, driver: GemmDriver, isa: str, threads: int) -> float:
    """Predicted µs of one product on ``threads`` cores, weights cold.

    The slowest thread's share of the compute time, with what of the weights' transfer it does
    not hide, plus reading the weights again for each further row chunk.
    """
    work, problem = divide(case, driver, isa), case.problem
    share = math.ceil(work.tasks / threads) / work.tasks
    compute = _compute_us(case, work, isa) * share
    memory = problem.weight_bytes / _DRAM_GBS * 1e-3 * max(share, 0.5)
    again = (work.chunks - 1) * problem.weight_bytes / _L3_GBS * 1e-3 * share
    if case.rows <= _STREAM_ROWS:
        busy = max(compute, memory * (_PREFETCH_TOLL if work.prefetch else 1.0))
    elif work.prefetch:
        busy = max(compute, memory)
    else:
        busy = max(compute + memory * (1 - _HIDDEN), memory)
    return busy + again + _TASK_US * work.tasks * share


def _compute_us(case: Case, work: Division, isa: str) -> float:
    """One core's time for all register tiles, from what limits one step of k.

    Two multiply-adds and two loads a cycle; fewer accumulators than latency times two stall.
    """
    mr, _ = gemm_tile(isa)
    rows = case.rows / work.chunks
    blocks = math.ceil(rows / mr)
    height = rows / blocks
    width = case.problem.n / PANEL / work.columns * _vectors(isa)
    cycles = max(height * width / 2, (height + width) / 2, float(_FMA_LATENCY))
    return work.chunks * blocks * work.columns * case.problem.k * cycles / _GHZ * 1e-3


def _vectors(isa: str) -> int:
    """Vectors per 16-wide panel."""
    return {"scalar": 16, "avx2": 2}.get(isa, 1)
