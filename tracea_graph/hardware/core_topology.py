"""Find which processors share a core, a cache or a memory node, as Linux describes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tracea_graph.config import cgroup_processor_quota, usable_processors

__all__ = ["SYSFS", "ProcessorTopology", "cores_of", "read_topology", "usable_cores"]

SYSFS = Path("/sys/devices/system/cpu")
Group = frozenset[int]


@dataclass(frozen=True)
class ProcessorTopology:
    """Processors that this process may use, grouped by what they share.

    ``levels`` maps ``core``, ``L2``, ``L3`` and ``node`` (a memory node) to the groups of
    processors that share one such unit; the nearest level comes first.  If nothing is known about
    a level, each processor is its own group.
    """

    levels: dict[str, tuple[Group, ...]]

    @property
    def processors(self) -> tuple[int, ...]:
        """All processors, in order."""
        return tuple(sorted(set().union(*self.levels["core"])))

    @property
    def groups(self) -> int:
        """How many groups of processors share an L3 and a memory node.

        Processors about which nothing is known count as one group, as in the library
        (``kernels/runtime/processor_topology.h``).
        """
        unsaid = {frozenset((p,)) for p in self.processors}
        l3, nodes = (
            groups if set(groups) != unsaid else (frozenset(self.processors),)
            for groups in (self.levels["L3"], self.levels["node"])
        )
        return len({group & node for group in l3 for node in nodes} - {frozenset()})

    def nearest(self, a: int, b: int) -> str:
        """Return the name of the nearest level that two processors share; else "machine"."""
        for name, groups in self.levels.items():
            if any({a, b} <= group for group in groups):
                return name
        return "machine"

    def pairs(self) -> dict[str, tuple[int, int]]:
        """Return one pair of processors for each level that is the nearest level they share.

        Levels without such a pair are left out.
        """
        first, *others = self.processors
        found: dict[str, tuple[int, int]] = {}
        for other in others:
            found.setdefault(self.nearest(first, other), (first, other))
        order = (*self.levels, "machine")
        return {name: found[name] for name in order if name in found}


def read_topology(
    sysfs: Path = SYSFS, processors: Iterable[int] | None = None
) -> ProcessorTopology:
    """Read what processors share (default: those that this process may use)."""
    mine = frozenset(_allowed() if processors is None else processors)
    caches = {level: _by_list(sysfs, _cache(level), mine) for level in (2, 3)}
    nodes = _nodes(sysfs.parent / "node", mine)
    return ProcessorTopology(
        {"core": cores_of(sysfs, mine), "L2": caches[2], "L3": caches[3], "node": nodes}
    )


def cores_of(sysfs: Path, processors: Iterable[int]) -> tuple[Group, ...]:
    """Return the processors of each core; one whose core is unknown is a group by itself."""
    return _by_list(sysfs, "topology/thread_siblings_list", frozenset(processors))


def usable_cores(sysfs: Path = SYSFS) -> int:
    """Return how many physical cores this process may use at a time.

    A container's quota limits the number (:func:`~tracea_graph.config.cgroup_processor_quota`).
    """
    if not hasattr(os, "sched_getaffinity"):
        return usable_processors()
    count = len(cores_of(sysfs, _allowed()))
    return min(count, cgroup_processor_quota() or count)


def _allowed() -> Iterable[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _cache(level: int) -> str:
    """Where a processor's cache of a level is: Linux numbers data, instructions, then the rest."""
    return f"cache/index{level}/shared_cpu_list"


def _by_list(sysfs: Path, name: str, mine: Group) -> tuple[Group, ...]:
    groups = {_listed(sysfs / f"cpu{p}" / name, {p}) & mine for p in mine}
    return tuple(sorted(groups, key=min))


def _nodes(folder: Path, mine: Group) -> tuple[Group, ...]:
    lists = sorted(folder.glob("node[0-9]*/cpulist"))
    groups = {_listed(path, set()) & mine for path in lists} - {frozenset()}
    known = frozenset().union(*groups)
    return tuple(sorted(groups | {frozenset((p,)) for p in mine - known}, key=min))


def _listed(path: Path, otherwise: set[int]) -> Group:
    """Return the numbers of a list such as ``0-3,8``."""
    try:
        text = path.read_text("ascii").strip()
    except OSError:
        return frozenset(otherwise)
    ranges = ([*map(int, part.split("-"))] for part in text.split(",") if part)
    return frozenset(p for bounds in ranges for p in range(bounds[0], bounds[-1] + 1))
