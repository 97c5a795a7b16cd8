"""The CPU backend, as ``target.py`` defines the interface of backends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.errors import UsageError
from tracea_graph.hardware import Diagnostics, profile_cpu
from tracea_graph.ir import TensorSpec
from tracea_graph.kernels.cpu import emitter, plan
from tracea_graph.kernels.cpu.levels import (
    BF16_ISAS,
    ISAS,
    LEVELS,
    TILES,
    fingerprint,
    host_levels,
)
from tracea_graph.kernels.cpu.library import build_library
from tracea_graph.kernels.cpu.lowering.guard import MOST_GUARDED, lower_guard
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.kernels.cpu.machine import DIAGNOSTICS, measured_machine
from tracea_graph.kernels.cpu.names import TARGETS
from tracea_graph.kernels.cpu.phases import phases
from tracea_graph.kernels.cpu.phases.pack_matrices import PACK_MATRICES
from tracea_graph.kernels.cpu.phases.precision import (
    FALLBACK,
    FURTHER,
    LOWERING,
    PRECISION_FALLBACKS,
)
from tracea_graph.kernels.cpu.phases.tile_and_fuse import TILE_SIZES, TileAndFuse
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.program import Call, OpType, Program
from tracea_graph.kernels.rules import RuleNames
from tracea_graph.ops.chain import Chain
from tracea_graph.passes import Request
from tracea_graph.policy import Machine
from tracea_graph.rewrite import Phase
from tracea_graph.toolchain import Library
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.tuning.schedule_space import ScheduleSpace

__all__ = ["CPU", "CpuBackend"]

_PLAIN = tuple(isa.name for isa in ISAS)
_BF16 = frozenset(isa.name for isa in BF16_ISAS)
_NEEDED = MappingProxyType(
    {"fp16": frozenset(), "bf16": _BF16, "int16": _BF16, "bf16x2": frozenset({TILES})}
)
"""Levels of which a precision requires at least one; empty: no requirement."""


class CpuBackend:
    """C++ kernels with vector instructions; levels are instruction sets, lowest first."""

    name = "cpu"
    caps = tuple(isa.name for isa in LEVELS)
    targets = TARGETS
    rules = RuleNames(
        LOWERING, FALLBACK, FURTHER, PRECISION_FALLBACKS, TILE_SIZES, (PACK_MATRICES,)
    )
    most_guarded = MOST_GUARDED
    schedule_space: ScheduleSpace | None = SCHEDULE_SPACE
    diagnostics: Diagnostics | None = DIAGNOSTICS

    def levels(self, level: str, precision: str) -> tuple[str, ...]:
        """Levels up to ``level``, all of this machine for "": every lower one is a fallback.

        Raises UsageError for a level this machine cannot run, and so not check.
        """
        if not level:
            return host_levels(precision)
        if level not in (have := host_levels()):
            raise UsageError(
                f"this machine cannot run, so cannot check, cpu:{level}; it has {have[-1]}"
            )
        return _PLAIN[: _PLAIN.index(level) + 1]

    def resolve_precision(self, precision: str, levels: Sequence[str]) -> tuple[str, str]:
        """The precision that is computed in, and a sentence where it is another one.

        Products in bf16 would be emulated without the instructions for them, and those in integers
        or in three parts be no faster, so they stay in float32.
        """
        needed = _NEEDED.get(precision)
        if needed is None or needed & set(levels):
            return precision, ""
        why = f"{levels[-1]}, the highest level here, has no instructions for it"
        return "fp32", f"nothing is computed in {precision}: {why}"

    def machine(self, levels: Sequence[str], environment: Environment | None = None) -> Machine:
        """This machine, measured; without an environment a fixed one, for plans that must not
        depend on where they are made."""
        if environment is None:
            return Machine(tiles=TILES in levels)
        return measured_machine(environment, levels[-1])

    def unmeasured(self) -> str:
        """Nothing: levels this machine lacks are no target."""
        return ""

    def fingerprint(self) -> dict[str, Any]:
        """What results depend on of this machine, as JSON-ready values."""
        return fingerprint(profile_cpu())

    def phases(
        self, request: Request, machine: Machine, sizes: Mapping[str, int]
    ) -> tuple[Phase, ...]:
        """What follows the passes, in order: precision, layouts, programs, row tiling."""
        tiling = TileAndFuse(sizes, machine.levels)
        return (*phases(request, machine.tiles), Phase(tiling.name, (tiling,)))

    def lacks(self, graph: TileGraph, region: Region) -> str:
        """Nothing: there are kernels for every custom op."""
        return ""

    def lower(self, graph: TileGraph, region: Region) -> Program:
        """The program of one fused region.  Raises TypeError for one that is not fused."""
        return lower(graph, region)

    def lower_guard(self, specs: Sequence[TensorSpec]) -> Program:
        """A program that compares tensors of these specs with as many references, bytewise."""
        return lower_guard(specs)

    def encode(self, program: Program) -> tuple[int, ...]:
        """The program as the library reads it.  Raises GraphError for one that is too large."""
        return plan.encode(program)

    def kernels_of(self, call: Call) -> set[str]:
        """The kernels a call needs beside its chain."""
        return emitter.kernels_of(call)

    def sources(
        self, kernels: Iterable[str], chains: Iterable[Chain], levels: Sequence[str]
    ) -> list[emitter.CompilationUnit]:
        """The generated sources of a library, without its runtime."""
        return emitter.units(kernels, chains, levels)

    def build(
        self,
        types: Sequence[OpType],
        kernels: Sequence[str],
        chains: Sequence[Chain],
        levels: Sequence[str],
        out: Path,
        environment: Environment,
        quick: bool = False,
    ) -> Library:
        """A library at ``out``; ``quick`` compiles in less time what runs slower.

        Raises BuildError without leaving anything at ``out``.
        """
        return build_library(
            types, kernels, chains, levels, out, environment=environment, quick=quick
        )


CPU = CpuBackend()
