"""A profile's record: where a model's time goes, and what bounds it there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = [
    "EXPLAINED",
    "SHORTEST",
    "Memory",
    "NodeGroup",
    "Profile",
    "ProfileRow",
    "Roofs",
    "families",
    "notable",
]

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
    """What the threads in use can do: billions of operations per second in fp32 and, for kernels
    that multiply something else (``lower``), in that; and memories by size."""

    gflops: float
    memories: tuple[Memory, ...]
    source: str
    lower: Mapping[str, float] = field(default_factory=dict)

    def peak(self, multiplied: str) -> float:
        """Of kernels that multiply numbers of this type."""
        return self.lower.get(multiplied, self.gflops)

    def met(self, rows: Iterable[ProfileRow]) -> Roofs:
        """Without the peaks that none of these rows' kernels could reach."""
        used = {call.multiplies for row in rows for call in row.calls}
        return replace(self, lower={k: v for k, v in self.lower.items() if k in used})

    @property
    def peaks(self) -> Mapping[str, float]:
        """All of them by what is multiplied."""
        return {"fp32": self.gflops, **self.lower}

    def memory(self, size: float) -> Memory:
        """The smallest memory that holds ``size`` bytes."""
        return next((m for m in self.memories if m.capacity >= size), self.memories[-1])


@dataclass(frozen=True)
class ProfileRow:
    """One node of the graph ONNX Runtime really runs; ``us`` is its median time.

    ``kernel`` is True for a program of this tool, whose original nodes are ``originals``.
    ``flops`` and the bytes are None where the node is unknown.  ``unfused`` is what its operators
    would walk one by one.  ``compute_us`` and ``memory_us`` are what the roofs allow, ``memory``
    the level most bytes come from; ``size`` is the problem's, in words.  ``calls`` are the kernel
    calls of a program, each a row whose ``op`` is the kernel.
    """

    name: str
    op: str
    kernel: bool
    us: float
    flops: float | None = None
    weights: float | None = None
    activations: float | None = None
    unfused: float | None = None
    compute_us: float = 0.0
    memory_us: float = 0.0
    memory: str = ""
    size: str = ""
    rule: str = ""
    originals: tuple[str, ...] = ()
    calls: tuple[ProfileRow, ...] = ()
    multiplies: str = "f32"

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
            for inner, call in zip(entry["calls"], row.calls, strict=True):
                inner |= {"bound": call.bound, "bytes": call.bytes}
                del inner["calls"], inner["originals"], inner["rule"], inner["name"]
        return json.dumps(data, indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class NodeGroup:
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
        return _added(self.rows)

    @property
    def calls(self) -> tuple[ProfileRow, ...]:
        """The kernel calls of a node, those of all nodes added up; none for a single one."""
        every = [row.calls for row in self.rows if len(row.calls) > 1]
        same = len(every) == len(self.rows) and len({len(calls) for calls in every}) == 1
        return tuple(_added(calls) for calls in zip(*every, strict=True)) if same else ()


_SUMMED = ("us", "flops", "weights", "activations", "unfused", "compute_us", "memory_us")


def _added(rows: Sequence[ProfileRow]) -> ProfileRow:
    """Rows of the same work as one; figures that are unknown stay so."""
    first = rows[0]
    known = (name for name in _SUMMED if getattr(first, name) is not None)
    return dataclasses.replace(
        first, **{name: sum(getattr(row, name) for row in rows) for name in known}
    )


def families(rows: Sequence[ProfileRow]) -> tuple[NodeGroup, ...]:
    """Rows grouped by operator and work, the slowest group first."""
    groups: dict[tuple[Any, ...], list[ProfileRow]] = {}
    for row in rows:
        key = (row.op, row.kernel, row.size, row.flops, row.weights, row.activations)
        groups.setdefault(key, []).append(row)
    made = (NodeGroup(key[0], key[1], tuple(found)) for key, found in groups.items())
    return tuple(sorted(made, key=lambda family: -family.us))


def notable(profile: Profile) -> tuple[list[NodeGroup], list[ProfileRow]]:
    """Families worth a line, and the nodes of all others."""
    every = families(profile.rows)
    named = [f for f in every[:MOST] if f.us >= PETTY * profile.us]
    return named, [row for f in every if f not in named for row in f.rows]
