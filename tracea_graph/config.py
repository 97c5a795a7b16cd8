"""Tolerances, the environment variables the package reads, and types of options."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["TOLERANCE", "AttentionWindow", "Environment", "PruneSpec", "usable_processors"]


@dataclass(frozen=True)
class Tolerance:
    """Error allowed for outputs, as a share of ``max|y|``."""

    exact: float = 1e-4
    """Rewrites that only reorder arithmetic."""
    lossy: float = 1e-2
    """Rewrites that reduce precision, unless ``--max-error`` is given."""
    floor_factor: float = 2.0
    """Multiple of the distance between ONNX Runtime with and without its own optimizations."""
    lent_floor: float = 1e-3
    """Maximum of that distance that one feed contributes to the others."""
    half: float = 2e-2
    """Results of an fp16 model against those of its float32 form."""
    kernel_f32: float = 1e-5
    """An fp32 kernel against the fp64 reference, as a share of max|y|."""
    kernel_fast_math: float = 2**-11
    """An fp32 kernel with a fast-math chain (``ops.chain``) against the fp64 reference."""
    sigmoid: float = 2**-23
    """Error of a float32 sigmoid, as a share of its range from 0 to 1; ONNX Runtime's own is half
    of that.
    """
    rounding: float = 1e-6
    """Difference between fp32 sums of a deep network in two orders, as a share of the largest sum.
    """
    overturn: float = 0.1
    """Change of a logit that can change the answer."""


TOLERANCE = Tolerance()


@dataclass(frozen=True)
class Environment:
    """The environment variables that the package reads."""

    level: str | None = field(default_factory=lambda: os.environ.get("TRACEA_ISA"))
    """``TRACEA_ISA``: the highest backend level that kernels may use (see
    ``target.read_environment``).
    """
    cache: Path = field(default_factory=lambda: _cache_root())
    """``TRACEA_CACHE``: folder of compiled kernels and tuning results."""
    compiler: str | None = field(default_factory=lambda: os.environ.get("CXX"))
    """``CXX``: the C++ compiler; if unset, gcc, clang and the ziglang wheel are tried."""
    check: bool = field(
        default_factory=lambda: os.environ.get("TRACEA_CHECK", "") not in ("", "0")
    )
    """``TRACEA_CHECK=1``: check the graph after every pass."""
    strict: bool = field(
        default_factory=lambda: os.environ.get("TRACEA_STRICT", "") not in ("", "0")
    )
    """``TRACEA_STRICT=1``: end the run if a rule raises, instead of leaving the rule out."""
    task_times: bool = field(
        default_factory=lambda: os.environ.get("TRACEA_TASK_TIMES", "") not in ("", "0")
    )
    """``TRACEA_TASK_TIMES=1``: build kernels that can record when their tasks run, on backends
    where only kernels made for it can; they are slower.
    """


def usable_processors() -> int:
    """Return how many logical processors this process may use at a time.

    A container may be limited to some of them, or by a quota of their time.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return min(count, cgroup_processor_quota() or count)


def cgroup_processor_quota(
    groups: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return how many processors' worth of time the control groups allow; None if unlimited.

    The number is rounded up.  ``groups`` is the file in which Linux lists the control groups of
    this process, ``mounts`` the folder where they are mounted.  The limits of enclosing groups
    count too.  ``kernels/runtime/quota.h`` does the same at run time.
    """
    least: int | None = None
    for line in _text(groups).splitlines():
        _, _, rest = line.partition(":")
        controllers, found, path = rest.partition(":")
        if not found or (controllers and "cpu" not in controllers.split(",")):
            continue
        root = mounts / "cpu" if controllers else mounts
        own = root / path.lstrip("/")
        for group in (own, *(p for p in own.parents if p.is_relative_to(root))):
            allowed = _quota_of(group, unified=not controllers)
            least = min(filter(None, (least, allowed)), default=None)
    return least


def _quota_of(group: Path, unified: bool) -> int | None:
    if unified:
        words = _text(group / "cpu.max").split()
    else:
        words = [_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):
        return None
    quota, period = map(int, words)
    return -(-quota // period)


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, ValueError):
        return ""


def _cache_root() -> Path:
    if path := os.environ.get("TRACEA_CACHE"):
        return Path(path)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tracea-graph"


@dataclass(frozen=True)
class AttentionWindow:
    """A limit on the keys that a query attends to.

    With causal attention, a query sees the last ``keys`` keys up to its own position; otherwise,
    half of them on either side.  In addition it sees the first ``global_keys`` keys.  ``layers``
    (first, end) selects attention layers, counted from 0 in graph order, without ``end``; None
    selects all.
    """

    keys: int
    global_keys: int = 0
    layers: tuple[int, int] | None = None


@dataclass(frozen=True)
class PruneSpec:
    """A pattern of zeros for weight pruning; ``share`` is the share of zeros.

    Single elements are zeroed by default.  With ``group``, the share holds in each group of so
    many elements along k.  With ``block`` (columns, rows along k), whole blocks are zeroed.  With
    ``channels``, no elements are zeroed; instead, up to ``share`` of the channels between two
    matmuls are removed.
    """

    share: float
    group: int = 0
    block: tuple[int, int] | None = None
    channels: bool = False
