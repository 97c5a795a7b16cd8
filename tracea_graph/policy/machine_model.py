"""The machine as the cost model sees it: one core, three memory levels, a cost per node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tracea_graph.ttg import MemoryLevel, innermost_level

__all__ = ["Machine"]

_L2_PARTS, _L3_PARTS = 8, 2
"""A tensor is assumed resident if it is this many times smaller than the cache, which is shared
with weights and other data.
"""


@dataclass(frozen=True)
class Machine:
    """One core or device: fp32 GFLOP/s, GB/s per memory level, cache bytes, µs per executed node.

    ``step_us`` is the overhead in µs of each further step of a program.

    Where ``cores`` cores work together, ``handover_us`` is the time in which one core sees what
    another has written, ``line_gbytes`` the rate at which each of them reads data that others
    wrote, ``shared_gbytes`` that of memory for all together.  They are 0 where unknown.  The cores
    may be several ``groups`` that share no cache; lines of another group come at
    ``far_line_gbytes``.

    ``tiles`` is true if the machine has a matrix unit for bf16, ``bf16`` if it can multiply bf16.
    The defaults are those of one fixed machine, a Zen 5 core at 4 GHz, for plans that must not
    depend on where they are made; a backend measures the machine it runs on.
    """

    gflops: float = 256.0
    l2_gbytes: float = 250.0
    l3_gbytes: float = 110.0
    dram_gbytes: float = 40.0
    l2_bytes: int = 1 << 20
    l3_bytes: int = 32 << 20
    node_us: float = 0.4
    step_us: float = 0.0
    tiles: bool = False
    bf16: bool = True
    cores: int = 0
    handover_us: float = 0.0
    line_gbytes: float = 0.0
    shared_gbytes: float = 0.0
    groups: int = 1
    far_line_gbytes: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError unless speeds are positive and sizes are not negative."""
        speeds = (self.gflops, self.l2_gbytes, self.l3_gbytes, self.dram_gbytes)
        sizes = (self.l2_bytes, self.l3_bytes, self.node_us, self.step_us)
        together = (self.cores, self.handover_us, self.line_gbytes, self.shared_gbytes)
        groups = (self.groups - 1, self.far_line_gbytes)
        if min(speeds) <= 0 or min(*sizes, *together, *groups) < 0:
            raise ValueError(f"speeds must be positive and sizes not negative: {self}")

    @property
    def alone(self) -> Machine:
        """The same machine, where nothing is known about several cores that work together."""
        known = replace(self, cores=0, handover_us=0.0, line_gbytes=0.0, shared_gbytes=0.0)
        return replace(known, groups=1, far_line_gbytes=0.0)

    @property
    def vector_gops(self) -> float:
        """Throughput of a vector instruction in 1e9 elements per second."""
        return self.gflops / 2.0

    @cached_property
    def levels(self) -> tuple[MemoryLevel, MemoryLevel]:
        """The largest cache private to a core, and the cache that cores share."""
        return (
            MemoryLevel("L2", self.l2_bytes, self.l3_gbytes * 1e9, _L2_PARTS),
            MemoryLevel("L3", self.l3_bytes, self.dram_gbytes * 1e9, _L3_PARTS),
        )

    @property
    def near(self) -> MemoryLevel:
        """The largest cache private to a core."""
        return self.levels[0]

    def gbytes(self, size: float) -> float:
        """Return the GB/s at which a tensor of ``size`` bytes is read after it was written."""
        level = innermost_level(size, self.levels)
        if level is None:
            return self.dram_gbytes
        return self.l2_gbytes if level is self.near else self.l3_gbytes
