"""A profile's record, and its table: where a model's time goes, and what bounds it there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tracea_graph.views.bench import made_with

__all__ = ["Family", "Memory", "Profile", "ProfileRow", "Roofs", "families", "render_profile"]

EXPLAINED = 0.25
"""Share of a node's time that a roof must explain to be called its bound."""


@dataclass(frozen=True)
class Memory:
    """One level: bytes it holds (0: no limit) and the GB/s all threads in use get from it."""

    name: str
    capacity: int
    gbytes: float


@dataclass(frozen=True)
class Roofs:
    """What the threads in use can do: billions of operations per second, and memories by size."""

    gflops: float
    memories: tuple[Memory, ...]
    source: str

    def memory(self, size: float) -> Memory:
        """The smallest memory that holds ``size`` bytes."""
        return next((m for m in self.memories if m.capacity >= size), self.memories[-1])


@dataclass(frozen=True)
class ProfileRow:
    """One node of the graph ONNX Runtime really runs; ``us`` is its median time.

    ``kernel`` is True for a program of this tool, whose original nodes are ``originals``.
    ``flops`` and the bytes are None where the node is unknown.  ``apart`` is what its operators
    would walk one by one.  ``compute_us`` and ``memory_us`` are what the roofs allow.
    """

    name: str
    op: str
    kernel: bool
    us: float
    flops: float | None = None
    weights: float | None = None
    activations: float | None = None
    apart: float | None = None
    compute_us: float = 0.0
    memory_us: float = 0.0
    memory: str = ""
    rule: str = ""
    originals: tuple[str, ...] = ()

    @property
    def bytes(self) -> float | None:
        """Bytes of outside values, each touched once."""
        return None if self.weights is None else self.weights + (self.activations or 0.0)

    @property
    def bound(self) -> str:
        """The roof that explains the node's time best; ``overhead`` if none explains a quarter."""
        if self.flops is None:
            return ""
        if max(self.compute_us, self.memory_us) < EXPLAINED * self.us or not self.us:
            return "overhead"
        return "compute" if self.compute_us >= self.memory_us else "memory"


@dataclass(frozen=True)
class Profile:
    """All nodes of one run, slowest first, under one binding and thread count.

    ``run_ms`` is the median time of a whole run without profiling, ``profiling_us`` what was
    taken off each node's time.
    """

    model: str
    binding: str
    threads: int
    rows: tuple[ProfileRow, ...]
    roofs: Roofs
    run_ms: float
    profiling_us: float
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def us(self) -> float:
        """All nodes together."""
        return sum(row.us for row in self.rows)

    @property
    def in_programs(self) -> float:
        """Share of the nodes' time in programs."""
        return sum(row.us for row in self.rows if row.kernel) / (self.us or 1.0)

    def to_json(self) -> str:
        """Indented JSON: the fields, and what follows from them."""
        data = dataclasses.asdict(self) | {"us": self.us, "in_programs": self.in_programs}
        for entry, row in zip(data["rows"], self.rows, strict=True):
            entry |= {"bound": row.bound, "bytes": row.bytes}
        return json.dumps(data, indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class Family:
    """Nodes of one operator that do the same work; times are those of all together, in µs."""

    op: str
    kernel: bool
    rows: tuple[ProfileRow, ...]

    @property
    def us(self) -> float:
        return sum(row.us for row in self.rows)

    @property
    def total(self) -> ProfileRow:
        """All rows added up."""
        first = self.rows[0]
        if first.flops is None:
            return dataclasses.replace(first, us=self.us)
        sums = {
            name: sum(getattr(row, name) for row in self.rows)
            for name in ("us", "flops", "weights", "activations", "apart", "compute_us", "memory_us")
        }
        return dataclasses.replace(first, **sums)


def families(rows: Sequence[ProfileRow]) -> tuple[Family, ...]:
    """Rows grouped by operator and work, the slowest group first."""
    groups: dict[tuple[Any, ...], list[ProfileRow]] = {}
    for row in rows:
        key = (row.op, row.kernel, row.flops, row.weights, row.activations)
        groups.setdefault(key, []).append(row)
    made = (Family(key[0], key[1], tuple(found)) for key, found in groups.items())
    return tuple(sorted(made, key=lambda family: -family.us))


# ---- text ------------------------------------------------------------------------------


def render_profile(profile: Profile, verbosity: int = 0) -> RenderableType:
    """A row per family, from verbosity 1 on a row per node with its original nodes."""
    return Group(*_parts(profile, verbosity))


def _parts(profile: Profile, verbosity: int) -> Iterator[RenderableType]:
    plural = "s" * (profile.threads > 1)
    title = f"{profile.model}, {profile.binding}, {profile.threads} thread{plural}"
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    table.add_column("node" if verbosity else "operator", overflow="fold")
    if not verbosity:
        table.add_column("nodes", justify="right")
    for name in ("ms", "share", "GFLOP/s", "of peak", "GB/s", "of limit", "apart", "fused"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound")
    if verbosity:
        table.add_column("original nodes", overflow="fold")
        for row in profile.rows:
            table.add_row(escape(row.name), *_cells(row, profile), _originals(row))
    else:
        for family in families(profile.rows):
            count = str(len(family.rows))
            table.add_row(_label(family), count, *_cells(family.total, profile))
    yield table
    yield from (Text(line) for line in _summary(profile))


def _label(family: Family) -> str:
    return escape(family.op) if family.kernel else f"[dim]{escape(family.op)}[/]"


def _cells(row: ProfileRow, profile: Profile) -> tuple[str, ...]:
    share = f"{row.us / (profile.us or 1.0):.1%}"
    if row.flops is None or row.bytes is None or row.us < 1.0:
        return (f"{row.us / 1e3:.3f}", share, "", "", "", "", "", "", row.bound)
    saved = (megabytes(row.apart), megabytes(row.bytes)) if row.kernel else ("", megabytes(row.bytes))
    return (
        f"{row.us / 1e3:.3f}", share,
        f"{row.flops / row.us / 1e3:.1f}", f"{row.compute_us / row.us:.0%}",
        f"{row.bytes / row.us / 1e3:.1f}", f"{row.memory_us / row.us:.0%}",
        *saved, row.bound,
    )  # fmt: skip


def megabytes(size: float | None) -> str:
    """Bytes as MB with three digits."""
    return "" if size is None else f"{size / 1e6:.3g} MB"


def _originals(row: ProfileRow) -> str:
    return escape("\n".join(row.originals))


def _summary(profile: Profile) -> Iterator[str]:
    programs, known = profile.in_programs, [r for r in profile.rows if r.bytes is not None]
    apart, fused = (sum(getattr(r, n) or 0.0 for r in known) for n in ("apart", "bytes"))
    yield (
        f"{profile.us / 1e3:.2f} ms in {len(profile.rows)} nodes, {programs:.1%} of it in programs; "
        f"a whole run takes {profile.run_ms:.2f} ms"
    )
    yield f"bytes walked: {megabytes(apart)} operator by operator, {megabytes(fused)} as it is"
    yield roofs_line(profile.roofs)
    yield (
        f"{profile.profiling_us:g} µs of profiling were taken off each node's median; a bound "
        f"explains at least {EXPLAINED:.0%} of a node's time, else it is overhead"
    )
    yield from (f"warning: {text}" for text in profile.warnings)
    yield made_with(profile.versions, profile.machine)


def roofs_line(roofs: Roofs) -> str:
    """The roofs in one line."""
    levels = ", ".join(f"{m.name} {m.gbytes:.0f} GB/s" for m in roofs.memories)
    return f"limits ({roofs.source}): {roofs.gflops:.0f} GFLOP/s fp32, {levels}"
