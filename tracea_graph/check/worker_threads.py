"""Where the threads of a session run.

ONNX Runtime pins the threads of a session that has a thread for each core, as sessions have unless
they are told a number, and leaves those of others to the system.  Beside another process that
keeps a core busy, the system now and then puts all threads of one session on the other core for
the whole of a race: it then takes thrice as long as those it is compared with.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["affinities"]

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def affinities(threads: int, siblings: str = _SIBLINGS) -> str:
    """A core for each thread but the caller's, as ``session.intra_op_thread_affinities`` has it.

    Empty for one thread, or more than this process has cores.
    """
    mine = os.sched_getaffinity(0)
    cores = sorted({tuple(sorted(_core(Path(siblings.format(p)), p) & mine)) for p in mine})
    if not 1 < threads <= len(cores):
        return ""
    return ";".join(",".join(str(p + 1) for p in core) for core in cores[1:threads])


def _core(siblings: Path, processor: int) -> set[int]:
    """The processors of a core, of a list such as ``0-1,8``; the one alone if it is not told."""
    try:
        text = siblings.read_text("ascii").strip()
    except OSError:
        return {processor}
    ranges = ([*map(int, part.split("-"))] for part in text.split(",") if part)
    return {p for bounds in ranges for p in range(bounds[0], bounds[-1] + 1)}
