"""What processors share, as Linux describes it, and how many cores a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processors import write_sysfs
from tracea_graph.hardware import core_topology
from tracea_graph.hardware.core_topology import read_topology, usable_cores


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two sockets of two L3 caches of two cores of two threads: threads of a core lie 8 apart."""
    folder = tmp_path / "cpu"
    for processor in range(16):
        core = processor % 8
        threads, l3 = f"{core},{core + 8}", core // 2 * 2
        files = {
            "topology/thread_siblings_list": threads,
            "cache/index2/shared_cpu_list": threads,
            "cache/index3/shared_cpu_list": f"{l3}-{l3 + 1},{l3 + 8}-{l3 + 9}",
        }
        write_sysfs(folder, processor, files)
    for node in (0, 1):
        path = tmp_path / "node" / f"node{node}" / "cpulist"
        path.parent.mkdir(parents=True)
        path.write_text(f"{4 * node}-{4 * node + 3},{4 * node + 8}-{4 * node + 11}\n")
    return folder


def test_pairs_of_every_level(sysfs: Path) -> None:
    found = read_topology(sysfs, range(16))
    assert found.pairs() == {"core": (0, 8), "L3": (0, 1), "node": (0, 2), "machine": (0, 4)}
    assert found.nearest(3, 11) == "core"
    assert [len(groups) for groups in found.levels.values()] == [8, 8, 4, 2]


def test_groups_share_an_l3_and_a_node(sysfs: Path, tmp_path: Path) -> None:
    assert read_topology(sysfs, range(16)).groups == 4
    assert read_topology(sysfs, {0, 1, 4}).groups == 2
    assert read_topology(tmp_path / "nothing", range(4)).groups == 1


def test_only_processors_of_this_process(sysfs: Path) -> None:
    found = read_topology(sysfs, {1, 5, 13})
    assert found.processors == (1, 5, 13)
    assert found.pairs() == {"machine": (1, 5)}
    assert found.levels["core"] == (frozenset({1}), frozenset({5, 13}))


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    found = read_topology(tmp_path / "cpu", {0, 1})
    assert found.pairs() == {"machine": (0, 1)}
    assert read_topology(tmp_path / "cpu", {3}).pairs() == {}


@pytest.mark.parametrize(
    ("mine", "quota", "cores"), [(range(16), None, 8), ({0, 8, 1}, None, 2), (range(16), 3, 3)]
)
def test_usable_cores(
    mine: set[int], quota: int | None, cores: int, sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(mine))
    monkeypatch.setattr(core_topology, "cgroup_processor_quota", lambda: quota)
    assert usable_cores(sysfs) == cores
