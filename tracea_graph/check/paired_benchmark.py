"""Compare models in pairs, within a time budget, until one is known to be faster.

At most two sessions are timed at a time, with one thread count; a worker that dies is replaced.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from tracea_graph.check.input_feeds import Feeds
from tracea_graph.check.timing_statistics import (
    FEWEST_PAIRS,
    PairedTimes,
    Ratio,
    pool_timings,
    series_ratio,
    speed_ratio,
)
from tracea_graph.check.worker_process import Array, NodeTime, SessionInfo
from tracea_graph.errors import WorkerError

__all__ = [
    "MINIMUM_GAIN",
    "BenchmarkWorker",
    "Key",
    "ModelWithLibrary",
    "PairedBenchmark",
    "PairedComparison",
    "differing_nodes_ratio",
]

MINIMUM_GAIN = 1.005
"""A gain counts if its 99 % lower bound is above this ratio."""

PAIRS, ROUNDS, WARMUP = 15, 12, 2
FIRST_ROUND_PAIRS = 10
"""Pairs of the first round; a clear case needs no more."""
PROFILE_ABOVE = 0.98
"""Whole-model median below which differing nodes are not profiled."""

INCONCLUSIVE_SPREAD = 1.5
"""If upper over lower bound exceeds this, the ratio reflects the machine, not the model."""

PROFILING_US = 2.0
"""Time that profiling adds to each node; without correction, few large nodes would look too fast.
"""

_BOUND_IN_STANDARD_ERRORS = 2.58
"""Distance of a 99 % bound from the median of normally distributed ratios."""

Key = tuple[int, str]
"""Thread count and binding label."""


@dataclass(frozen=True)
class ModelWithLibrary:
    """A model file, the library it needs, if any, and execution providers that it prefers."""

    model: Path
    library: Path | None
    providers: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairedComparison:
    """The ratio of two models' times, whether it is a win, and the ratio of differing nodes."""

    ratio: Ratio
    win: bool
    alone: Ratio | None = None

    @property
    def likely(self) -> bool:
        """Return True for a win, or for a gain that is not proven but far from a loss."""
        return self.win or (self.ratio.median > MINIMUM_GAIN and self.ratio.high >= 1.0)

    @property
    def inconclusive(self) -> bool:
        """Return True if the ratio is too uncertain to say anything."""
        return _inconclusive(self.ratio)


class BenchmarkWorker(Protocol):
    """The part of a worker that a benchmark uses."""

    def open(
        self,
        name: str,
        model: Path,
        library: Path | None = None,
        *,
        threads: int = 1,
        providers: Sequence[str] = (),
    ) -> SessionInfo: ...

    def compare(
        self,
        a: str,
        b: str,
        feeds: Mapping[str, Array],
        *,
        pairs: int = 15,
        warmup: int = 2,
        seconds: float = 60.0,
    ) -> PairedTimes: ...

    def profile_pair(
        self, a: str, b: str, feeds: Mapping[str, Array], runs: int = 15, *, warmup: int = 2
    ) -> tuple[tuple[NodeTime, ...], tuple[NodeTime, ...]]: ...

    def stop(self) -> None: ...


class PairedBenchmark(AbstractContextManager["PairedBenchmark"]):
    """Compares models; holds a worker, inputs and thread counts to time with, and a budget.

    ``now()`` returns the budget's clock in seconds.  ``provider`` is the execution provider in
    which a model ran that preferred one to the CPU's, or "".
    """

    def __init__(
        self,
        factory: Callable[[], BenchmarkWorker],
        feeds: Feeds,
        threads: tuple[int, ...],
        budget: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget, self.feeds, self.now, self.provider = budget, feeds, clock, ""
        self.keys = tuple((count, label) for count in threads for label in feeds)
        self._factory, self._threads = factory, threads
        self._end, self._reserve = clock() + budget, 0.0
        self._worker: BenchmarkWorker | None = None
        self._open: dict[str, tuple[ModelWithLibrary, int]] = {}
        self._round_seconds: dict[Key, float] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def left(self) -> float:
        """Seconds of budget left; 0 when it is spent."""
        return max(self._end - self.now(), 0.0)

    def deadline(self, share: float) -> float:
        """Return the time at which a stage that may use ``share`` of the budget must end.

        The time is that of ``now()``.  The time of one more comparison with the original is kept
        in reserve.
        """
        return self.now() + min(share * self.budget, self.left - self._reserve)

    def comparison_seconds(self, total: Mapping[Key, Ratio]) -> float:
        """Estimate from measured times how many seconds the shortest useful comparison takes."""
        return sum((FEWEST_PAIRS + 2) * 2 * r.b_ms / 1e3 for r in total.values())

    def reserve(self, total: Mapping[Key, Ratio]) -> None:
        """Keep time for one more comparison, estimated from the measured ratios ``total``."""
        self._reserve = sum(
            (FIRST_ROUND_PAIRS + WARMUP) * (r.a_ms + r.b_ms) / 1e3 for r in total.values()
        )

    def compare_all(
        self, a: ModelWithLibrary, b: ModelWithLibrary, seconds: float, keys: Sequence[Key] = ()
    ) -> dict[Key, Ratio]:
        """Compare b with a at every key, or at ``keys``; keys are missing if time runs out.

        Raises WorkerError if either model cannot run.
        """
        start, ratios, keys = self.now(), dict[Key, Ratio](), keys or self.keys
        end = start + min(seconds, self.left)
        for i, key in enumerate(keys):
            if (left := end - self.now()) <= 0:
                break
            part = left / (len(keys) - i)
            ratios[key] = self.compare_at(a, b, key, part, screen=False).ratio
        self._reserve = self.now() - start
        return ratios

    def compare_at(
        self,
        a: ModelWithLibrary,
        b: ModelWithLibrary,
        key: Key,
        seconds: float,
        *,
        screen: bool,
        proven: bool = False,
    ) -> PairedComparison:
        """Run rounds of pairs until b's ratio over a is decided, or more rounds cannot decide it.

        If b is ``proven`` faster at another key, a median above the minimum gain suffices here.
        With ``screen``, the nodes that differ between the models are also timed alone: before the
        first round if the time does not suffice for a whole round; otherwise after it, if it
        leaves the ratio undecided.

        The comparison ends early if all ``ROUNDS`` rounds could not prove a gain, because the
        median shows none or the bounds would stay too wide.  Without ``screen``, it does not end
        early while the bounds are inconclusive.  Raises WorkerError if either model cannot run.
        """
        feeds, timings = self.feeds[key[1]], list[PairedTimes]()
        alone: Ratio | None = None
        try:
            worker = self._ready(a, b, key[0])
            end = min(self.now() + seconds, self._end)  # opening models is not included
            if screen and seconds < self._round_seconds.get(key, 0.0):
                alone = differing_nodes_ratio(*worker.profile_pair("a", "b", feeds, FEWEST_PAIRS))
            while True:
                left = max(end - self.now(), 0.0)
                pairs = PAIRS if timings else FIRST_ROUND_PAIRS
                timings.append(worker.compare("a", "b", feeds, pairs=pairs, seconds=left))
                found = speed_ratio(pool_timings(timings))
                if _decided(found) or self.now() > end:
                    break
                if proven and found.median > MINIMUM_GAIN:
                    break
                if screen and alone is None and found.median > PROFILE_ABOVE:
                    alone = differing_nodes_ratio(*worker.profile_pair("a", "b", feeds, PAIRS))
                hopeless = not _decidable(found) and (screen or not _inconclusive(found))
                if (alone and _decided(alone)) or hopeless or len(timings) == ROUNDS:
                    break
        except WorkerError:
            self._stop()
            raise
        self._round_seconds[key] = (PAIRS + WARMUP) * (found.a_ms + found.b_ms) / 1e3
        clear_alone = alone is not None and alone.low > MINIMUM_GAIN and found.high >= 1.0
        return PairedComparison(found, found.low > MINIMUM_GAIN or clear_alone, alone)

    def _ready(self, a: ModelWithLibrary, b: ModelWithLibrary, count: int) -> BenchmarkWorker:
        """Return the worker with both models open; sessions already open are kept."""
        worker = self._worker = self._worker or self._factory()
        for name, candidate in (("a", a), ("b", b)):
            if self._open.get(name) != (candidate, count):
                self._open.pop(name, None)
                found = worker.open(
                    name, candidate.model, candidate.library, threads=count,
                    providers=candidate.providers,
                )  # fmt: skip
                chosen = [p for p in found.providers[:1] if p in candidate.providers]
                self.provider = next(iter(chosen), self.provider)
                self._open[name] = candidate, count
        return worker

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        self._worker, self._open = None, {}


def differing_nodes_ratio(a: Sequence[NodeTime], b: Sequence[NodeTime]) -> Ratio:
    """Return the ratio of the times of nodes that only one of two models has.

    Nodes with equal name and operator in both models are left out.  The profiling overhead is
    subtracted from times, and 1 µs is added so that a model without nodes of its own has a time.
    """
    names_a, names_b = (Counter((n.name, n.op) for n in nodes) for nodes in (a, b))
    shared = {key for key in names_a if names_a[key] == names_b[key]}
    return series_ratio(
        *(_sums([n for n in nodes if (n.name, n.op) not in shared]) for nodes in (a, b))
    )


def _sums(nodes: Sequence[NodeTime]) -> list[float]:
    runs = min((len(n.samples) for n in nodes), default=PAIRS)
    return [1.0 + sum(max(n.samples[i] - PROFILING_US, 0.0) for n in nodes) for i in range(runs)]


def _decided(found: Ratio) -> bool:
    return found.low > MINIMUM_GAIN or found.high < 1.0


def _decidable(found: Ratio) -> bool:
    """Return whether the pairs of all rounds may still prove a gain.

    Bounds narrow with the square root of the pairs; the median may rise by a standard error.
    """
    half = found.median - found.low
    narrowed = half * math.sqrt(found.pairs / (PAIRS * ROUNDS))
    gain = found.median - MINIMUM_GAIN
    return gain > 0 and gain + half / _BOUND_IN_STANDARD_ERRORS > narrowed


def _inconclusive(found: Ratio) -> bool:
    return found.high > INCONCLUSIVE_SPREAD * found.low
