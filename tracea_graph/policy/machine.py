"""The machine as the cost model sees it: one core, three levels of memory, a price per node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tracea_graph.config import Environment
from tracea_graph.hardware.cpu import CpuProfile, profile_cpu
from tracea_graph.hardware.measure import Measurements, assumed, measure
from tracea_graph.kernels.cpu.levels import ISAS, TILES
from tracea_graph.ttg import MemoryLevel, level_of

__all__ = ["Machine", "measured_machine"]

_L2_PARTS, _L3_PARTS = 8, 2
"""A tensor this many times smaller than a cache is still there: weights and others pass by."""


@dataclass(frozen=True)
class Machine:
    """One core: fp32 GFLOP/s, GB/s per memory level, cache bytes, µs per executed node, and
    whether it has matrix tiles for bf16.

    The defaults are those of one fixed machine, a Zen 5 core at 4 GHz, for plans that must not
    depend on where they are made; :func:`measured_machine` knows this one.
    """

    gflops: float = 256.0
    l2_gbytes: float = 250.0
    l3_gbytes: float = 110.0
    dram_gbytes: float = 40.0
    l2_bytes: int = 1 << 20
    l3_bytes: int = 32 << 20
    node_us: float = 0.4
    tiles: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a machine no time can be predicted for."""
        speeds = (self.gflops, self.l2_gbytes, self.l3_gbytes, self.dram_gbytes)
        if min(speeds) <= 0 or min(self.l2_bytes, self.l3_bytes, self.node_us) < 0:
            raise ValueError(f"speeds must be above 0 and sizes not below: {self}")

    @property
    def vector_gops(self) -> float:
        """Billions of elements per second one vector instruction passes over."""
        return self.gflops / 2.0

    @cached_property
    def levels(self) -> tuple[MemoryLevel, MemoryLevel]:
        """The largest memory a core has for itself, and what cores share."""
        return (
            MemoryLevel("L2", self.l2_bytes, self.l3_gbytes * 1e9, _L2_PARTS),
            MemoryLevel("L3", self.l3_bytes, self.dram_gbytes * 1e9, _L3_PARTS),
        )

    @property
    def near(self) -> MemoryLevel:
        """The largest memory a core has for itself."""
        return self.levels[0]

    def gbytes(self, size: float) -> float:
        """GB/s at which a tensor of so many bytes is read again after it was made."""
        level = level_of(size, self.levels)
        if level is None:
            return self.dram_gbytes
        return self.l2_gbytes if level is self.near else self.l3_gbytes

    @classmethod
    def measured(cls, cpu: CpuProfile, figures: Measurements, isa: str | None = None) -> Machine:
        """The machine of measured figures, for kernels up to the level ``isa``.

        A level that was not measured counts as the next slower one that was.
        """
        peaks = [figures.peak("f32", name) for name in _levels(cpu, isa)]
        typical = assumed(cpu).bandwidth
        dram = figures.bandwidth.dram or typical.dram
        l3 = max(figures.bandwidth.l3, dram)
        l2 = max(figures.bandwidth.l2, l3)
        gflops = max(peaks) or max(assumed(cpu).peak("f32", n) for n in _levels(cpu, isa))
        tiles = isa in (None, TILES) and TILES in cpu.levels("bf16")
        return cls(gflops, l2, l3, dram, cpu.l2, cpu.l3, tiles=tiles)


def measured_machine(environment: Environment | None = None, isa: str | None = None) -> Machine:
    """This machine, from the cache or measured now (at most five seconds).

    Where nothing can be measured (no compiler, say) the figures follow from the instruction set.
    """
    environment = environment or Environment()
    cpu = profile_cpu()
    return Machine.measured(cpu, measure(cpu, environment), isa or environment.isa)


def _levels(cpu: CpuProfile, cap: str | None) -> list[str]:
    """Names of the processor's levels up to a cap; an unknown cap caps nothing."""
    order = [isa.name for isa in ISAS]
    allowed = order[: order.index(cap) + 1] if cap in order else order
    return [name for name in cpu.isas if name in allowed] or ["scalar"]
