"""The doctor's findings about a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracea_graph.hardware.cpu import CpuProfile
from tracea_graph.hardware.gpu import Gpus
from tracea_graph.hardware.machine_measurements import Measurements
from tracea_graph.json_documents import to_json

__all__ = ["BackendHealth", "Health", "RuntimeHealth"]


@dataclass(frozen=True)
class RuntimeHealth:
    """ONNX Runtime: its version and providers, and the installed distributions.

    ``warning`` names two distributions that overwrite each other's files; ``repair`` is the
    command that leaves one of them.
    """

    version: str
    providers: tuple[str, ...]
    installed: tuple[str, ...]
    warning: str = ""
    repair: str = ""


@dataclass(frozen=True)
class BackendHealth:
    """What one backend says about this machine.

    ``levels`` are the levels that kernels are built for, lowest first; ``features`` are further
    features that kernels can use.  ``problem`` says why kernels cannot run here; empty if they
    can.  ``figures`` is None for a backend that measures nothing.
    """

    name: str
    levels: tuple[str, ...]
    features: tuple[str, ...] = ()
    problem: str = ""
    figures: Measurements | None = None


@dataclass(frozen=True)
class Health:
    """The doctor's findings; ``fingerprint`` is equal on equal machines."""

    fingerprint: str
    cpu: CpuProfile
    backends: tuple[BackendHealth, ...]
    runtime: RuntimeHealth
    gpus: Gpus
    schema_version: Literal[1] = 1

    def to_json(self) -> str:
        """Return the document ``docs/schema/doctor.json``."""
        return to_json(self).rstrip()
