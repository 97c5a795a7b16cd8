"""The doctor's findings about a machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tracea_graph.hardware.cpu import CpuProfile
from tracea_graph.hardware.gpu import Gpus
from tracea_graph.hardware.measurements import Measurements

__all__ = ["Health", "Runtime"]


@dataclass(frozen=True)
class Runtime:
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
class Health:
    """The doctor's findings; ``fingerprint`` is equal on equal machines.

    ``levels`` are the ISA levels of kernels, lowest first, ``features`` what else they can use.
    """

    fingerprint: str
    cpu: CpuProfile
    levels: tuple[str, ...]
    features: tuple[str, ...]
    figures: Measurements
    runtime: Runtime
    gpus: Gpus

    def to_json(self) -> str:
        """Return all findings except the processor's flags, by field name."""
        told = asdict(self)
        del told["cpu"]["flags"]
        return json.dumps(told, indent=2)
