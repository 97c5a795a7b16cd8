"""Schedules of the CPU backend: tiling and tasks of one kernel call."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.kernels.program import Schedule

__all__ = ["GEMM_SCHEDULES", "TASK_SCHEDULES", "ConvSchedule", "GemmSchedule", "TaskSchedule"]


@dataclass(frozen=True)
class GemmSchedule(Schedule):
    """Blocking of one GEMM for up to ``max_rows`` rows; pure data.

    ``nr_panels``: 16-wide panels per register tile (0: as many as the kernel variant has).
    ``mc``: rows per task.  ``nc``: register-tile columns per task (0: automatic).
    ``prefetch``: 1 to prefetch the cache lines of the next panel.
    """

    max_rows: int
    nr_panels: int = 0
    mc: int = 128
    nc: int = 0
    prefetch: int = 1

    @property
    def text(self) -> str:
        width = f"tiles of {self.nr_panels} panels" if self.nr_panels else "widest tiles"
        group = f", {self.nc} columns per task" if self.nc else ""
        return f"{width}, {self.mc} rows per task{group}{', prefetch' if self.prefetch else ''}"


@dataclass(frozen=True)
class ConvSchedule(Schedule):
    """Tiling of one convolution of up to ``max_images`` images; 0 means that the library decides.

    * ``ow_tile``: outputs per row of a tile, at most those of the kernel variant
    * ``oh_tile``: 1 for tiles of one row only; else narrow images get tiles of two rows
    * ``ic_block``: input-channel blocks that are summed before sums are stored
    * ``h_tasks``: tasks along the tiles of one image; for Winograd, all threads share one task
    * ``oc_chunk``: register-tile columns of output channels per task

    Depthwise convolutions only use ``h_tasks`` and ``oc_chunk``, the number of neighboring tasks
    that a thread takes at once.
    """

    max_images: int = 2**31 - 1
    ow_tile: int = 0
    oh_tile: int = 0
    ic_block: int = 0
    h_tasks: int = 0
    oc_chunk: int = 0


@dataclass(frozen=True)
class TaskSchedule(Schedule):
    """Size of one task of a call of up to ``max_rows`` rows; 0 means that the library decides.

    * attention: ``rows`` queries and ``columns`` heads that share keys
    * products with sparse or few-bit weights: ``rows`` of x that are packed together, and
      ``columns`` of the result
    * elementwise expressions: ``rows``, each as long as the last axis
    """

    max_rows: int = 2**31 - 1
    rows: int = 0
    columns: int = 0


GEMM_SCHEDULES: tuple[GemmSchedule, ...] = (
    GemmSchedule(max_rows=4, prefetch=0),
    GemmSchedule(max_rows=32),
    GemmSchedule(max_rows=512, mc=256),
    GemmSchedule(max_rows=2**31 - 1, mc=256),
)
"""The policy's schedules by row count, used unless the tuner found better ones.

With up to four rows, reading the weights takes most of the time, and prefetching would slow it
down; with more, many rows share a pass over the weights.
"""

TASK_SCHEDULES: tuple[TaskSchedule, ...] = tuple(
    TaskSchedule(schedule.max_rows) for schedule in GEMM_SCHEDULES
)
"""The library's own choice, by the same ranges of row counts."""
