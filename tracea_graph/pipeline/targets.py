"""Which instruction-set levels a library holds."""

from __future__ import annotations

from tracea_graph.errors import UsageError
from tracea_graph.hardware import profile_cpu

__all__ = ["levels_of"]

_ALL = ("scalar", "avx2", "avx512")


def levels_of(target: str, precision: str = "fp32") -> tuple[str, ...]:
    """Levels up to the target's, lowest first: every lower one is a fallback.

    Raises UsageError for a target nothing can be built for, or that this machine cannot check.
    """
    host = profile_cpu().isas
    if target == "host":
        return profile_cpu().levels(precision)
    device, _, level = target.partition(":")
    if device != "cpu" or level not in _ALL:
        raise UsageError(f"there is no target {target!r}; use host, cpu:{', cpu:'.join(_ALL)}")
    if level not in host:
        raise UsageError(f"this machine cannot run, so cannot check, {target}; it has {host[-1]}")
    return _ALL[: _ALL.index(level) + 1]
