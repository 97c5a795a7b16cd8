"""Replace calls by the parts of one call that stands for all of them (``composed_calls.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.kernels.gpu.composed_kernels import COMPOSED
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program import Call

__all__ = ["replace_by_parts", "stands_for"]


def stands_for(made: Call, parts: Sequence[str], calls: Sequence[Call]) -> bool:
    """Whether the ``parts`` of a call are these calls, one by one."""
    part_of = COMPOSED[made.op].part_of
    pairs = zip(parts, calls, strict=True)
    return all(part_of(_as_part(made, part, call)) == call for part, call in pairs)


def replace_by_parts(
    w: GpuProgramWriter, made: Call, parts: Sequence[str], calls: Sequence[Call]
) -> int:
    """Replace calls by the ``parts`` of one call; return the number of the last part."""
    at = -1
    for part, call in zip(parts, calls, strict=True):
        at = next(i for i, one in enumerate(w.calls) if one is call)
        w.calls[at] = _as_part(made, part, call)
    return at


def _as_part(call: Call, part: str, own: Call) -> Call:
    """Return a call as the ``part`` that replaces its ``own`` call."""
    return replace(call.having(part=part), step=own.step)
