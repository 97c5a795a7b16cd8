"""Documents of ``tracea tune --json`` and ``tracea cache ls --json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["CachedResult", "TunedCase", "TunedReport"]


@dataclass(frozen=True)
class TunedCase:
    """Result of one case; ``nodes`` is how many nodes of the model have it.

    ``share`` is its share of the model's predicted time, ``gain`` the speedup of ``schedule``, and
    ``source`` one of ``cache``, ``hint``, ``measured``, ``unfinished`` and ``default``.
    """

    region: str
    nodes: int
    share: float
    source: str
    why: str
    gain: float
    schedule: Mapping[str, Any]


@dataclass(frozen=True)
class TunedReport:
    """Tuning results of one model.

    ``saved`` is the share of the model's predicted time that they save.
    """

    model: str
    saved: float
    cases: tuple[TunedCase, ...]
    schema_version: Literal[1] = 1


@dataclass(frozen=True)
class CachedResult:
    """One cached tuning result.

    ``about`` has everything the result depends on, of which ``key`` is a digest.  ``trials`` is
    the number of measured schedules, ``final`` is False if the search was interrupted, and
    ``written`` is in seconds since 1970.
    """

    key: str
    what: str
    about: Mapping[str, str]
    value: Any
    trials: int
    final: bool
    written: float
    schema_version: Literal[1] = 1
