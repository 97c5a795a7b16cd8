"""The search space of convolution schedules, and their cost model.

Two schedules that lead to the same tiles and tasks (:class:`TaskGrid`) are one candidate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tracea_graph.config import usable_processors
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.schedule import ConvSchedule
from tracea_graph.kernels.cpu.schedules.conv_problem import BLOCK, ConvProblem
from tracea_graph.kernels.cpu.schedules.core_constants import (
    DRAM_GBS,
    FMA_LATENCY,
    GHZ,
    HIDDEN,
    L2_BYTES,
    L2_GBS,
    L3_GBS,
    TASK_US,
    units_of,
    vectors_per_panel,
)
from tracea_graph.kernels.cpu.variants import conv_bf16_tile, conv_tile
from tracea_graph.kernels.program import Schedule
from tracea_graph.policy import Config, ProcessorFamily, SearchSpace
from tracea_graph.tuning.tuning_problem import Case

__all__ = ["TaskGrid", "divide_into_tasks", "modelled_us", "schedule_of", "space_of"]

_H_TASKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_COLUMNS = (1, 2, 4, 8)
_PARTS = (1, 2, 4, 8, 16, 32)
_NARROWER = 4
"""Number of narrower tiles to try, each one output narrower than the one before."""
_SEEDS = ({"h_tasks": 1}, {"oc_chunk": 1}, {"h_tasks": 4}, {"h_tasks": 1, "oc_chunk": 1})
"""Coarse and fine cuts, for cases where the library's rule chooses badly."""

_TASK_INPUT_BYTES, _SMALL_INPUT, _PANEL_BYTES = 256 << 10, 1 << 20, 256 << 10
_TASK_BUFFERS, _TASK_WORK, _TASKS_EACH, _BRIEF_SUM = 512 << 10, 1e6, 4, 32
_SHARED_WORK, _NEARER, _WHOLE_RUN = _TASK_WORK / 8, 2, 256
_LINE_TASK, _LINE_UNITS, _OWN_LINES = 64 << 10, 16 << 10, 256
"""The runtime's constants (``runtime/conv_tiling.h``, ``winograd.h``, ``depthwise.h``)."""


@dataclass(frozen=True)
class TaskGrid:
    """The tiles and tasks that a schedule leads to.

    * ``lines``, ``pixels``: rows and outputs per row of the largest tile
    * ``tiles``: tiles per image; rows of tiles for Winograd, where all threads share a single task
    * ``part``: input-channel blocks that are summed before sums are stored
    * ``h_tasks``: tasks along an image
    * ``columns``: register-tile columns of output channels; ``per_task``: those of one task
    """

    lines: int
    pixels: int
    tiles: int
    part: int
    h_tasks: int
    columns: int
    per_task: int

    @property
    def chunks(self) -> int:
        return -(-self.columns // self.per_task)


def space_of(case: Case, isa: str, on: ProcessorFamily | None = None) -> SearchSpace:
    """Return all schedules that divide a case into different tasks, the library's choice first.

    The search starts with coarse and fine divisions, and with those that suit the caches of the
    processor family ``on``.
    """
    problem = _convolution(case)
    h_tasks = [b for b in _H_TASKS if b <= _tile_rows(problem)]
    space = SearchSpace().axis("h_tasks", (0, *h_tasks))
    if problem.depthwise:
        space = space.axis("oc_chunk", (0, *_COLUMNS))
    elif not problem.winograd:
        pixels, nv = _tile(problem, isa)
        narrower = [p for p in range(pixels - 1, pixels - 1 - _NARROWER, -1) if p > 0]
        blocks, columns = problem.weights[1], -(-problem.y.dims[0] // nv)
        space = (
            space.axis("oc_chunk", (0, *(c for c in _COLUMNS if c <= columns)))
            .axis("ow_tile", (0, *narrower))
            .axis("oh_tile", (0, 1))
        )
        if problem.multiplies != "int16":  # the kernel's sums decide
            space = space.axis("ic_block", (0, *(p for p in _PARTS if p < blocks), blocks))
    for seed in (*_known_good(problem, isa, on), *_SEEDS):
        if seed.keys() <= dict(space.axes).keys():
            space = space.seed(**seed)
    return space.once(lambda config: divide_into_tasks(case, schedule_of(case, config), isa))


def _known_good(problem: ConvProblem, isa: str, on: ProcessorFamily | None) -> Iterator[Config]:
    """Yield cuts whose tasks keep their input in half of L2, and their filters in a quarter."""
    if on is None:
        return
    images = problem.x.span * DType[problem.x.dtype].size
    tasks = _nearest([t for t in _H_TASKS if t <= _tile_rows(problem)], images / (on.far / 2))
    yield {"h_tasks": tasks}
    if problem.winograd or problem.depthwise:
        return
    blocks, columns = problem.weights[1], -(-problem.y.dims[0] // _tile(problem, isa)[1])
    column = problem.weight_bytes / columns
    yield {"ic_block": _nearest([*_PARTS, blocks], on.far / 4 / (column / blocks))}
    yield {"h_tasks": tasks, "oc_chunk": _nearest(_COLUMNS, on.far / 4 / column)}


def _nearest(values: Sequence[int], wanted: float) -> int:
    """Return the largest value that is not above ``wanted``, or the smallest."""
    return max((v for v in values if v <= wanted), default=min(values))


def schedule_of(case: Case, config: Config) -> ConvSchedule:
    """Convert a configuration to a schedule for any number of images."""
    return ConvSchedule(**config)


def divide_into_tasks(
    case: Case, schedule: ConvSchedule, isa: str, processors: int = usable_processors()
) -> TaskGrid:
    """The tiles and tasks that the library chooses on ``processors`` processors.

    Mirrors ``divide_conv`` in ``runtime/conv_tiling.h`` and ``run_winograd`` in
    ``runtime/winograd.h``.
    """
    problem = _convolution(case)
    if problem.winograd:
        return _winograd_grid(problem, schedule)
    if problem.depthwise:
        return _depthwise_grid(case, problem, schedule, processors)
    most_pixels, nv = _tile(problem, isa)
    height, width = _lines(problem)
    small = _brief(problem, isa)
    widest = min(schedule.ow_tile or most_pixels // (2 if small else 1), most_pixels)
    nv = 1 if small and problem.multiplies == "bf16" else nv
    lines = 2 if width <= most_pixels // 2 and height > 1 and schedule.oh_tile != 1 else 1
    across, units = -(-width // widest), -(-height // lines)
    blocks, per_group = problem.weights[1], problem.y.dims[0] // problem.groups
    columns = problem.groups * -(-per_group // nv)
    w_block = prod(problem.weights[2:]) // (2 if problem.paired else 1)  # in floats
    parts = max(1, _PANEL_BYTES // (w_block * nv * 4))
    part = min(schedule.ic_block, blocks) if schedule.ic_block else parts
    part = -(-blocks // -(-blocks // part))
    if problem.y.dtype == "BF16":
        part = blocks
    if problem.multiplies == "int16":
        part = max(1, _WHOLE_RUN // BLOCK // prod(problem.window))
    tiles, weights = units * across, problem.y.dims[0] * blocks * w_block * 4
    inside = 4 * blocks * problem.groups * height * problem.strides[0] * width * _step(problem)
    h_tasks = 1
    if columns > 1 and (inside > _SMALL_INPUT or weights < inside):
        h_tasks = -(-inside // _TASK_INPUT_BYTES)
    h_tasks = max(1, min(h_tasks, tiles // 4))
    if h_tasks >= processors:
        h_tasks = min(tiles, -(-h_tasks // processors) * processors)
    h_tasks = min(schedule.h_tasks, tiles) if schedule.h_tasks else h_tasks
    work = float(tiles) * widest * weights / 4
    wanted = min(_TASKS_EACH * processors, int(work / _TASK_WORK))
    busy = wanted >= processors  # the same number of tasks for each processor
    if busy:
        wanted = -(-wanted // processors) * processors
    own = processors > 1 and case.rows % processors > 0 and tiles >= processors
    own = own and work >= _SHARED_WORK and (units == 1 or tiles >= 3 * processors)
    if own and weights < _NEARER * inside and not schedule.h_tasks and not schedule.oc_chunk:
        if units == 1:  # the same number of tiles for each thread
            across = min(width, -(-across // processors) * processors)
        h_tasks = min(units * across, -(-h_tasks // processors) * processors)
        chunks = min(-(-wanted // (case.rows * h_tasks)), columns)
        per_task = -(-columns // max(1, chunks))
        return TaskGrid(
            lines, -(-width // across), units * across, part, h_tasks, columns, per_task
        )
    shared = max(case.rows * h_tasks, 1)
    wide = -(-wanted // shared)
    while busy and wide < columns and shared * wide % processors:
        wide += 1
    per_task = -(-columns // max(1, min(wide, columns)))
    per_task = min(schedule.oc_chunk, columns) if schedule.oc_chunk else per_task
    chunks = -(-columns // per_task)
    tasks = case.rows * h_tasks * chunks
    if not schedule.h_tasks and tasks < min(wanted, 2 * processors):
        h_tasks = max(h_tasks, min(tiles, -(-wanted // (case.rows * chunks))))
    return TaskGrid(lines, -(-width // across), tiles, part, h_tasks, columns, per_task)


def _winograd_grid(problem: ConvProblem, schedule: ConvSchedule) -> TaskGrid:
    rows = _tile_rows(problem)
    row_bytes = _buffer_bytes(problem) // rows
    if schedule.h_tasks:
        h_tasks = min(schedule.h_tasks, rows)
    elif problem.weight_bytes > row_bytes * rows:
        h_tasks = 1
    else:
        h_tasks = -(-rows // min(rows, max(1, _TASK_BUFFERS // row_bytes)))
    h_tasks = -(-rows // -(-rows // h_tasks))  # evenly, in whole rows
    return TaskGrid(1, problem.winograd, rows, problem.x.dims[0], h_tasks, 1, 1)


def _depthwise_grid(
    case: Case, problem: ConvProblem, schedule: ConvSchedule, processors: int
) -> TaskGrid:
    """Lines of one block of channels, and neighboring tasks; mirrors ``runtime/depthwise.h``."""
    (height, width), blocks = problem.outputs, problem.y.dims[0]
    line = width * prod(problem.window)
    lines = max(1, _LINE_TASK // line)
    if schedule.h_tasks:
        lines = -(-height // min(schedule.h_tasks, height))
    ranges = -(-height // min(height, lines))
    large = height * width >= _OWN_LINES * processors
    if processors > 1 and case.rows % processors and large:
        ranges = min(height, -(-ranges // processors) * processors)
    rows = -(-height // ranges)
    ranges = -(-height // rows)
    tasks = blocks * ranges * case.rows
    together = min(tasks, max(1, schedule.oc_chunk or _LINE_UNITS // (rows * line)))
    return TaskGrid(1, width, height, 1, ranges, blocks, together)


def _tile_rows(problem: ConvProblem) -> int:
    """The number of rows of tiles of one image, which is the most tasks it can have."""
    if problem.depthwise:
        return problem.outputs[0]
    if problem.winograd:
        return -(-problem.outputs[0] // problem.winograd)
    return max(1, prod(problem.outputs) // 4)


def _buffer_bytes(problem: ConvProblem) -> int:
    """Bytes of the transformed input and of the products of one image."""
    m, (height, width) = problem.winograd, problem.outputs
    pixel = 4 * (problem.x.dims[0] * problem.x.dims[3] // (2 if problem.paired else 1)
                 + problem.y.dims[0] * BLOCK)  # fmt: skip
    return -(-height // m) * -(-width // m) * (m + 2) ** 2 * pixel


def _lines(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of the output as the library tiles them.

    A pointwise convolution whose rows are contiguous is tiled as a single row.
    """
    height, width = problem.outputs
    stride_h, stride_w = problem.strides
    row, boxes = width * BLOCK, (problem.y, *([problem.add] if problem.add else []))
    joined = (
        (*problem.window, stride_h, stride_w) == (1, 1, 1, 1)
        and height > 1
        and not any(problem.attributes["halo"])
        and problem.x.dims[2] == width
        and problem.x.strides[2] == row
        and all(box.strides[2] == row for box in boxes)
        and all(box.strides[2] == box.strides[3] * width for box in problem.epilogue_inputs)
    )
    return (1, height * width) if joined else (height, width)


def _tile(problem: ConvProblem, isa: str) -> tuple[int, int]:
    """Outputs and channel blocks of the largest register tile."""
    return (conv_bf16_tile if problem.multiplies in ("bf16", "bf16x2") else conv_tile)(isa)


def _brief(problem: ConvProblem, isa: str) -> bool:
    """Whether sums are short; mirrors ``brief`` in ``runtime/conv_tiling.h``."""
    sums = BLOCK * prod(problem.weights[1:4])
    half_tile = problem.groups == 1 and problem.attributes["oc_tail"] <= BLOCK // 2
    whole = _tile(problem, isa) == conv_tile(isa)
    alone = problem.epilogue is None and not half_tile
    return sums <= _BRIEF_SUM and alone and conv_tile(isa)[1] > 1 and whole


def _step(problem: ConvProblem) -> int:
    """Floats between the inputs of two adjacent outputs of a row."""
    return problem.strides[1] * problem.x.dims[3] // (2 if problem.paired else 1)


# ---- the cost model --------------------------------------------------------------------


def modelled_us(case: Case, schedule: Schedule, isa: str, threads: int) -> float:
    """Predicted µs of one convolution on ``threads`` cores, with the filters not in cache.

    The time is that of the slowest thread: its compute time, the transfers that computing does not
    hide, and what is read again, which is filters for each further task and the input for each
    further column of output channels.
    """
    assert isinstance(schedule, ConvSchedule)
    problem, work = _convolution(case), divide_into_tasks(case, schedule, isa)
    if problem.winograd:
        return _winograd_us(case, problem, work, isa, threads)
    if problem.depthwise:
        return _depthwise_us(case, problem, work, isa, threads)
    tasks = case.rows * work.h_tasks * work.chunks
    share = math.ceil(tasks / threads) / tasks
    size = DType[problem.x.dtype].size
    h_task = problem.x.span * size / work.h_tasks
    near = L2_GBS if h_task < L2_BYTES / 2 else L3_GBS
    reads = case.rows * (work.columns - 1) * problem.x.span * size / near
    weights = (case.rows * work.h_tasks - 1) * problem.weight_bytes / L3_GBS
    sums = 2 * (-(-problem.weights[1] // work.part) - 1) * problem.y.span * 4 * case.rows / near
    compute = _direct_us(case, problem, work, isa) * share
    memory = problem.weight_bytes / DRAM_GBS * 1e-3 * max(share, 0.5)
    again = (weights + (reads + sums) * (1 - HIDDEN)) * 1e-3 * share
    return max(compute + memory * (1 - HIDDEN), memory) + again + TASK_US * tasks * share


def _direct_us(case: Case, problem: ConvProblem, work: TaskGrid, isa: str) -> float:
    """One core's time for all register tiles; see ``gemm_space``."""
    _, nv = _tile(problem, isa)
    wide = min(nv, problem.y.dims[0] / work.columns) * vectors_per_panel(isa)
    outputs = prod(_lines(problem)) / work.tiles
    cycles = max(outputs * wide / units_of(isa), (outputs + wide) / 2, float(FMA_LATENCY))
    steps = prod(problem.weights[1:5])
    return case.rows * work.tiles * work.columns * steps * cycles / GHZ * 1e-3


def _winograd_us(
    case: Case, problem: ConvProblem, work: TaskGrid, isa: str, threads: int
) -> float:
    """Predicted µs of the planes' products and of moving buffers (L3 if too large) and filters."""
    tiles = prod(-(-side // problem.winograd) for side in problem.outputs)
    steps = prod(problem.weights[:1]) * problem.weights[2] * problem.weights[3]
    cycles = case.rows * tiles * steps * problem.y.dims[0] * vectors_per_panel(isa) / units_of(isa)
    tasks = case.rows * work.h_tasks
    shared = work.h_tasks == 1
    share = 1 / threads if shared else math.ceil(tasks / threads) / tasks
    buffers = _buffer_bytes(problem)
    each = buffers / work.h_tasks / (threads if shared else 1)
    moved = 2 * case.rows * buffers / (L2_GBS if each < L2_BYTES / 2 else L3_GBS)
    weights = (tasks - 1) * problem.weight_bytes / L3_GBS
    memory = problem.weight_bytes / DRAM_GBS * (1 - HIDDEN) * max(share, 0.5)
    busy = cycles / GHZ * share + (moved + weights) * share + memory
    return busy * 1e-3 + TASK_US * (3 * threads if shared else tasks * share)


def _depthwise_us(
    case: Case, problem: ConvProblem, work: TaskGrid, isa: str, threads: int
) -> float:
    """Predicted µs: two loads a multiply-add, or the transfer of both images."""
    tasks = -(-case.rows * work.h_tasks * work.columns // work.per_task)
    share = math.ceil(tasks / threads) / tasks
    steps = case.rows * prod(problem.outputs) * prod(problem.window) * work.columns
    cycles = steps * vectors_per_panel(isa) / min(1.0, units_of(isa))
    moved = case.problem.moved(case.rows) / L3_GBS
    return max(cycles / GHZ, moved) * 1e-3 * share + TASK_US * tasks * share


def _convolution(case: Case) -> ConvProblem:
    assert isinstance(case.problem, ConvProblem)
    return case.problem
