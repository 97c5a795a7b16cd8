"""Model of this machine for the cost model and the doctor, from measurements of one core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.config import Environment
from tracea_graph.hardware.cpu import CpuProfile, profile_cpu
from tracea_graph.hardware.machine_measurements import Measurements
from tracea_graph.kernels.cpu.call_links import LINKED_THREADS
from tracea_graph.kernels.cpu.call_stats import call_stats
from tracea_graph.kernels.cpu.core_measurement import (
    FAR_LINES,
    GROUPS,
    HANDOVER,
    NEAR_LINES,
    assumed_figures,
    measure_core,
)
from tracea_graph.kernels.cpu.isa_levels import PLAIN, TILES, features_of, levels_of
from tracea_graph.kernels.program import CallStats
from tracea_graph.policy import Machine

__all__ = ["CALL_TRACING", "DIAGNOSTICS", "CpuDiagnostics", "machine_of", "measured_machine"]


def machine_of(cpu: CpuProfile, figures: Measurements, isa: str | None = None) -> Machine:
    """Build the machine model from measured figures, for kernels up to the level ``isa``.

    A level that was not measured gets the figure of the next lower one that was.  Figures of
    cores together come from a machine that has enough of them to link calls.
    """
    peaks = [figures.peak("f32", name) for name in _levels(cpu, isa)]
    typical = assumed_figures(cpu).bandwidth
    dram = figures.bandwidth.dram or typical.dram
    l3 = max(figures.bandwidth.l3, dram)
    l2 = max(figures.bandwidth.l2, l3)
    gflops = max(peaks) or max(assumed_figures(cpu).peak("f32", n) for n in _levels(cpu, isa))
    tiles = isa in (None, TILES) and TILES in levels_of(cpu, "bf16")
    machine = Machine(gflops, l2, l3, dram, cpu.l2, cpu.l3, tiles=tiles)
    shared, lines = figures.bandwidth.dram_all, figures.bandwidth.lines
    handover = max((f.value for f in figures.further if f.name.startswith(HANDOVER)), default=0.0)
    if min(shared, lines, handover) <= 0 or cpu.threads < LINKED_THREADS:
        return machine
    team = replace(
        machine, cores=cpu.threads, handover_us=handover, line_gbytes=lines, shared_gbytes=shared
    )
    near = figures.figure(NEAR_LINES)
    far = min((rate for name in FAR_LINES if (rate := figures.figure(name))), default=0.0)
    groups = int(figures.figure(GROUPS))
    if groups < 2 or min(near, far) <= 0:
        return team
    return replace(team, groups=groups, far_line_gbytes=lines * min(far / near, 1.0))


def measured_machine(environment: Environment | None = None, isa: str | None = None) -> Machine:
    """The model of this machine, from the cache or measured now (at most five seconds).

    If nothing can be measured, as without a compiler, figures follow from the instruction set.
    """
    environment = environment or Environment()
    cpu = profile_cpu()
    return machine_of(cpu, measure_core(cpu, environment, only="f32"), isa or environment.level)


def _levels(cpu: CpuProfile, cap: str | None) -> list[str]:
    """Names of the processor's levels up to ``cap``; an unknown cap is ignored."""
    order = [isa.name for isa in PLAIN]
    allowed = order[: order.index(cap) + 1] if cap in order else order
    return [name for name in levels_of(cpu) if name in allowed] or ["scalar"]


class CpuDiagnostics:
    """Diagnostics of this machine, for the doctor and the policy."""

    @property
    def features(self) -> tuple[str, ...]:
        """Features of this machine's processor that no level implies, but some kernels use."""
        return features_of(profile_cpu())

    def measure(self, environment: Environment, refresh: bool = False) -> Measurements:
        """Figures of one core, from the cache, or measured (at most 5 s) if new or ``refresh``."""
        return measure_core(profile_cpu(), environment, refresh=refresh)


class CallTracing:
    """Operation counts of traced calls, for the profiler."""

    def call_stats(self, words: Sequence[int], symbols: Sequence[int]) -> tuple[CallStats, ...]:
        """Operation counts of a plan's calls.  Raises GraphError for a malformed plan."""
        return call_stats(words, symbols)


DIAGNOSTICS = CpuDiagnostics()
CALL_TRACING = CallTracing()
