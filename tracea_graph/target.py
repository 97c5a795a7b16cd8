"""Targets: the hardware kernels are built for, and the backends that build them.

A backend is a folder of ``kernels/``; only this module imports backends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tracea_graph.config import Environment
from tracea_graph.errors import UsageError, did_you_mean
from tracea_graph.hardware import CallWorkQueries, MachineDiagnostics, TaskRecording
from tracea_graph.ir import TensorSpec
from tracea_graph.kernels.cpu.backend import CPU, CpuBackend
from tracea_graph.kernels.cpu.platform_deployment import deployments_of, unmeasured
from tracea_graph.kernels.generated_source import Source
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.kernels.kernel_metadata import KernelMetadata
from tracea_graph.kernels.program import (
    NO_CONTENTS,
    LaunchedCall,
    LibraryContents,
    Program,
)
from tracea_graph.kernels.rule_names import RuleNames
from tracea_graph.passes import PlanRequest
from tracea_graph.policy import KernelCatalog, Machine, PolicyEngine
from tracea_graph.rewrite import Pass, Phase
from tracea_graph.target_names import BOTH, HOST
from tracea_graph.toolchain import LibraryManifest, LibraryPart
from tracea_graph.toolchain.platforms import PLATFORMS
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.tuning.schedule_space import Tunable

__all__ = [
    "BACKENDS", "HOST", "Backend", "PartBuilder", "Target", "backend_named", "host_fingerprint",
    "read_environment", "resolve_precision", "target_of", "targets", "tile_setting_names",
]  # fmt: skip


class Backend(Tunable, Protocol):
    """The pipeline's interface to a kind of hardware.

    ``levels`` are the instruction sets or architectures that a library has code for, lowest first.
    """

    @property
    def name(self) -> str:
        """Name of the backend; it is the part of a target's name before the colon."""
        ...

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets that the backend builds for, lowest level first."""
        ...

    @property
    def caps(self) -> tuple[str, ...]:
        """Values of TRACEA_ISA that limit this backend's kernels, lowest first."""
        ...

    @property
    def rules(self) -> RuleNames:
        """Names of the backend's rewrite rules, grouped by what they are for."""
        ...

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers of ONNX Runtime for the same device, which results compete with."""
        ...

    @property
    def most_guarded(self) -> int:
        """Maximum number of tensors that one guard program compares."""
        ...

    def resolve_precision(self, precision: str, levels: Sequence[str]) -> tuple[str, str]:
        """Return the precision that kernels compute in, and a note if it was not requested."""
        ...

    @property
    def whole_models(self) -> bool:
        """Whether programs can hold whole models; an operator outside of one then costs copies."""
        ...

    @property
    def convolves_volumes(self) -> bool:
        """Whether kernels convolve volumes, so that these need not become images first."""
        ...

    def multiplies_float8(self, levels: Sequence[str]) -> bool:
        """Return whether kernels of all these levels multiply 8-bit floats."""
        ...

    def two_of_four_time(self, levels: Sequence[str], precision: str) -> float:
        """Return the likely share of its dense time that a 2:4 sparse matmul takes.

        1.0 if kernels of these levels gain nothing from such zeros.
        """
        ...

    def requirement(self, manifest: LibraryManifest) -> str:
        """Return what a machine must have to run a library of this backend, as a sentence.

        "" if it needs only what ONNX Runtime needs.
        """
        ...

    def unmeasured(self, levels: Sequence[str]) -> str:
        """Return why timing kernels of these levels on this machine is pointless; "" if it is not.

        Either this machine cannot run the kernels, or ONNX Runtime cannot be limited to the same
        instructions.  The answer is a sentence.  All planned rewrites are then kept without
        timing.
        """
        ...

    def machine(self, levels: Sequence[str], environment: Environment | None = None) -> Machine:
        """Return the machine that gains are predicted for.

        It is this machine if ``environment`` is given, else a fixed reference machine.
        """
        ...

    @property
    def catalog(self) -> KernelCatalog:
        """The backend's kernels, from which the policy chooses."""
        ...

    @property
    def diagnostics(self) -> MachineDiagnostics | None:
        """Access to measurements for the doctor and the policy; None if the backend has none."""
        ...

    @property
    def tracing(self) -> CallWorkQueries | None:
        """Access to the work of kernel calls; None if the backend's libraries time no calls."""
        ...

    @property
    def recording(self) -> TaskRecording | None:
        """How libraries record the tasks of a run; None if they record none."""
        ...

    def structure_rules(self, request: PlanRequest) -> tuple[Pass, ...]:
        """Return the backend's rules for matmuls with structured (such as sparse) weights.

        They compete with the target-independent rules for such matmuls.
        """
        ...

    def phases(
        self, request: PlanRequest, machine: Machine, sizes: Mapping[str, int]
    ) -> tuple[Phase, ...]:
        """Return the backend's phases, which run in this order after the target-independent ones.

        ``sizes`` are the values of the graph's symbols.
        """
        ...

    def lacks(self, graph: TileGraph, region: Region) -> str:
        """Return why a region cannot be lowered, and must not be fused; empty if it can be."""
        ...

    def lower(self, graph: TileGraph, region: Region) -> Program:
        """Return the program of one fused region.  Raises TypeError if it is not fused."""
        ...

    def launch_order(
        self, program: Program, fixed: frozenset[int], sizes: Mapping[str, int]
    ) -> tuple[LaunchedCall, ...]:
        """Return the calls that a device launches one after another when a program runs.

        ``fixed`` are the indices of inputs that are constants, ``sizes`` the likely values of the
        program's symbols, as far as they are known.  Empty for a backend without launches.
        """
        ...

    def lower_guard(self, specs: Sequence[TensorSpec]) -> Program:
        """Return a program that compares tensors with reference tensors byte by byte.

        ``specs`` are the types and shapes of the tensors.
        """
        ...

    @property
    def standalone_ops(self) -> tuple[str, ...]:
        """Functions of the C interface that a kernel library without a model can contain.

        Empty for a backend that builds no such libraries.
        """
        ...

    def metadata(
        self,
        levels: Sequence[str],
        kernels: Sequence[str] | None = None,
        environment: Environment | None = None,
    ) -> tuple[KernelMetadata, ...]:
        """Return the metadata of ``kernels``, by default of all kernels of these levels.

        With ``environment``, kernels are compiled, and their resources are included.  Empty for a
        backend that keeps no metadata.  Raises BuildError if a kernel does not compile.
        """
        ...

    def standalone(self, ops: Sequence[str]) -> LibraryContents:
        """Return the kernels and chains that ``ops`` (of :attr:`standalone_ops`) need."""
        ...

    def device_runtime(self) -> Mapping[str, str]:
        """Return sources and headers that let the C interface's runtime use the backend's devices.

        Empty if the backend's device is the host.
        """
        ...

    def require_compilers(self, environment: Environment) -> None:
        """Raise BuildError, which says what to install, if a compiler of kernels is missing."""
        ...

    def build_ahead(
        self,
        levels: Sequence[str],
        environment: Environment,
        stopped: Callable[[], bool],
        contents: LibraryContents = NO_CONTENTS,
    ) -> None:
        """Compile what every library for these levels needs, then ``contents``.

        This is called in a separate thread.  No compilation is started after ``stopped`` has
        returned True.  Errors are not raised here: ``build`` meets them again.
        """
        ...

    def sources(self, contents: LibraryContents, levels: Sequence[str]) -> Sequence[Source]:
        """Return the generated sources of a library."""
        ...


@runtime_checkable
class PartBuilder(Protocol):
    """A backend whose kernels can share one library with the kernels of another backend."""

    @property
    def bypass(self) -> Mapping[str, str]:
        """Environment variables that make nodes run function bodies instead of the kernels."""
        ...

    def compile_part(
        self,
        contents: LibraryContents,
        levels: Sequence[str],
        folder: Path,
        environment: Environment,
        entry: str,
        quick: bool = False,
    ) -> LibraryPart:
        """Compile the backend's share of a library to object files in ``folder``.

        ``entry`` is the name of the function that registers the op types.  Raises BuildError if a
        source does not compile.
        """
        ...


BACKENDS: tuple[Backend, ...] = (CPU, GPU)
"""Every backend; the first one serves :data:`HOST`."""


@dataclass(frozen=True)
class Target:
    """What to build libraries for: a backend, and some of its levels, lowest first.

    If there is a ``fallback`` target, the function bodies of custom ops call its kernels;
    otherwise they consist of standard operators.  ``elsewhere`` says why this machine cannot run
    the libraries of the other platforms in a target.
    """

    backend: Backend
    levels: tuple[str, ...]
    fallback: Target | None = None
    elsewhere: str = ""

    @property
    def every_level(self) -> tuple[str, ...]:
        """The levels of the fallback, if any, followed by the target's own levels."""
        return (*(self.fallback.levels if self.fallback else ()), *self.levels)

    def variables(self, level: str) -> Mapping[str, str]:
        """Return the environment variables that limit a library's kernels to a level."""
        if self.fallback is None:
            return {"TRACEA_ISA": level}
        if level in self.levels:
            return {}
        assert isinstance(self.backend, PartBuilder)
        return {**self.backend.bypass, "TRACEA_ISA": level}

    def policy(self, cap: str | None = None) -> PolicyEngine:
        """Return the policy for the levels up to ``cap``, the value of TRACEA_ISA."""
        caps = self.backend.caps
        below = caps[: caps.index(cap) + 1] if cap in caps else caps
        allowed = [n for n in self.levels if n not in caps or n in below]
        return PolicyEngine(self.backend.catalog, allowed or self.levels[:1])


def read_environment(cache: Path | None = None) -> Environment:
    """Return the environment, with another cache folder if one is given.

    Raises UsageError if ``TRACEA_ISA`` is a level that no backend has.
    """
    found = Environment(cache=cache) if cache else Environment()
    known = [level for backend in BACKENDS for level in backend.caps]
    if found.level and found.level not in known:
        names = ", ".join(known)
        raise UsageError(f"TRACEA_ISA is {found.level!r}, but must be one of {names}")
    return found


def host_fingerprint() -> Mapping[str, Any]:
    """Return the :data:`HOST` backend's description of this machine; JSON-ready."""
    return BACKENDS[0].fingerprint()


def backend_named(name: str) -> Backend:
    """Return the backend with a name that is recorded in a result.

    An empty name, as in results without a record, means the first backend.  Raises UsageError if
    there is no such backend.
    """
    for backend in BACKENDS if name else BACKENDS[:1]:
        if name in ("", backend.name):
            return backend
    raise UsageError(f"this version has no backend {name!r}")


def targets() -> tuple[str, ...]:
    """Return the names of all targets."""
    behind = (b for b in BACKENDS[1:] if isinstance(b, PartBuilder))
    both = (f"{BOTH}{name}" for backend in behind for name in backend.targets)
    return (HOST, *(name for backend in BACKENDS for name in backend.targets), *both)


def tile_setting_names() -> tuple[str, ...]:
    """Return all names of settings that a schedule hint may contain, over all backends."""
    found = (b.schedule_space.tile for b in BACKENDS if b.schedule_space is not None)
    return tuple(dict.fromkeys(word for words in found for word in words))


def target_of(name: str, precision: str) -> Target:
    """Return the target with this name; ``precision`` is that of matmuls.

    Raises UsageError for a target that cannot be built for, or that this machine cannot verify.
    """
    if name.startswith(BOTH):
        main, first = target_of(name.removeprefix(BOTH), precision), BACKENDS[0]
        if main.backend is first or not isinstance(main.backend, PartBuilder):
            raise UsageError(f"there is no target {name!r}: both parts are for one processor")
        return Target(main.backend, main.levels, Target(first, first.levels("", "fp32")))
    parts = name.split(",")
    if len(parts) > 1 or parts[0].partition(":")[0] in PLATFORMS:
        return _deployed(parts, precision)
    if name == HOST:
        backend, level = BACKENDS[0], ""
    else:
        device, _, level = name.partition(":")
        known = {backend.name: backend for backend in BACKENDS}
        if device not in known or name not in known[device].targets:
            which = did_you_mean(name, targets()) or f"; use {', '.join(targets())}"
            raise UsageError(f"there is no target {name!r}{which}")
        backend = known[device]
    return Target(backend, backend.levels(level, precision))


def _deployed(names: Sequence[str], precision: str) -> Target:
    """Return the target of libraries for several platforms, or for another than this one."""
    deployments = deployments_of(names, precision)
    rest = unmeasured(deployments[1:])
    return Target(CpuBackend(deployments), deployments[0].levels, elsewhere=rest)


def resolve_precision(name: str, precision: str) -> tuple[str, tuple[str, ...]]:
    """Return the precision that a named target computes in, and notes for the user.

    A note says that this is not the requested precision, or that nothing can be measured on this
    machine.
    """
    target = target_of(name, precision)
    resolve_precision, note = target.backend.resolve_precision(precision, target.levels)
    unmeasured = target.backend.unmeasured(target.levels)
    return resolve_precision, tuple(filter(None, (note, unmeasured, target.elsewhere)))
