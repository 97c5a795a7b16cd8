"""Targets: what kernels are built for, and the backends that build them.

A backend is a folder of ``kernels/``; nothing but this module imports one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tracea_graph.config import Environment
from tracea_graph.errors import UsageError, close_match
from tracea_graph.hardware import Diagnostics
from tracea_graph.ir import TensorSpec
from tracea_graph.kernels.cpu.backend import CPU
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.kernels.program import Program
from tracea_graph.kernels.rules import RuleNames
from tracea_graph.kernels.source import Source
from tracea_graph.ops.chain import Chain
from tracea_graph.passes import Request
from tracea_graph.policy import Machine
from tracea_graph.rewrite import Phase
from tracea_graph.target_names import HOST
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.tuning.schedule_space import Tunable

__all__ = [
    "BACKENDS", "HOST", "Backend", "Target", "backend_named", "host_fingerprint",
    "read_environment", "resolve_precision", "target_of", "targets", "tile_words",
]  # fmt: skip


class Backend(Tunable, Protocol):
    """What the pipeline asks of a kind of hardware.

    ``levels`` are what one library holds code for, lowest first: instruction sets, architectures.
    """

    @property
    def name(self) -> str:
        """The word before the colon of a target."""
        ...

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets one can name, lowest first."""
        ...

    @property
    def caps(self) -> tuple[str, ...]:
        """Levels that TRACEA_ISA may cap kernels at, lowest first."""
        ...

    @property
    def rules(self) -> RuleNames:
        """The rules of its phases, by what they are for."""
        ...

    @property
    def most_guarded(self) -> int:
        """Tensors one guard compares at most."""
        ...

    def resolve_precision(self, precision: str, levels: Sequence[str]) -> tuple[str, str]:
        """The precision that is computed in, and a sentence where it is another one."""
        ...

    def unmeasured(self) -> str:
        """Why its kernels cannot run on this machine, as a sentence; "" where they can.

        What it makes is then kept as it was planned: nothing of it is timed.
        """
        ...

    def machine(self, levels: Sequence[str], environment: Environment | None = None) -> Machine:
        """The machine gains are predicted for: this one, or a fixed one without environment."""
        ...

    @property
    def diagnostics(self) -> Diagnostics | None:
        """What the doctor and the profiler can ask of it; None if it measures nothing."""
        ...

    def phases(
        self, request: Request, machine: Machine, sizes: Mapping[str, int]
    ) -> tuple[Phase, ...]:
        """What follows the passes, in order; ``sizes`` are values of symbols."""
        ...

    def lacks(self, graph: TileGraph, region: Region) -> str:
        """Why there can be no program of a fused region, or "": it is not made then."""
        ...

    def lower(self, graph: TileGraph, region: Region) -> Program:
        """The program of one fused region.  Raises TypeError for one that is not fused."""
        ...

    def lower_guard(self, specs: Sequence[TensorSpec]) -> Program:
        """A program that compares tensors of these specs with as many references, bytewise."""
        ...

    def sources(
        self, kernels: Iterable[str], chains: Iterable[Chain], levels: Sequence[str]
    ) -> Sequence[Source]:
        """The generated sources of a library."""
        ...


BACKENDS: tuple[Backend, ...] = (CPU, GPU)
"""Every backend; the first one serves :data:`HOST`."""


@dataclass(frozen=True)
class Target:
    """A backend and the levels a library holds code for, lowest first."""

    backend: Backend
    levels: tuple[str, ...]


def read_environment(cache: Path | None = None) -> Environment:
    """The environment, with another folder for the cache if one is given.

    Raises UsageError for a level that no backend has.
    """
    found = Environment(cache=cache) if cache else Environment()
    known = [level for backend in BACKENDS for level in backend.caps]
    if found.level and found.level not in known:
        names = ", ".join(known)
        raise UsageError(f"TRACEA_ISA is {found.level!r}, but must be one of {names}")
    return found


def host_fingerprint() -> Mapping[str, Any]:
    """What this machine is, as the backend of :data:`HOST` tells it; JSON-ready."""
    return BACKENDS[0].fingerprint()


def backend_named(name: str) -> Backend:
    """The backend of a name, which stands in results; those that say none are the first one's.

    Raises UsageError where there is none.
    """
    for backend in BACKENDS if name else BACKENDS[:1]:
        if name in ("", backend.name):
            return backend
    raise UsageError(f"kernels of {name!r} are none that this version knows")


def targets() -> tuple[str, ...]:
    """Every target one can name."""
    return (HOST, *(name for backend in BACKENDS for name in backend.targets))


def tile_words() -> tuple[str, ...]:
    """Every word that a hint's tile may say for some backend."""
    found = (b.schedule_space.tile for b in BACKENDS if b.schedule_space is not None)
    return tuple(dict.fromkeys(word for words in found for word in words))


def target_of(name: str, precision: str) -> Target:
    """What a name stands for, where products are computed in a precision.

    Raises UsageError for a target nothing can be built for, or that this machine cannot check.
    """
    if name == HOST:
        backend, level = BACKENDS[0], ""
    else:
        device, _, level = name.partition(":")
        known = {backend.name: backend for backend in BACKENDS}
        if device not in known or name not in known[device].targets:
            which = close_match(name, targets()) or f"; use {', '.join(targets())}"
            raise UsageError(f"there is no target {name!r}{which}")
        backend = known[device]
    return Target(backend, backend.levels(level, precision))


def resolve_precision(name: str, precision: str) -> tuple[str, tuple[str, ...]]:
    """A precision the target of a name computes in, and notes: where it is another one, and where
    nothing can be measured here."""
    target = target_of(name, precision)
    resolve_precision, note = target.backend.resolve_precision(precision, target.levels)
    return resolve_precision, tuple(filter(None, (note, target.backend.unmeasured())))
