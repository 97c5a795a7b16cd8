"""Statistics of paired measurements: the ratio of two models and its confidence bounds.

Both models are interleaved in one process, so that slow moments of the machine affect both.  The
statistic is the median over pairs of ``a / b`` (above 1: b is faster).  Its bounds are order
statistics of the pairs, whose rank follows from the binomial distribution of how many pairs are
below the median: exact for any distribution of times (David & Nagaraja, *Order Statistics*, 3rd
ed., §7.1).  At least eight pairs are needed for 99 % bounds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "FEWEST_PAIRS",
    "PairedTimes",
    "Ratio",
    "busy_seconds",
    "other_processes_busy",
    "pool_timings",
    "series_ratio",
    "speed_ratio",
]  # fmt: skip

CONFIDENCE = 0.99
FEWEST_PAIRS = 8


@dataclass(frozen=True)
class PairedTimes:
    """Milliseconds per run of two models; entry i of ``a_ms`` and of ``b_ms`` form a pair."""

    a_ms: tuple[float, ...]
    b_ms: tuple[float, ...]


@dataclass(frozen=True)
class Ratio:
    """How much faster model b is than model a.

    ``median`` is the median of the ratios a/b of all pairs; ``low`` and ``high`` are its 99 %
    bounds (0 and infinity for fewer than eight pairs).  ``a_ms`` and ``b_ms`` are the models'
    median times, ``a_min`` and ``b_min`` their shortest times.
    """

    median: float
    low: float
    high: float
    pairs: int
    a_ms: float
    b_ms: float
    a_min: float
    b_min: float

    def __str__(self) -> str:
        return f"{self.median:.3f}× ({self.low:.3f}–{self.high:.3f})"


def speed_ratio(times: PairedTimes) -> Ratio:
    """Return the ratio of paired times.  Raises ValueError if there are no pairs."""
    return series_ratio(times.a_ms, times.b_ms)


def series_ratio(a: Iterable[float], b: Iterable[float]) -> Ratio:
    """Return the ratio of two series of equal length; ``a_ms`` and ``b_ms`` keep their unit."""
    a, b = tuple(a), tuple(b)
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    rank = _rank(len(ratios))
    low, high = (ratios[rank - 1], ratios[-rank]) if rank else (0.0, math.inf)
    middle = statistics.median(ratios)
    return Ratio(
        middle, low, high, len(ratios), statistics.median(a), statistics.median(b), min(a), min(b)
    )


def pool_timings(timings: Iterable[PairedTimes]) -> PairedTimes:
    """Concatenate several measurements of two models."""
    found = list(timings)
    return PairedTimes(sum((r.a_ms for r in found), ()), sum((r.b_ms for r in found), ()))


def other_processes_busy(seconds: float = 0.1, share: float = 0.2) -> bool:
    """Return True if other processes are using more than ``share`` of one core.

    Watches ``/proc/stat`` for ``seconds`` while this process sleeps; False if that file does not
    exist.
    """
    before, start = busy_seconds(), time.perf_counter()
    time.sleep(seconds)
    return (busy_seconds() - before) > share * (time.perf_counter() - start)


def _rank(count: int) -> int:
    """Return the rank of the order statistic that bounds the median from below; 0 if none does."""
    tail, rank = 0.0, 0
    while rank < count:
        tail += math.comb(count, rank) / 2**count
        if tail > (1 - CONFIDENCE) / 2:
            break
        rank += 1
    return rank


def busy_seconds() -> float:
    """Return the seconds that all cores together were busy since boot; 0 if unknown."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return 0.0
    user, nice, system = (int(x) for x in fields[1:4])
    irq, softirq, steal = (int(x) for x in fields[6:9])
    return (user + nice + system + irq + softirq + steal) / 100.0
