"""Tolerances, every environment variable the package reads, and what options are made of."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["TOLERANCE", "AttentionWindow", "Environment", "Prune", "usable_processors"]


@dataclass(frozen=True)
class Tolerance:
    """How far outputs may lie from the original's, as a share of ``max|y|``."""

    exact: float = 1e-4
    """Rewrites that only reorder arithmetic."""
    lossy: float = 1e-2
    """Rewrites that drop precision, unless ``--max-error`` says otherwise."""
    floor_factor: float = 2.0
    """Times the distance between ONNX Runtime with and without its own optimizations."""
    lent_floor: float = 1e-3
    """How much of that distance under one feed counts under the others."""
    kernel_f32: float = 1e-5
    """An fp32 kernel against the fp64 reference, of max|y|."""
    kernel_fast_math: float = 2**-11
    """The same for chains with fast math (``ops.chain``)."""
    rounding: float = 1e-6
    """What a deep net's fp32 sums may differ by in another order, of the largest of them."""
    overturn: float = 0.1
    """The move of a logit that can turn its probability over."""


TOLERANCE = Tolerance()


@dataclass(frozen=True)
class Environment:
    """The environment variables the package reads, in one place."""

    level: str | None = field(default_factory=lambda: os.environ.get("TRACEA_ISA"))
    """``TRACEA_ISA``: the highest of a backend's levels that kernels may use (see
    ``target.read_environment``)."""
    cache: Path = field(default_factory=lambda: _cache_root())
    """``TRACEA_CACHE``: where compiled kernels and tuning results are kept."""
    compiler: str | None = field(default_factory=lambda: os.environ.get("CXX"))
    """``CXX``: the C++ compiler; without it gcc, clang and the ziglang wheel are tried."""
    check: bool = field(
        default_factory=lambda: os.environ.get("TRACEA_CHECK", "") not in ("", "0")
    )
    """``TRACEA_CHECK=1``: check the graph after every pass."""
    strict: bool = field(
        default_factory=lambda: os.environ.get("TRACEA_STRICT", "") not in ("", "0")
    )
    """``TRACEA_STRICT=1``: a rule that raises ends the run, instead of being left out."""


def usable_processors() -> int:
    """Logical processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cache_root() -> Path:
    if path := os.environ.get("TRACEA_CACHE"):
        return Path(path)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tracea-graph"


@dataclass(frozen=True)
class AttentionWindow:
    """Attention that sees ``keys`` keys a query, and the first ``everywhere`` keys.

    ``layers``: from, to (not included), counted from 0 in the order of the graph; None: all.
    """

    keys: int
    everywhere: int = 0
    layers: tuple[int, int] | None = None


@dataclass(frozen=True)
class Prune:
    """A ``share`` of zeros: of all numbers, of each ``group`` along k, or of blocks; or up to that
    share of the ``channels`` between two products.

    ``block``: columns and steps of k.
    """

    share: float
    group: int = 0
    block: tuple[int, int] | None = None
    channels: bool = False
