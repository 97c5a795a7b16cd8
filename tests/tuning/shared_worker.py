"""A worker on a machine whose races take a known time; writes a line as each one begins."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tracea_graph.check.timing import Race
from tracea_graph.ops.program import GemmDriver
from tracea_graph.tuning import Case, Problem, Task, Tuner, TuningCache
from tracea_graph.tuning.together import help_others


class Slow:
    """One row chunk is 1.3 times as fast; every race takes a while."""

    seconds = 0.15

    def race(
        self, case: Case, a: GemmDriver, b: GemmDriver, threads: int, pairs: int, seconds: float
    ) -> Race:
        sys.stdout.write(f"race {case.rows} {b}\n")
        sys.stdout.flush()
        time.sleep(self.seconds)
        return Race((1.3,) * pairs, (1.0 if b.row_chunk == 64 else 1.31,) * pairs)


@contextmanager
def opened(task: Task, cache: Path, machine: str, kind: type[Slow] = Slow) -> Iterator[Tuner]:
    @contextmanager
    def stand(problems: Sequence[Problem]) -> Iterator[Slow]:
        yield kind()

    with TuningCache(cache) as found:
        yield Tuner(
            found, stand, isa="avx512", threads=task.threads, facts={"machine": machine}, limit=12
        )


def main() -> None:
    url, cache, machine = sys.argv[1:4]
    Slow.seconds = float(sys.argv[4])
    task = Task((), budget=500.0, storage=url, lost_after=3.0)

    def make(own: Task) -> AbstractContextManager[Tuner]:
        return opened(own, Path(cache), machine)

    help_others(task, make, idle=3.0)


if __name__ == "__main__":
    main()
