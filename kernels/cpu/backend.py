"""The CPU backend: an implementation of the interface in ``target.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.errors import UsageError
from tracea_graph.hardware import CallWorkQueries, MachineDiagnostics, TaskRecording, profile_cpu
from tracea_graph.ir import TensorSpec
from tracea_graph.kernels.cpu import emitter, plan_encoding
from tracea_graph.kernels.cpu.isa_levels import (
    FAMILIES,
    LEVELS,
    TILES,
    X86,
    fingerprint,
    host_levels,
    host_library_levels,
    isa_of,
)
from tracea_graph.kernels.cpu.kernel_catalog import CATALOG
from tracea_graph.kernels.cpu.kernel_facts import kernel_metadata
from tracea_graph.kernels.cpu.library_build import build_ahead, build_library, compile_part
from tracea_graph.kernels.cpu.lowering.initializer_guard_program import MOST_GUARDED, lower_guard
from tracea_graph.kernels.cpu.lowering.lower import lacking, lower
from tracea_graph.kernels.cpu.machine_model import CALL_TRACING, DIAGNOSTICS, measured_machine
from tracea_graph.kernels.cpu.named_targets import TARGETS
from tracea_graph.kernels.cpu.phases import phases, structure_rules
from tracea_graph.kernels.cpu.phases.lower_precision import (
    FALLBACK,
    FURTHER,
    LOWERING,
    PRECISION_FALLBACKS,
)
from tracea_graph.kernels.cpu.phases.pack_matrices import PACK_MATRICES
from tracea_graph.kernels.cpu.phases.tile_and_fuse import TILE_SIZES, TileAndFuse
from tracea_graph.kernels.cpu.platform_deployment import Deployment, build_all, unmeasured
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.cpu.standalone_functions import STANDALONE, kernels_of_functions
from tracea_graph.kernels.cpu.variants import kernels_with_variant_at
from tracea_graph.kernels.kernel_metadata import KernelMetadata
from tracea_graph.kernels.program import (
    NO_CONTENTS,
    Call,
    LaunchedCall,
    LibraryContents,
    Program,
)
from tracea_graph.kernels.rule_names import RuleNames
from tracea_graph.passes import PlanRequest
from tracea_graph.policy import KernelCatalog, Machine
from tracea_graph.rewrite import Pass, Phase
from tracea_graph.toolchain import (
    Counted,
    Library,
    LibraryManifest,
    LibraryPart,
    find_compiler,
    ignore_progress,
)
from tracea_graph.toolchain.platforms import HERE
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.tuning.schedule_space import ScheduleSpace

__all__ = ["CPU", "CpuBackend", "useful_levels"]

_OPTIONAL = frozenset(isa.name for family in FAMILIES for isa in (*family.int8, *family.fp16))
"""Levels that a library has code for only if one of its kernels has a variant for them."""
_BF16 = frozenset(isa.name for family in FAMILIES for isa in family.bf16)
_FP16 = frozenset(isa.name for family in FAMILIES for isa in family.fp16)
_NEEDED = MappingProxyType(
    {
        "fp16": _FP16,
        "tf32": frozenset(),
        "fp8": frozenset(),
        "bf16": _BF16,
        "int16": frozenset(isa.name for isa in X86.bf16),
        "bf16x2": frozenset({TILES}),
    }
)
"""Levels of which a precision requires at least one; empty: no requirement."""


class CpuBackend:
    """Backend that emits C++ kernels with vector instructions.

    Its levels are instruction sets, lowest first.  A library is built for each of ``deployments``,
    or for this machine if there are none.  Only the first deployment can be measured, and only if
    it is this machine.
    """

    name = "cpu"
    caps = tuple(isa.name for isa in LEVELS)
    targets = TARGETS
    rules = RuleNames(
        LOWERING, FALLBACK, FURTHER, PRECISION_FALLBACKS, TILE_SIZES, (PACK_MATRICES,)
    )
    providers: tuple[str, ...] = ()
    most_guarded = MOST_GUARDED
    whole_models = convolves_volumes = False
    schedule_space: ScheduleSpace | None = SCHEDULE_SPACE
    catalog: KernelCatalog = CATALOG
    diagnostics: MachineDiagnostics | None = DIAGNOSTICS
    tracing: CallWorkQueries | None = CALL_TRACING
    recording: TaskRecording | None = TaskRecording()
    bypass: Mapping[str, str] = MappingProxyType({})
    standalone_ops = tuple(STANDALONE)

    def __init__(self, deployments: tuple[Deployment, ...] = ()) -> None:
        self.deployments = deployments

    def levels(self, level: str, precision: str) -> tuple[str, ...]:
        """The levels up to ``level``, or all levels of this machine for "", lowest first.

        Lower levels are fallbacks.  Raises UsageError for a level that this machine cannot run,
        since its results could not be verified.
        """
        if not level:
            return host_library_levels(precision)
        if level not in (have := host_levels()):
            raise UsageError(
                f"this machine cannot run cpu:{level}, so it cannot check kernels of that level; "
                f"its highest level is {have[-1]}"
            )
        return have[: have.index(level) + 1]

    def resolve_precision(self, precision: str, levels: Sequence[str]) -> tuple[str, str]:
        """Return the precision to compute in, and why if it is not ``precision``.

        float32 replaces a precision for which ``levels`` have no instructions: bf16 would have to
        be emulated, int16 and bf16x2 would be no faster than float32.  fp16 has no kernels on x86:
        processors with AVX512-FP16 have AMX, which multiplies bf16 eight times as fast.
        """
        needed = _NEEDED.get(precision)
        if precision == "fp16":  # of which other processors have no kernels at all
            for each in self.deployments[1:]:
                if not _FP16 & set(each.levels):
                    other = each.platform.name
                    return "fp32", f"nothing is computed in fp16: it has no kernels for {other}"
        if needed is None or needed & set(levels):
            return precision, ""
        why = f"{levels[-1]}, the highest level here, has no instructions for this type"
        if precision == "fp16" and not any(level.startswith("neon") for level in levels):
            why = "on x86 there are kernels for bf16 instead (--precision bf16)"
        return "fp32", f"nothing is computed in {precision}: {why}"

    def machine(self, levels: Sequence[str], environment: Environment | None = None) -> Machine:
        """Return the model of this machine, measured; without an environment, a nominal one.

        The nominal model is for plans that must not depend on the machine they are made on.
        """
        if environment is None or unmeasured(self.deployments[:1]):
            return Machine(tiles=TILES in levels, bf16=not _BF16.isdisjoint(levels))
        measured = measured_machine(environment, levels[-1])
        return replace(measured, bf16=not _BF16.isdisjoint(levels))

    def requirement(self, manifest: LibraryManifest) -> str:
        """Return "": a machine that ONNX Runtime runs on needs nothing else."""
        return ""

    def multiplies_float8(self, levels: Sequence[str]) -> bool:
        """Return False: no kernel multiplies 8-bit floats."""
        return False

    def two_of_four_time(self, levels: Sequence[str], precision: str) -> float:
        """Return 1.0: no kernel skips single zeros."""
        return 1.0

    def unmeasured(self, levels: Sequence[str]) -> str:
        """Return why kernels for these levels are not timed on this machine; empty if they are.

        Levels below the machine's highest one are not timed: ONNX Runtime chooses its own kernels
        by CPUID, so it would compete with wider vector instructions.
        """
        if self.deployments:
            return unmeasured(self.deployments[:1])
        level, highest = levels[-1], host_levels()[-1]
        if level not in host_levels() or level == highest:
            return ""
        return (
            f"ONNX Runtime uses {highest} here and cannot be limited to {level}: the result was "
            f"checked but not timed; to time it, use tracea bench --retune on such a machine"
        )

    def fingerprint(self) -> dict[str, Any]:
        """The properties of this machine that results depend on, as JSON-ready values."""
        return fingerprint(profile_cpu())

    def structure_rules(self, request: PlanRequest) -> tuple[Pass, ...]:
        """The rules that compete for products whose weights have structure."""
        return structure_rules(request)

    def phases(
        self, request: PlanRequest, machine: Machine, sizes: Mapping[str, int]
    ) -> tuple[Phase, ...]:
        """The phases after the passes, in order: precision, layouts, programs, row tiling."""
        tiling = TileAndFuse(sizes, machine.levels)
        return (*phases(request, machine.tiles, machine.bf16), Phase(tiling.name, (tiling,)))

    def lacks(self, graph: TileGraph, region: Region) -> str:
        """Return why no kernel takes a region's element types, or "" if kernels do."""
        return lacking(graph, region)

    def lower(self, graph: TileGraph, region: Region) -> Program:
        """Lower one fused region to a program.  Raises TypeError for one that is not fused."""
        return lower(graph, region)

    def launch_order(
        self, program: Program, fixed: frozenset[int], sizes: Mapping[str, int]
    ) -> tuple[LaunchedCall, ...]:
        """Return no launches: the threads of a team call the kernels."""
        return ()

    def lower_guard(self, specs: Sequence[TensorSpec]) -> Program:
        """Build a program that compares tensors of these specs bytewise with references."""
        return lower_guard(specs)

    def encode(self, program: Program) -> tuple[int, ...]:
        """Encode a program for the library.  Raises GraphError for one that is too large."""
        return plan_encoding.encode(program)

    def kernels_of(self, call: Call) -> set[str]:
        """The kernels that a call needs in addition to its chain."""
        return emitter.kernels_of_call(call)

    def metadata(
        self,
        levels: Sequence[str],
        kernels: Sequence[str] | None = None,
        environment: Environment | None = None,
    ) -> tuple[KernelMetadata, ...]:
        """The facts of the kernels; with an environment to compile in, also their resources.

        Raises BuildError for a kernel that does not compile.
        """
        return kernel_metadata(levels, kernels, environment)

    def standalone(self, ops: Sequence[str]) -> LibraryContents:
        """Return the kernels and chains that these functions of the C interface call."""
        return kernels_of_functions(ops)

    def sources(
        self, contents: LibraryContents, levels: Sequence[str]
    ) -> list[emitter.CompilationUnit]:
        """The generated sources of a library, without its runtime."""
        return emitter.compilation_units(contents.kernels, contents.chains, levels)

    def device_runtime(self) -> Mapping[str, str]:
        """Return no sources: kernels run on the host."""
        return {}

    def require_compilers(self, environment: Environment) -> None:
        """Raise BuildError if there is no C++ compiler for one of the platforms."""
        for platform in [d.platform for d in self.deployments] or [HERE]:
            find_compiler(environment, platform=platform)

    def build_ahead(
        self,
        levels: Sequence[str],
        environment: Environment,
        stopped: Callable[[], bool],
        contents: LibraryContents = NO_CONTENTS,
    ) -> None:
        """Compile what all libraries for these levels have in common, then these kernels.

        Nothing is compiled for other platforms, which need another compiler.
        """
        if self.deployments:
            here = (d.levels for d in self.deployments if d.platform == HERE)
            levels = next(here, ())
        if levels:
            useful = useful_levels(levels, {*contents.kernels})
            wanted = (
                useful if contents.kernels else [name for name in levels if name not in _OPTIONAL]
            )
            build_ahead(wanted, environment, stopped, contents)

    def build(
        self,
        contents: LibraryContents,
        levels: Sequence[str],
        out: Path,
        environment: Environment,
        quick: bool = False,
        counted: Counted = ignore_progress,
    ) -> Library:
        """Build a library at ``out``; ``quick`` trades kernel speed for compile time.

        ``counted`` is called with the number of units compiled so far, and the number to compile.
        """
        useful = useful_levels(levels, {*contents.kernels})
        if self.deployments and not self._drafted(levels):
            every = tuple(
                replace(d, levels=tuple(useful_levels(d.levels, {*contents.kernels})))
                for d in self.deployments
            )
            return build_all(every, contents, out, environment, quick, counted)
        return build_library(
            contents,
            useful,
            out,
            environment=environment,
            quick=quick,
            counted=counted,
        )

    def _drafted(self, levels: Sequence[str]) -> bool:
        """Whether a library is for measurements here alone, and not to be published."""
        first = self.deployments[0]
        return first.platform == HERE and tuple(levels) == first.levels[-1:] != first.levels

    def compile_part(
        self,
        contents: LibraryContents,
        levels: Sequence[str],
        folder: Path,
        environment: Environment,
        entry: str,
        quick: bool = False,
    ) -> LibraryPart:
        """Write the objects of a library to ``folder``.

        ``entry`` is the name of the function that registers the op types.  Raises BuildError.
        """
        useful = useful_levels(levels, {*contents.kernels})
        return compile_part(
            contents, useful, folder, environment=environment, quick=quick,
            entry=entry,
        )  # fmt: skip


def useful_levels(levels: Sequence[str], kernels: Set[str]) -> list[str]:
    """Return ``levels``; an int8 level with no variant of any of ``kernels`` becomes its base."""

    def useful(name: str) -> str:
        without = name in _OPTIONAL and not kernels_with_variant_at(name) & kernels
        return useful(isa_of(name).base) if without else name

    return list(dict.fromkeys(map(useful, levels)))


CPU = CpuBackend()
