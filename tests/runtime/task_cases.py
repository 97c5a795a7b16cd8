"""Cases whose last call is cut into tasks of given sizes: what they compute does not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.runtime.support import Case
from tracea_graph.kernels.cpu.schedule import TaskSchedule

__all__ = ["in_tasks", "task_cases"]

_CUTS: dict[str, tuple[tuple[int, int], ...]] = {
    "attention_boolean": ((32, 0), (7, 1), (1 << 20, 2)),
    "attention_band": ((100, 0),),
    "attention_ordered_60_of_400": ((16, 1),),
    "attention_near_masked_700_of_700": ((50, 0),),
    "attention_1_of_300": ((0, 1), (1, 0)),
    "attention_tiles_130_of_150": ((33, 1),),
    "attention_placed_chunk": ((3, 1),),
    "blocks_70x150x257_by_16": ((16, 16), (50, 80), (0, 1 << 20)),
    "blocks_bf16_70x150x258_by_16": ((33, 48),),
    "blocks_chain": ((16, 16),),
    "blocks_1x33x128_by_4": ((1, 16),),
    "nbits_40x515x200_4_256_float_int8": ((16, 16), (1, 48)),
    "nbits_1x300x97_2_64_middle": ((0, 32),),
    "nbits_130x200x160_8_16_integer_int8_parts": ((100, 96),),
    "elementwise_large": ((1, 0), (1 << 20, 0)),
    "elementwise_batched": ((5, 0), (1000, 0)),
    "elementwise_narrow": ((3, 0),),
    "staged_channels": ((3, 0),),
    "staged_turned": ((9, 0),),
}
"""Rows and columns of a task by the case that is cut so."""


def task_cases(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The cases named above, under each of their cuts."""
    known = {case.name: case for case in cases}
    return tuple(
        in_tasks(known[name], TaskSchedule(2**31 - 1, rows, columns))
        for name, cuts in _CUTS.items()
        for rows, columns in cuts
    )


def in_tasks(case: Case, schedule: TaskSchedule) -> Case:
    """The case with a schedule of its last call, behind one for no rows."""
    *calls, last = case.program.calls
    small = TaskSchedule(0, 1, 1)  # for no call
    calls.append(replace(last, schedules=(small, schedule)))
    name = f"{case.name}_cut_{schedule.rows}x{schedule.columns}"
    return replace(case, name=name, program=replace(case.program, calls=tuple(calls)))
