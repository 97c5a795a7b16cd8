"""Options of one optimization, and every environment variable the package reads."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracea_graph.errors import UsageError

__all__ = [
    "CHOICES", "LEVELS", "TOLERANCE", "Environment", "Options", "Prune", "Window",
    "usable_processors",
]  # fmt: skip


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
    kernel_rough: float = 2**-11
    """The same where a chain is rough (``ops.chain``)."""
    rounding: float = 1e-6
    """What a deep net's fp32 sums may differ by in another order, of the largest of them."""
    overturn: float = 0.1
    """The move of a logit that can turn its probability over."""


TOLERANCE = Tolerance()


LEVELS = ("scalar", "avx2", "avx512", "avx512bf16", "amxbf16")
"""Names of instruction-set levels, lowest first."""


@dataclass(frozen=True)
class Environment:
    """The environment variables the package reads, in one place.

    Raises UsageError for a level there is none of.
    """

    isa: str | None = field(default_factory=lambda: os.environ.get("TRACEA_ISA"))
    """``TRACEA_ISA=scalar|avx2|avx512|avx512bf16|amxbf16``: the highest level kernels may use."""
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

    def __post_init__(self) -> None:
        if self.isa and self.isa not in LEVELS:
            known = ", ".join(LEVELS)
            raise UsageError(f"TRACEA_ISA is {self.isa!r}, but must be one of {known}")


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
class Window:
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


CHOICES: Mapping[str, tuple[str, ...]] = {
    "keep": ("faster", "legal"),
    "effort": ("quick", "default", "thorough"),
    "precision": ("fp32", "bf16", "bf16-weights", "bf16x2", "int16"),
}
"""The words that options of these names may be."""


@dataclass(frozen=True)
class Options:
    """What a caller may choose; the command line has a flag of the same name for each.

    Raises UsageError for values that make no sense.
    """

    output: Path | None = None
    target: str = "host"
    threads: tuple[int, ...] = ()
    """Thread counts to time; empty means 1 and all cores."""
    shapes: tuple[dict[str, int], ...] = ()
    """Symbol bindings to time; empty means the default binding."""
    keep: str = "faster"
    """``faster``: rewrites measured faster; ``legal``: every rewrite that passes its checks."""
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    budget: float = 180.0
    """Seconds of planning, verifying and measuring, at most; what is unfinished then is left out.
    Not of compiling, which is done once: its results are kept."""
    effort: str = "default"
    """``quick`` judges all rewrites together; ``thorough`` searches for better drivers, otherwise
    those found earlier are used."""
    verify: bool = True
    custom_ops: bool = True
    require_library: bool = False
    plain_weights: bool = False
    freeze_initializers: bool = False
    """Initializers that inputs may override become constants; those inputs go."""
    single_file: bool = False
    max_error: float | None = None
    rtol: float | None = None
    atol: float | None = None
    data: Path | None = None
    """Real inputs; with ``low_rank`` or ``prune`` those to calibrate with."""
    holdout: Path | None = None
    """Inputs the error of a smaller model is measured with."""
    metric: str = ""
    """``FILE.py:FUNCTION``: an error to hold ``max_error`` against instead of that of max|y|."""
    low_rank: float | None = None
    """Two factors where a layer's own output keeps within this relative error."""
    prune: Prune | None = None
    until: str | None = None
    keep_sources: Path | None = None
    cache: Path | None = None
    seed: int = 0
    precision: str = "fp32"
    """``fp32``; ``bf16``: products in bf16, sums in fp32; ``bf16-weights``: only their weights;
    ``bf16x2``: products of sums of two numbers in bf16; ``int16``: products in 16-bit integers
    with scales."""
    windows: tuple[Window, ...] = ()
    """Windows for attention; of several for one layer the last counts."""

    lock: Path | None = None
    """A plan of an earlier run: its decisions are applied, nothing is tuned or timed."""
    fresh: bool = False
    """Tune and time even where an equal earlier run has decided."""
    save_lock: Path | None = None
    """Where to write this run's decisions."""
    storage: str = ""
    """URL of tuning studies that other machines share; empty for this machine alone."""
    patterns: tuple[Mapping[str, Any], ...] = ()
    """Hints on drivers, as a ``--config`` file has them; see ``tuning.hints``."""

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise UsageError(f"--{name} must be {' or '.join(choices)}, not {value!r}")
        if not 0 < self.budget < math.inf:
            raise UsageError(f"--budget must be a number of seconds above 0, not {self.budget:g}")
        if self.seed < 0:
            raise UsageError(f"--seed must be 0 or more, not {self.seed}")
        for name in ("max_error", "rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"--{name.replace('_', '-')} must be 0 or more, not {value:g}")

    @property
    def tolerance(self) -> float:
        """The error accepted, as a share of ``max|y|``."""
        exact = self.precision in ("fp32", "bf16x2") and not (self.windows or self.compresses)
        usual = TOLERANCE.exact if exact else TOLERANCE.lossy
        return usual if self.max_error is None else self.max_error

    @property
    def compresses(self) -> bool:
        """True if weights may become others."""
        return self.low_rank is not None or self.prune is not None

    @property
    def environment(self) -> Environment:
        """The environment, with the cache these options name."""
        return Environment(cache=self.cache) if self.cache else Environment()

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Thread counts to time: those given, or one and all processors this process may use."""
        return self.threads or tuple(dict.fromkeys((1, usable_processors())))
