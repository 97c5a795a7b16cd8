"""The record of a profile: time per node, and what bounds it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = [
    "EXPLAINED",
    "SHORTEST",
    "MemoryRoof",
    "NodeGroup",
    "Profile",
    "ProfileRow",
    "Roofs",
    "group_equal_nodes",
    "notable_groups",
]

PETTY = 0.001
"""Fraction of the time below which a group gets no line of its own."""

MOST = 40
"""Maximum number of groups with a line of their own."""


SHORTEST = 1.0
"""µs below which profiling overhead makes a node's rates meaningless."""

EXPLAINED = 0.25
"""Fraction of a node's time that a roof must explain to be called its bound."""


@dataclass(frozen=True)
class MemoryRoof:
    """One memory level: bytes it holds (0: no limit), and GB/s for all threads in use."""

    name: str
    capacity: int
    gbytes: float


@dataclass(frozen=True)
class Roofs:
    """Performance limits of the machine with the threads in use.

    ``gflops`` is the peak for fp32 in 1e9 operations per second; ``lower`` has the peaks of
    kernels that multiply other types.  ``memories`` are the memory levels, the smallest first.
    """

    gflops: float
    memories: tuple[MemoryRoof, ...]
    source: str
    lower: Mapping[str, float] = field(default_factory=dict)

    def peak(self, multiplied: str) -> float:
        """Return the peak of kernels that multiply numbers of this type."""
        return self.lower.get(multiplied, self.gflops)

    def met(self, rows: Iterable[ProfileRow]) -> Roofs:
        """Return a copy without the peaks of types that no kernel of ``rows`` multiplies."""
        used = {call.product_type for row in rows for call in row.calls}
        return replace(self, lower={k: v for k, v in self.lower.items() if k in used})

    @property
    def peaks(self) -> Mapping[str, float]:
        """All peaks by the type multiplied."""
        return {"fp32": self.gflops, **self.lower}

    def memory(self, size: float) -> MemoryRoof:
        """Return the smallest memory that holds ``size`` bytes."""
        return next((m for m in self.memories if m.capacity >= size), self.memories[-1])


@dataclass(frozen=True)
class ProfileRow:
    """Profile of one node of the graph that ONNX Runtime runs, or of one kernel call.

    * ``us``: median time in µs.
    * ``kernel``: whether the node is a program of this tool; ``originals`` are the nodes it
      replaces.
    * ``flops``, ``weights``, ``activations``: operations, and bytes of constants and of other
      values; None if the work of the node is unknown.
    * ``unfused``: bytes that the original operators would touch if run one by one.
    * ``compute_us``, ``memory_us``: minimum times according to the peak and the bandwidths;
      ``memory`` is the level that most bytes come from.
    * ``size``: sizes of the problem, as text.
    * ``calls``: the program's kernel calls; their ``op`` is the kernel.
    * ``product_type``: type of the numbers that are multiplied.
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
    product_type: str = "f32"

    @property
    def bytes(self) -> float | None:
        """Bytes of outside values, each counted once."""
        return None if self.weights is None else self.weights + (self.activations or 0.0)

    @property
    def intensity(self) -> float:
        """Operations per byte; 0 if they are not known or nothing is computed."""
        return (self.flops or 0.0) / self.bytes if self.bytes else 0.0

    @property
    def gflops(self) -> float:
        """1e9 operations per second; 0 if unknown or the node is too short."""
        return (self.flops or 0.0) / self.us / 1e3 if self.us >= SHORTEST else 0.0

    @property
    def bound(self) -> str:
        """What limits the node: ``compute``, ``memory`` or ``overhead``.

        It is ``overhead`` if the limits of the machine explain less than a quarter of the time.
        Empty if the work of the node is unknown.
        """
        if self.flops is None:
            return ""
        if max(self.compute_us, self.memory_us) < EXPLAINED * self.us or not self.us:
            return "overhead"
        return "compute" if self.compute_us >= self.memory_us else "memory"


@dataclass(frozen=True)
class Profile:
    """All nodes of one run, slowest first, under one binding and thread count.

    ``run_ms`` is the median time of a whole run without profiling, ``profiling_us`` the profiling
    overhead subtracted from each node's time.
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
        """Total time of all nodes."""
        return sum(row.us for row in self.rows)

    @property
    def in_programs(self) -> float:
        """Fraction of the nodes' time spent in programs."""
        return sum(row.us for row in self.rows if row.kernel) / (self.us or 1.0)

    def to_json(self) -> str:
        """Return indented JSON of the fields and of derived figures."""
        data = dataclasses.asdict(self) | {"us": self.us, "in_programs": self.in_programs}
        for entry, row in zip(data["rows"], self.rows, strict=True):
            entry |= {"bound": row.bound, "bytes": row.bytes}
            for inner, call in zip(entry["calls"], row.calls, strict=True):
                inner |= {"bound": call.bound, "bytes": call.bytes}
                del inner["calls"], inner["rule"], inner["name"]
        return json.dumps(data, indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one operator with equal work; times are totals in µs."""

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
        """Kernel calls, added up over all nodes; empty for a node with a single call."""
        every = [row.calls for row in self.rows if len(row.calls) > 1]
        same = len(every) == len(self.rows) and len({len(calls) for calls in every}) == 1
        return tuple(_added(calls) for calls in zip(*every, strict=True)) if same else ()


_SUMMED = ("us", "flops", "weights", "activations", "unfused", "compute_us", "memory_us")


def _added(rows: Sequence[ProfileRow]) -> ProfileRow:
    """Sum of rows of equal work; unknown figures stay unknown."""
    first = rows[0]
    known = (name for name in _SUMMED if getattr(first, name) is not None)
    return dataclasses.replace(
        first, **{name: sum(getattr(row, name) for row in rows) for name in known}
    )


def group_equal_nodes(rows: Sequence[ProfileRow]) -> tuple[NodeGroup, ...]:
    """Group rows by operator and work, the slowest group first."""
    groups: dict[tuple[Any, ...], list[ProfileRow]] = {}
    for row in rows:
        key = (row.op, row.kernel, row.size, row.flops, row.weights, row.activations)
        groups.setdefault(key, []).append(row)
    made = (NodeGroup(key[0], key[1], tuple(found)) for key, found in groups.items())
    return tuple(sorted(made, key=lambda family: -family.us))


def notable_groups(profile: Profile) -> tuple[list[NodeGroup], list[ProfileRow]]:
    """Return the groups that deserve a line of their own, and the nodes of all other groups."""
    every = group_equal_nodes(profile.rows)
    named = [f for f in every[:MOST] if f.us >= PETTY * profile.us]
    return named, [row for f in every if f not in named for row in f.rows]
