"""What was measured of a machine: peaks, bandwidths, clock and the cost of waking threads.

Units: 1e9 operations/s (a multiply-add is two), GB/s of reads, GHz, µs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Bandwidth", "Measurements", "Peak"]


@dataclass(frozen=True)
class Peak:
    """Billions of operations per second of one core, for one dtype and level."""

    dtype: str
    level: str
    """A level of kernels, or the feature that multiplies this dtype."""
    gops: float


@dataclass(frozen=True)
class Bandwidth:
    """GB/s one core reads from each level, ``dram_all`` all cores together; 0 if unknown."""

    l1: float = 0.0
    l2: float = 0.0
    l3: float = 0.0
    dram: float = 0.0
    dram_all: float = 0.0


@dataclass(frozen=True)
class Measurements:
    """One machine.  ``measured`` is False for figures derived from the levels alone.

    ``wake_sleeping`` and ``wake_spinning`` are µs of an empty parallel region on all threads that
    have to be woken, or already wait in a loop; 0 with one thread.  ``notes`` say what is missing.
    """

    peaks: tuple[Peak, ...]
    bandwidth: Bandwidth
    ghz: float
    wake_sleeping: float = 0.0
    wake_spinning: float = 0.0
    compiler: str = ""
    seconds: float = 0.0
    measured: bool = True
    notes: tuple[str, ...] = ()

    def peak(self, dtype: str, level: str) -> float:
        """Billions of operations per second, 0 if unknown."""
        return next((p.gops for p in self.peaks if (p.dtype, p.level) == (dtype, level)), 0.0)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurements:
        """The inverse of ``asdict``.  Raises KeyError, TypeError or ValueError if it is not."""
        known = {f.name: data[f.name] for f in fields(cls)}
        known["peaks"] = tuple(Peak(**p) for p in known["peaks"])
        known["bandwidth"] = Bandwidth(**known["bandwidth"])
        known["notes"] = tuple(known["notes"])
        made = cls(**known)
        if not (made.ghz > 0 and made.peaks and all(p.gops > 0 for p in made.peaks)):
            raise ValueError("figures must be above 0")
        return made
