"""What paired measurements say: the ratio of two models and how sure we are of it.

Both models run in turn in one process, so that a slow moment of the machine hits both.  The
statistic is the median over pairs of ``a / b`` (above 1: b is faster).  Its bounds are order
statistics of the pairs, whose rank follows from the binomial distribution of how many pairs lie
below the median: exact for any distribution of times (David & Nagaraja, *Order Statistics*, 3rd
ed., §7.1).  Eight pairs are the fewest that give 99 % bounds at all.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "FEWEST_PAIRS", "PairedTimes", "Ratio", "busy_cores", "busy_seconds", "pooled", "ratio",
    "ratio_of",
]  # fmt: skip

CONFIDENCE = 0.99
FEWEST_PAIRS = 8


@dataclass(frozen=True)
class PairedTimes:
    """Milliseconds per run of two models; entry i of both belongs to the same pair."""

    a_ms: tuple[float, ...]
    b_ms: tuple[float, ...]


@dataclass(frozen=True)
class Ratio:
    """How much faster b is than a.

    ``median`` of the per-pair ratios a/b with its 99 % bounds ``low`` and ``high`` (0 and
    infinity under eight pairs); ``a_ms``, ``b_ms`` the median times, ``a_min``, ``b_min`` the
    shortest.
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


def ratio(times: PairedTimes) -> Ratio:
    """The ratio of paired times.  Raises ValueError for one without pairs."""
    return ratio_of(times.a_ms, times.b_ms)


def ratio_of(a: Iterable[float], b: Iterable[float]) -> Ratio:
    """The ratio of two equally long series; their unit becomes that of ``a_ms`` and ``b_ms``."""
    a, b = tuple(a), tuple(b)
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    rank = _rank(len(ratios))
    low, high = (ratios[rank - 1], ratios[-rank]) if rank else (0.0, math.inf)
    middle = statistics.median(ratios)
    return Ratio(
        middle, low, high, len(ratios), statistics.median(a), statistics.median(b), min(a), min(b)
    )


def pooled(timings: Iterable[PairedTimes]) -> PairedTimes:
    """Several runs of the same two models as one."""
    found = list(timings)
    return PairedTimes(sum((r.a_ms for r in found), ()), sum((r.b_ms for r in found), ()))


def busy_cores(seconds: float = 0.1, share: float = 0.2) -> bool:
    """True if other processes keep more than ``share`` of one core busy right now.

    Watches ``/proc/stat`` for ``seconds`` while this process sleeps; False where there is none.
    """
    before, start = busy_seconds(), time.perf_counter()
    time.sleep(seconds)
    return (busy_seconds() - before) > share * (time.perf_counter() - start)


def _rank(count: int) -> int:
    """The rank of the order statistic that bounds the median from below; 0 if none does."""
    tail, rank = 0.0, 0
    while rank < count:
        tail += math.comb(count, rank) / 2**count
        if tail > (1 - CONFIDENCE) / 2:
            break
        rank += 1
    return rank


def busy_seconds() -> float:
    """Seconds all cores together spent on anything but idling, since boot; 0 where unknown."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return 0.0
    user, nice, system = (int(x) for x in fields[1:4])
    irq, softirq, steal = (int(x) for x in fields[6:9])
    return (user + nice + system + irq + softirq + steal) / 100.0
