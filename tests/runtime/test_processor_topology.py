"""What the runtime makes of Linux's description of processors: ranks, groups, slow cores."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.processors import write_sysfs
from tests.runtime.compiled_program import compiled_program
from tracea_graph.hardware.core_topology import read_topology

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("processor_topology.cpp")
Write = Callable[[Path], None]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_program(
        SOURCE, tmp_path_factory.mktemp("topology"), "-fsanitize=address,undefined"
    )


def _machine(
    processors: Iterable[int],
    core: Callable[[int], str],
    l2: Callable[[int], str],
    l3: Callable[[int], str],
    nodes: Iterable[str] = (),
    capacity: Callable[[int], int] | None = None,
    atoms: str = "",
) -> Write:
    """Describe processors by the lists of those with which each shares something."""

    def write(devices: Path) -> None:
        system = devices / "system"
        for p in processors:
            said = {
                "topology/thread_siblings_list": core(p),
                "cache/index2/shared_cpu_list": l2(p),
                "cache/index3/shared_cpu_list": l3(p),
                "cpu_capacity": str(capacity(p)) if capacity else "",
            }
            write_sysfs(system / "cpu", p, {name: text for name, text in said.items() if text})
        lists = list(nodes)
        for number, text in enumerate(lists):
            (system / "node" / f"node{number}").mkdir(parents=True)
            (system / "node" / f"node{number}" / "cpulist").write_text(text + "\n")
        if lists:
            (system / "node" / "online").write_text(f"0-{len(lists) - 1}\n")
        if atoms:
            (devices / "cpu_atom").mkdir(parents=True)
            (devices / "cpu_atom" / "cpus").write_text(atoms + "\n")

    return write


def _alone(p: int) -> str:
    return str(p)


def _nothing(_: int) -> str:
    return ""


ONE_L3 = _machine(range(4), _alone, _alone, lambda _: "0-3", ["0-3"])
# Threads of a core lie 8 apart, sockets alternate: even cores are the first socket's.
TWO_SOCKETS = _machine(
    range(16),
    lambda p: f"{p % 8},{p % 8 + 8}",
    lambda p: f"{p % 8},{p % 8 + 8}",
    lambda p: ",".join(str(q) for q in range(p % 2, 16, 2)),
    ["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"],
)
CCDS = _machine(range(16), _alone, _alone, lambda p: f"{p // 2 * 2}-{p // 2 * 2 + 1}", ["0-15"])
SUB_NODES = _machine(range(8), _alone, _alone, lambda _: "0-7", ["0,1,4,5", "2,3,6,7"])
# Two fast cores of two threads, and four slow ones with an L2 for all; one L3.
HYBRID = _machine(
    range(8),
    lambda p: str(p) if p > 3 else f"{p // 2 * 2}-{p // 2 * 2 + 1}",
    lambda p: "4-7" if p > 3 else f"{p // 2 * 2}-{p // 2 * 2 + 1}",
    lambda _: "0-7",
    ["0-7"],
    atoms="4-7",
)
# Slow cores come first, and each kind has an L2 of its own; no L3.
ARM = _machine(
    range(6),
    _alone,
    lambda p: "0-3" if p < 4 else "4-5",
    _nothing,
    capacity=lambda p: 380 if p < 4 else 1024,
)
NO_L3 = _machine(range(3), _alone, _alone, _nothing)


def _unsaid(devices: Path) -> None:
    """Say nothing at all."""


def _damaged(devices: Path) -> None:
    ONE_L3(devices)
    (devices / "system/cpu/cpu0/cache/index3/shared_cpu_list").write_text("0-x\n")
    (devices / "system/node/online").write_text("many\n")


CASES: dict[str, tuple[Write, str, str, str]] = {
    "one L3": (ONE_L3, "0-3", "", "4 1 1 0 4"),
    "two sockets of two threads a core": (
        TWO_SOCKETS, "0-15", "", "16 2 1 0 8 0 8 2 10 4 12 6 14 1 9 3 11 5 13 7 15",
    ),
    "one thread a core of two sockets": (TWO_SOCKETS, "0-7", "", "8 2 1 0 8 0 2 4 6 1 3 5 7"),
    "one socket of two": (TWO_SOCKETS, "0,2,4,6,8", "", "5 1 1 0 4"),
    "eight L3s": (CCDS, "0-15", "", "16 8 1 0 16 " + " ".join(map(str, range(16)))),
    "a cpuset of odd processors": (CCDS, "1,3,9,11,15", "", "5 5 1 0 5 1 3 9 11 15"),
    "nodes of one L3": (SUB_NODES, "0-7", "", "8 2 1 0 8 0 1 4 5 2 3 6 7"),
    "processors that are off": (SUB_NODES, "0,5-6", "", "3 2 1 0 3 0 5 6"),
    "fast and slow cores": (HYBRID, "0-7", "", "8 1 2 1 6 0 1 2 3 4 5 6 7"),
    "the slow ones alone": (HYBRID, "4-7", "", "4 1 1 0 4"),
    "slow cores first": (ARM, "0-5", "", "6 2 3 0 6 0 1 2 3 4 5"),
    "no L3": (NO_L3, "0-2", "", "3 1 1 0 3"),
    "nothing": (_unsaid, "0-3", "", "4 1 1 0 4"),
    "damaged": (_damaged, "0-3", "", "4 1 1 0 4"),
    "groups that the user names": (ONE_L3, "0-3", "0,2/1,3", "4 2 1 0 4 0 2 1 3"),
    "one group that the user names": (CCDS, "0-15", "0-15", "16 1 1 0 16"),
    "some that the user does not name": (ONE_L3, "0-3", "1-2", "4 2 1 0 4 1 2 0 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_topology(name: str, program: Path, tmp_path: Path) -> None:
    write, mine, groups, expected = CASES[name]
    write(tmp_path)
    said = subprocess.run(
        [program, tmp_path, mine, groups], check=True, capture_output=True, text=True
    )
    assert said.stdout.strip() == expected


def test_library_and_package_count_the_same_groups(program: Path, tmp_path: Path) -> None:
    TWO_SOCKETS(tmp_path)
    levels = read_topology(tmp_path / "system" / "cpu", range(16)).levels
    said = subprocess.run(
        [program, tmp_path, "0-15", ""], check=True, capture_output=True, text=True
    )
    count, groups, _, _, cores, *ranks = map(int, said.stdout.split())
    assert (groups, cores) == (len(levels["L3"]), len(levels["core"]))
    assert {frozenset(ranks[: count // 2]), frozenset(ranks[count // 2 :])} == set(levels["L3"])
