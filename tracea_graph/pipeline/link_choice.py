"""Measure whether what the cost model chose to separate calls is faster than the library's limit.

A call's threads wait for each other or for rows (``kernels/cpu/call_links.py``).  Both plans run
in the same library and give the same bits, so only times decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tracea_graph.check.paired_benchmark import ModelWithLibrary, PairedBenchmark
from tracea_graph.check.worker_process import Worker
from tracea_graph.errors import OutOfTime, WorkerError
from tracea_graph.pipeline.candidate_models import BuiltModel, CandidateBuilder
from tracea_graph.pipeline.model_inputs import Feed

__all__ = ["faster_links"]

_SHARE, _MOST_SECONDS = 0.05, 4.0
"""Limits of the measurement: share of the time left, seconds."""


def faster_links(
    candidate: BuiltModel,
    builder: CandidateBuilder,
    dropped: frozenset[str],
    feeds: Mapping[str, Feed],
    threads: int,
    seconds: float,
    benchmark: Callable[..., PairedBenchmark] = PairedBenchmark,
) -> tuple[BuiltModel, str]:
    """Return the candidate, or one that leaves links to the library; and a note.

    Both are timed in pairs on ``threads`` threads at all sizes.  The library decides if that is
    clearly faster at one of them and nowhere slower.  The note is empty if nothing was to measure:
    no barrier that was chosen is in effect on so many threads, or there is no time.  ``builder``
    then makes plans of the kind that was chosen.
    """
    calls = (call for item in candidate.assembly.placed for call in item.program.calls)
    barriers = [call.barrier_from for call in calls if call.barrier_from]
    seconds = min(_SHARE * seconds, _MOST_SECONDS)
    if not feeds or candidate.library is None or min(barriers, default=threads + 1) > threads:
        return candidate, ""
    builder.links = False
    try:
        plain = builder.build(dropped)
        chosen, limited = (ModelWithLibrary(b.model, b.library) for b in (candidate, plain))
        with benchmark(Worker, feeds, (threads,), seconds) as bench:
            share = seconds / len(bench.keys)
            found = [
                bench.compare_at(chosen, limited, key, share, screen=False) for key in bench.keys
            ]
    except (OutOfTime, WorkerError) as error:
        found = []
        note = f"barriers between calls are the cost model's, unmeasured: {error}"
    finally:
        builder.links = True
    medians = [one.ratio.median for one in found]
    if not medians:
        return candidate, note
    speeds = " to ".join(dict.fromkeys(f"{one:.2f}" for one in (min(medians), max(medians))))
    compared = f"{speeds} times as fast on {threads} threads"
    if any(one.win for one in found) and min(medians) >= 1.0:
        builder.links = False
        return plain, f"barriers between calls follow the library's limit: measured {compared}"
    return candidate, (
        f"barriers between calls are the cost model's: with the library's limit, {compared}"
    )
