"""A profile's record, and its table: where a model's time goes, and what bounds it there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracea_graph.views.bench import made_with
from tracea_graph.views.text import plain

__all__ = [
    "Family", "Memory", "Profile", "ProfileRow", "Roofs", "abridged", "cells", "families",
    "headline", "in_bytes", "notable", "render_profile", "summary",
]  # fmt: skip

PETTY = 0.001
"""Share of the time below which a family gets no line of its own."""

MOST = 40
"""Families with a line of their own at most."""


SHORTEST = 1.0
"""µs below which a node's time is too close to what profiling costs to divide by."""

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
    would walk one by one.  ``compute_us`` and ``memory_us`` are what the roofs allow, ``memory``
    the level most bytes come from; ``size`` is the problem's, in words.
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
    size: str = ""
    rule: str = ""
    originals: tuple[str, ...] = ()

    @property
    def bytes(self) -> float | None:
        """Bytes of outside values, each touched once."""
        return None if self.weights is None else self.weights + (self.activations or 0.0)

    @property
    def intensity(self) -> float:
        """Operations per byte; 0 if unknown or nothing is computed."""
        return (self.flops or 0.0) / self.bytes if self.bytes else 0.0

    @property
    def gflops(self) -> float:
        """Billions of operations per second; 0 if unknown or too short to tell."""
        return (self.flops or 0.0) / self.us / 1e3 if self.us >= SHORTEST else 0.0

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
    notes: tuple[str, ...] = ()

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
            for name in (
                "us",
                "flops",
                "weights",
                "activations",
                "apart",
                "compute_us",
                "memory_us",
            )
        }
        return dataclasses.replace(first, **sums)


def families(rows: Sequence[ProfileRow]) -> tuple[Family, ...]:
    """Rows grouped by operator and work, the slowest group first."""
    groups: dict[tuple[Any, ...], list[ProfileRow]] = {}
    for row in rows:
        key = (row.op, row.kernel, row.size, row.flops, row.weights, row.activations)
        groups.setdefault(key, []).append(row)
    made = (Family(key[0], key[1], tuple(found)) for key, found in groups.items())
    return tuple(sorted(made, key=lambda family: -family.us))


# ---- text ------------------------------------------------------------------------------


def render_profile(profile: Profile, verbosity: int = 0) -> RenderableType:
    """A row per family, from verbosity 1 on a row per node with its original nodes."""
    return Group(*_parts(profile, verbosity))


def _parts(profile: Profile, verbosity: int) -> Iterator[RenderableType]:
    table = Table(title=Text(plain(headline(profile)), style="bold"), title_justify="left")
    table.add_column("node" if verbosity else "operator", overflow="fold")
    table.add_column("size" if verbosity else "size (nodes)", no_wrap=True)
    for name in ("ms", "share", "GFLOP/s", "of peak", "GB/s", "of limit", "before", "after"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound")
    if verbosity:
        table.add_column("original nodes", overflow="fold")
        for row in profile.rows:
            originals = Text(plain(abridged(row.originals)))
            table.add_row(Text(plain(row.name)), row.size, *cells(row, profile), originals)
    else:
        named, rest = notable(profile)
        for family in named:
            size = f"{family.rows[0].size} ({len(family.rows)})".strip()
            table.add_row(_label(family), size, *cells(family.total, profile))
        if rest:
            table.add_row(Text("the rest", style="dim"), f"({len(rest)})", *_rest(rest, profile))
    yield table
    yield from (Text(line) for line in summary(profile))


def notable(profile: Profile) -> tuple[list[Family], list[ProfileRow]]:
    """Families worth a line, and the nodes of all others."""
    every = families(profile.rows)
    named = [f for f in every[:MOST] if f.us >= PETTY * profile.us]
    return named, [row for f in every if f not in named for row in f.rows]


def headline(profile: Profile) -> str:
    """Model, binding and threads."""
    plural = "s" * (profile.threads > 1)
    return f"{profile.model}, {profile.binding}, {profile.threads} thread{plural}"


def cells(row: ProfileRow, profile: Profile) -> tuple[str, ...]:
    """Milliseconds, share, GFLOP/s and GB/s with their limits, bytes before and after, bound."""
    share = f"{row.us / (profile.us or 1.0):.1%}"
    if row.bytes is None or row.us < SHORTEST:
        return (f"{row.us / 1e3:.3f}", share, "", "", "", "", "", "", row.bound)
    computed = (f"{row.gflops:.1f}", f"{row.compute_us / row.us:.0%}") if row.flops else ("", "")
    moved = (f"{row.bytes / row.us / 1e3:.1f}", f"{row.memory_us / row.us:.0%}")
    before = in_bytes(row.apart) if row.apart and row.apart > row.bytes else ""
    return (
        f"{row.us / 1e3:.3f}",
        share,
        *computed,
        *moved,
        before,
        in_bytes(row.bytes),
        row.bound,
    )


def in_bytes(size: float) -> str:
    """Bytes with three digits and a unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def abridged(names: Sequence[str]) -> str:
    """Names of nodes with the path they share written once: ``a/b/{X, Y}, a/Z``."""
    groups: dict[str, list[str]] = {}
    for name in names:
        path, slash, last = name.rpartition("/")
        groups.setdefault(path + slash, []).append(last)
    return ", ".join(
        f"{path}{{{', '.join(last)}}}"
        if len(last) > 1 and path
        else ", ".join(path + n for n in last)
        for path, last in groups.items()
    )


def summary(profile: Profile) -> Iterator[str]:
    """What the table adds up to, its limits and how it was measured."""
    known = [row for row in profile.rows if row.bytes is not None]
    before, after = (sum(getattr(r, n) or 0.0 for r in known) for n in ("apart", "bytes"))
    levels = ", ".join(f"{m.name} {m.gbytes:.0f} GB/s" for m in profile.roofs.memories)
    yield (
        f"{profile.us / 1e3:.2f} ms in {len(profile.rows)} nodes, {profile.in_programs:.1%} of it "
        f"in programs; a whole run takes {profile.run_ms:.2f} ms"
    )
    yield (
        f"bytes walked: {in_bytes(before)} before (operator by operator), "
        f"{in_bytes(after)} after (what a node must read and write)"
    )
    yield f"limits ({profile.roofs.source}): {profile.roofs.gflops:.0f} GFLOP/s fp32, {levels}"
    yield (
        f"{profile.profiling_us:g} µs of profiling were taken off each node's median; a bound "
        f"explains at least {EXPLAINED:.0%} of a node's time, else it is overhead"
    )
    yield from map(plain, profile.notes)
    yield from (f"warning: {plain(text)}" for text in profile.warnings)
    yield made_with(profile.versions, profile.machine)


def _label(family: Family) -> Text:
    return Text(plain(family.op), style="" if family.kernel else "dim")


def _rest(rows: Sequence[ProfileRow], profile: Profile) -> tuple[str, str]:
    us = sum(row.us for row in rows)
    return f"{us / 1e3:.3f}", f"{us / (profile.us or 1.0):.1%}"
