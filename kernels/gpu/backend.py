"""The GPU backend: implements the ``Backend`` protocol of ``target.py`` with CUDA C++ kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.errors import GraphError
from tracea_graph.hardware import CallWorkQueries, MachineDiagnostics, TaskRecording
from tracea_graph.ir import TensorSpec
from tracea_graph.kernels.generated_source import Source
from tracea_graph.kernels.gpu import plan_encoding
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.dialect import CUDA, Dialect
from tracea_graph.kernels.gpu.float8_rounding import FLOAT8_FACTORS
from tracea_graph.kernels.gpu.kernel_catalog import GpuCatalog
from tracea_graph.kernels.gpu.kernel_facts import kernel_metadata
from tracea_graph.kernels.gpu.kernel_selection import kernels_of, launches_for
from tracea_graph.kernels.gpu.launch_order import launch_order
from tracea_graph.kernels.gpu.library_build import (
    Compile,
    build_library,
    compile_part,
    cubins,
    sources_of,
)
from tracea_graph.kernels.gpu.lowering.lower import MOST_GUARDED, calls_of, lower, lower_guard
from tracea_graph.kernels.gpu.machine_model import GpuDiagnostics, gpus, level_of, measured_machine
from tracea_graph.kernels.gpu.named_targets import TARGETS
from tracea_graph.kernels.gpu.nvrtc import find_nvrtc
from tracea_graph.kernels.gpu.phases import MIXED_PRECISION, TYPES, phases, structure_rules
from tracea_graph.kernels.gpu.schedules import GpuScheduleSpace
from tracea_graph.kernels.gpu.standalone_functions import OPS, kernels_of_functions
from tracea_graph.kernels.gpu.two_of_four_rules import TIMED_LEVEL, TWO_OF_FOUR_TIME
from tracea_graph.kernels.kernel_metadata import KernelMetadata
from tracea_graph.kernels.program import (
    NO_CONTENTS,
    Call,
    LaunchedCall,
    LibraryContents,
    Program,
)
from tracea_graph.kernels.program_writer import LackingError
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
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.tuning.schedule_space import ScheduleSpace

__all__ = ["GPU", "GpuBackend"]

_DEFAULT = ("sm_80", "sm_90a")
"""Architectures to build for if this machine has no GPU."""
_UNMEASURED = (
    "this machine has no usable NVIDIA GPU: the kernels were neither run nor timed; "
    "verification covers the function bodies, which run instead"
)


class GpuBackend:
    """Backend that emits CUDA C++ kernels, compiled by NVRTC.

    Its ISA levels are GPU architectures, oldest first.
    """

    targets: tuple[str, ...] = TARGETS
    rules = RuleNames(
        rounding=(FLOAT8_FACTORS, MIXED_PRECISION), fallback={MIXED_PRECISION: FLOAT8_FACTORS},
        precision_fallbacks=((FLOAT8_FACTORS,), (FLOAT8_FACTORS, MIXED_PRECISION)),
    )  # fmt: skip
    providers: tuple[str, ...] = ("CUDAExecutionProvider",)
    most_guarded = MOST_GUARDED
    whole_models = convolves_volumes = True
    caps = ()
    diagnostics: MachineDiagnostics | None = GpuDiagnostics()
    tracing: CallWorkQueries | None = None
    recording: TaskRecording | None = TaskRecording("multiprocessor", True, "TRACEA_TASK_TIMES=1")
    bypass: Mapping[str, str] = MappingProxyType({"TRACEA_DEVICE": "cpu"})
    standalone_ops: tuple[str, ...] = OPS

    def __init__(
        self, name: str = "cuda", dialect: Dialect = CUDA, compiled: Compile = cubins
    ) -> None:
        self.name, self._dialect, self._compiled = name, dialect, compiled
        self.catalog: KernelCatalog = (catalog := GpuCatalog(name, CALLS))
        timed = GpuScheduleSpace(catalog) if dialect is CUDA else None
        self.schedule_space: ScheduleSpace | None = timed

    def levels(self, level: str, precision: str) -> tuple[str, ...]:
        """Return the architecture named ``level``; for "", those of this machine's GPUs.

        Two default architectures are returned if there is no supported GPU.
        """
        if level:
            return (level if level in ARCHITECTURES else f"{level}a",)
        found = {level_of(gpu.capability) for gpu in gpus()} - {""}
        return tuple(name for name in ARCHITECTURES if name in found) or _DEFAULT

    def resolve_precision(self, precision: str, levels: Sequence[str]) -> tuple[str, str]:
        """Return the precision to compute in, and the reason if it is not the requested one."""
        if precision not in ("fp32", *TYPES):
            known = "fp32, tf32, fp16, bf16 and fp8"
            return "fp32", f"GPU kernels compute in {known}, not in {precision}"
        needs = {"bf16": "bf16", "tf32": "bf16", "fp8": "float8"}.get(precision)
        old = [n for n in levels if needs and not ARCHITECTURES[n].has(needs)]
        if old:
            why = f"nothing is computed in {precision}: {old[0]} has no instructions for this type"
            return "fp16" if precision == "fp8" else "fp32", why
        return precision, ""

    def multiplies_float8(self, levels: Sequence[str]) -> bool:
        """Return whether all these architectures have instructions for 8-bit floats."""
        return all(ARCHITECTURES[name].has("float8") for name in levels)

    def two_of_four_time(self, levels: Sequence[str], precision: str) -> float:
        """Return the likely share of its dense time that a 2:4 sparse matmul takes."""
        halves = TYPES.get(precision) in ("f16", "bf16")
        return TWO_OF_FOUR_TIME if halves and tuple(levels) == (TIMED_LEVEL,) else 1.0

    def unmeasured(self, levels: Sequence[str]) -> str:
        """Return why GPU kernels cannot run on this machine, or "" if they can."""
        return "" if self._dialect is not CUDA or gpus() else _UNMEASURED

    def requirement(self, manifest: LibraryManifest) -> str:
        """Return which driver runs a library: that of the CUDA version which compiled it."""
        if not (version := manifest.get("driver", 0)):
            return ""
        cuda = f"{version // 1000}.{version % 1000 // 10}"
        return f"the GPU kernels need an NVIDIA driver for CUDA {cuda} or newer"

    def machine(self, levels: Sequence[str], environment: Environment | None = None) -> Machine:
        """Return the cost model of this machine's GPU, or of an H100; see ``measured_machine``."""
        return measured_machine(levels, environment if self._dialect is CUDA else None)

    def fingerprint(self) -> dict[str, Any]:
        """Return the properties of this machine's GPUs that results depend on, ready for JSON."""
        found = gpus()
        model = found[0].name if found else "no GPU"
        return {"model": model, "gpus": [asdict(gpu) for gpu in found]}

    def structure_rules(self, request: PlanRequest) -> tuple[Pass, ...]:
        """Return the rules for low-rank and block-sparse matrices, and for windowed attention."""
        return structure_rules(request)

    def phases(
        self, request: PlanRequest, machine: Machine, sizes: Mapping[str, int]
    ) -> tuple[Phase, ...]:
        """Return the phases that run after the passes, in order."""
        return phases(request, sizes)

    def lacks(self, graph: TileGraph, region: Region) -> str:
        """Return why a fused region cannot be lowered, or "" if it can."""
        try:
            for call in calls_of(graph, region):
                kernels_of(call)
                launches_for(call)
        except (LackingError, GraphError) as why:
            return str(why)
        return ""

    def lower(self, graph: TileGraph, region: Region) -> Program:
        """Lower a fused region to a program.  Raises TypeError if the region is not fused."""
        return lower(graph, region)

    def launch_order(
        self, program: Program, fixed: frozenset[int], sizes: Mapping[str, int]
    ) -> tuple[LaunchedCall, ...]:
        """Return the calls that one execution launches, and why each needs its own launch."""
        return launch_order(program, fixed, sizes)

    def lower_guard(self, specs: Sequence[TensorSpec]) -> Program:
        """Return a program that compares tensors of these specs with references, bytewise."""
        return lower_guard(specs)

    def encode(self, program: Program) -> tuple[int, ...]:
        """Encode a program for the library.  Raises GraphError if the program exceeds a limit."""
        return plan_encoding.encode(program)

    def kernels_of(self, call: Call) -> set[str]:
        """Return the names of the call's kernels; they compute its elementwise expression too."""
        return set(kernels_of(call))

    def metadata(
        self,
        levels: Sequence[str],
        kernels: Sequence[str] | None = None,
        environment: Environment | None = None,
    ) -> tuple[KernelMetadata, ...]:
        """Return the facts of every variant; see :func:`kernel_metadata`.  Raises BuildError."""
        return kernel_metadata(levels, kernels, environment)

    def standalone(self, ops: Sequence[str]) -> LibraryContents:
        """Return the kernels and expressions that these C functions launch."""
        return kernels_of_functions(ops)

    def device_runtime(self) -> Mapping[str, str]:
        """Return the C++ sources, by path, that give ``tsr.h`` streams, memory and copies."""
        folder = Path(__file__).parent / "runtime"
        names = ("driver.h", "tsr_gpus.cpp")
        return {f"runtime/{name}": (folder / name).read_text(encoding="utf-8") for name in names}

    def sources(self, contents: LibraryContents, levels: Sequence[str]) -> list[Source]:
        """Generate the kernel sources of a library, without the runtime."""
        found = sources_of(contents, levels, self._dialect)
        return [source for level in levels for source in found[level]]

    def require_compilers(self, environment: Environment) -> None:
        """Raise BuildError if the C++ compiler, or NVRTC for CUDA, cannot be used."""
        find_compiler(environment)
        if self._dialect is CUDA:
            find_nvrtc()

    def build_ahead(
        self,
        levels: Sequence[str],
        environment: Environment,
        stopped: Callable[[], bool],
        contents: LibraryContents = NO_CONTENTS,
    ) -> None:
        """Do nothing: most of the build time goes to kernels that are not known yet."""

    def build(
        self,
        contents: LibraryContents,
        levels: Sequence[str],
        out: Path,
        environment: Environment,
        quick: bool = False,
        counted: Counted = ignore_progress,
    ) -> Library:
        """Build a library at ``out``.  Raises BuildError and leaves no file there on failure."""
        return build_library(contents, levels, out, environment, self._compiled, self._dialect)

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
        return compile_part(
            contents, levels, folder, environment, self._compiled, self._dialect,
            entry,
        )  # fmt: skip


GPU = GpuBackend()
