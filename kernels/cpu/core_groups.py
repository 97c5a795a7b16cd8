"""Find groups of cores that are near each other, by the time of a hand-over between each two.

Linux describes dies of one package that share a memory node as one group of cores, though lines
take longer from one to another.  Cores are joined by average linkage; a cut of the tree counts if
hand-overs between groups take clearly longer than within.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

__all__ = ["CoreGroups", "find_groups"]

_CLEARLY = 1.2
"""Time between groups over that within, from which on they count: pairs of one die scatter by
less (``models/RESULTS.md``, "Near and far processors")."""
_ONE_CORE = 0.5
"""Share of the median up to which two processors seem to be threads of one core: a third on a
guest that does not show it, where other pairs scatter by 30 %."""
_FEWEST = 3
"""Cores of a group; fewer are outliers, say those whose host is busy, and join the nearest."""
_SURE = 0.95
"""Share of the cores that must be nearer to their own group than to any other."""
_MOST_GROUPS = 16

Group = tuple[int, ...]
Times = np.ndarray[tuple[int, int], np.dtype[np.float64]]


@dataclass(frozen=True)
class CoreGroups:
    """Groups of processors; one if there is no clear gap.

    ``near_us`` and ``far_us`` are median times in µs within groups and between them.  Of one group
    they are those of the nearest and of the farthest tenth of the pairs.  ``one_core`` are pairs
    that seem to be threads of a core, though they are not described so; a host may move them.
    """

    groups: tuple[Group, ...]
    near_us: float
    far_us: float
    one_core: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        """Return lists as ``TRACEA_GROUPS`` takes them: ``0-7/8-15``."""
        return "/".join(map(_listed, self.groups))


def find_groups(us: Mapping[tuple[int, int], float]) -> CoreGroups:
    """Return the groups of the processors of some pairs, by the µs of a hand-over of each."""
    processors = sorted({p for pair in us for p in pair})
    times = _matrix(us, processors)
    usual = median(us.values()) if us else 0.0
    same = tuple(sorted(pair for pair, time in us.items() if time < _ONE_CORE * usual))
    best, found = _CLEARLY, _one_group(us, processors)
    for clusters in _cuts(times):
        groups = _without_outliers(times, clusters)
        if len(groups) < 2 or (ratio := _separation(times, groups)) < best:
            continue
        best = ratio
        inside, between = _split(times, groups)
        named = sorted(tuple(sorted(processors[i] for i in group)) for group in groups)
        found = CoreGroups(tuple(named), median(inside), median(between))
    return replace(found, one_core=same if len(found.groups) == 1 else ())


def _matrix(us: Mapping[tuple[int, int], float], processors: Sequence[int]) -> Times:
    """All times; those that were not measured are the median."""
    place = {p: i for i, p in enumerate(processors)}
    times = np.full((len(place), len(place)), median(us.values()) if us else 0.0)
    for (a, b), value in us.items():
        times[place[a], place[b]] = times[place[b], place[a]] = value
    np.fill_diagonal(times, 0.0)
    return times


def _one_group(us: Mapping[tuple[int, int], float], processors: Sequence[int]) -> CoreGroups:
    values = sorted(us.values()) or [0.0]
    tenth = max(1, len(values) // 10)
    return CoreGroups((tuple(processors),), median(values[:tenth]), median(values[-tenth:]))


def _cuts(times: Times) -> list[list[list[int]]]:
    """Return the clusters of every cut of the tree by average linkage."""
    clusters = [[i] for i in range(len(times))]
    apart = times.astype(np.float64)
    np.fill_diagonal(apart, np.inf)
    cuts = []
    while len(clusters) > 2:
        i, j = sorted(map(int, np.unravel_index(np.argmin(apart), apart.shape)))
        a, b = len(clusters[i]), len(clusters[j])
        merged = (a * apart[i] + b * apart[j]) / (a + b)
        apart[i], apart[:, i] = merged, merged
        apart[i, i] = np.inf
        apart = np.delete(np.delete(apart, j, 0), j, 1)
        clusters[i] = clusters[i] + clusters.pop(j)
        cuts.append([list(one) for one in clusters])
    return cuts


def _without_outliers(times: Times, clusters: list[list[int]]) -> list[list[int]]:
    groups = [list(one) for one in clusters if len(one) >= _FEWEST]
    if not 2 <= len(groups) <= _MOST_GROUPS:
        return []
    for one in clusters:
        if len(one) < _FEWEST:
            for i in one:
                min(groups, key=lambda group: float(times[i, group].mean())).append(i)
    return groups


def _separation(times: Times, groups: list[list[int]]) -> float:
    """Mean time to the nearest other group over that to the own: its median; 0 if unsure."""
    ratios = []
    for group in groups:
        for i in group:
            own = float(times[i, [j for j in group if j != i]].mean())
            other = min(float(times[i, one].mean()) for one in groups if one is not group)
            ratios.append(other / own)
    sure = sum(ratio > 1 for ratio in ratios) >= _SURE * len(ratios)
    return median(ratios) if sure else 0.0


def _split(times: Times, groups: list[list[int]]) -> tuple[list[float], list[float]]:
    group_of = {i: number for number, group in enumerate(groups) for i in group}
    inside: list[float] = []
    between: list[float] = []
    for i in range(len(times)):
        for j in range(i):
            (inside if group_of[i] == group_of[j] else between).append(float(times[i, j]))
    return inside, between


def _listed(group: Group) -> str:
    """``0-3,8``."""
    parts: list[list[int]] = []
    for p in group:
        if parts and p == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], p]
        else:
            parts.append([p])
    return ",".join("-".join(map(str, part)) for part in parts)
