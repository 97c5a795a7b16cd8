"""A worker on a machine whose comparisons need no time; writes a line as each one begins.

    python shared_worker.py STORAGE CACHE MACHINE [FOLDER COUNT ends|works]

Each of ``COUNT`` workers waits in its first comparison for all others; one that ``ends`` stays.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.kernels.cpu.backend import CPU
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.target import BACKENDS
from tracea_graph.tuning import Case, Problem, Tunable, Tuner, TuningCache, TuningOptions
from tracea_graph.tuning.distributed_tuning import run_published_trials


class Machine:
    """One row chunk is 1.3 times as fast; ``began`` is called when a comparison has begun."""

    began: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def compare(
        self,
        case: Case,
        a: GemmSchedule,
        b: GemmSchedule,
        threads: int,
        pairs: int,
        seconds: float,
    ) -> PairedTimes:
        sys.stdout.write(f"compare {case.rows} {b}\n")
        sys.stdout.flush()
        self.began()
        return PairedTimes((1.3,) * pairs, (1.0 if b.mc == 64 else 1.31,) * pairs)


@contextmanager
def opened(options: TuningOptions, cache: Path, machine: str) -> Iterator[Tuner]:
    @contextmanager
    def fixture(problems: Sequence[Problem]) -> Iterator[Machine]:
        yield Machine()

    with TuningCache(cache) as found:
        yield Tuner(
            found,
            fixture,
            schedule_space=SCHEDULE_SPACE,
            level="avx512",
            threads=options.threads,
            facts={"machine": machine},
            limit=12,
            backend=CPU.name,
        )


def meet(place: Path, count: int, ends: bool) -> None:
    """Wait until so many workers have come here, and for ever if this one ends here."""
    (place / str(os.getpid())).touch()
    while ends or len([*place.iterdir()]) < count:
        time.sleep(0.02)


def main() -> None:
    url, cache, machine = sys.argv[1:4]
    if len(sys.argv) > 4:
        place, count, then = sys.argv[4:]
        Machine.began = staticmethod(partial(meet, Path(place), int(count), then == "ends"))
    options = TuningOptions((), budget=1e4, storage=url, lost_after=3.0)

    def make(own: TuningOptions, backend: Tunable) -> AbstractContextManager[Tuner]:
        return opened(own, Path(cache), machine)

    run_published_trials(options, BACKENDS, make, idle=3.0)


if __name__ == "__main__":
    main()
