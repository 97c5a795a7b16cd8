"""Measurements of a machine: peaks, bandwidths, clock, and what starting work costs.

Units: 1e9 operations/s (a multiply-add is two), GB/s of reads, GHz, µs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Bandwidth", "Measurements", "NamedFigure", "Peak"]


@dataclass(frozen=True)
class Peak:
    """Peak in 1e9 operations per second, for one dtype and level."""

    dtype: str
    level: str
    """An ISA level of kernels, or the feature that multiplies this dtype."""
    gops: float


@dataclass(frozen=True)
class Bandwidth:
    """Read bandwidth of each memory level in GB/s, 0 if unknown.

    All are for one core, except ``dram_all``, which is for all cores together.  ``lines`` is that
    of data which another core has just written, while all cores read such data.
    """

    l1: float = 0.0
    l2: float = 0.0
    l3: float = 0.0
    dram: float = 0.0
    dram_all: float = 0.0
    lines: float = 0.0


@dataclass(frozen=True)
class NamedFigure:
    """A further measurement of a backend, named in words."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class Measurements:
    """Measurements of one machine.

    ``measured`` is False if the figures were not measured but derived from the ISA levels.
    ``device`` says which unit the peaks and bandwidths are for.  ``wake_sleeping`` and
    ``wake_spinning`` are the times in µs of a parallel region without work on all threads, if the
    threads slept or spun before; 0 with one thread.  ``notes`` say which measurements are missing.
    ``core_groups`` lists the processors of each group that is nearer to itself than to others, by
    the time of a hand-over between each two cores, as ``TRACEA_GROUPS`` takes it; empty if it was
    not measured.
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
    device: str = "one core"
    further: tuple[NamedFigure, ...] = ()
    core_groups: str = ""

    def peak(self, dtype: str, level: str) -> float:
        """Return 1e9 operations per second, 0 if unknown."""
        return next((p.gops for p in self.peaks if (p.dtype, p.level) == (dtype, level)), 0.0)

    def figure(self, name: str) -> float:
        """Return the value of a further measurement, 0 if it is missing."""
        return next((f.value for f in self.further if f.name == name), 0.0)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurements:
        """Invert ``asdict``; raises KeyError, TypeError or ValueError for other data."""
        known = {f.name: data[f.name] for f in fields(cls)}
        known["peaks"] = tuple(Peak(**p) for p in known["peaks"])
        known["bandwidth"] = Bandwidth(**known["bandwidth"])
        known["notes"] = tuple(known["notes"])
        known["further"] = tuple(NamedFigure(**f) for f in known["further"])
        made = cls(**known)
        if not (made.ghz > 0 and made.peaks and all(p.gops > 0 for p in made.peaks)):
            raise ValueError("measurements must be positive")
        return made
