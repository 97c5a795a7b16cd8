"""Containers have a part of a machine's processor time: library and package read the same part."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.runtime.compiled_program import compiled_program
from tracea_graph import config

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("quota.cpp")
ANY = 2**31 - 1
V1 = "4:memory:/job\n3:cpuset,cpu,cpuacct:/docker/a1\n0::/\n"
QUOTA, PERIOD = "cpu/docker/a1/cpu.cfs_quota_us", "cpu/docker/a1/cpu.cfs_period_us"

CASES: dict[str, tuple[str, dict[str, str], int]] = {
    "no groups": ("", {}, ANY),
    "two processors": ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
    "two and a half": ("0::/a/b\n", {"a/b/cpu.max": "250000 100000\n"}, 3),
    "a tenth": ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
    "any": ("0::/\n", {"cpu.max": "max 100000\n"}, ANY),
    "group around": ("0::/a/b\n", {"a/b/cpu.max": "max 1000\n", "a/cpu.max": "3000 1000\n"}, 3),
    "group called otherwise inside": ("0::/docker/a1\n", {"cpu.max": "400000 100000\n"}, 4),
    "version 1": (V1, {QUOTA: "150000\n", PERIOD: "100000\n"}, 2),
    "version 1, any": (V1, {QUOTA: "-1\n", PERIOD: "100000\n"}, ANY),
    "version 1, seen from inside": (
        V1, {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1,
    ),
    "another controller's path": ("3:cpuset:/a\n", {"cpu/a/cpu.cfs_quota_us": "1\n"}, ANY),
    "damaged": ("0::/\nnonsense\n", {"cpu.max": "much\n"}, ANY),
    "period of nothing": ("0::/\n", {"cpu.max": "1000 0\n"}, ANY),
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_program(
        SOURCE, tmp_path_factory.mktemp("quota"), "-fsanitize=address,undefined"
    )


@pytest.mark.parametrize("name", CASES)
def test_quota(name: str, program: Path, tmp_path: Path) -> None:
    groups, files, expected = CASES[name]
    listed, mounts = tmp_path / "cgroup", tmp_path / "mounts"
    listed.write_text(groups)
    for path, text in files.items():
        (mounts / path).parent.mkdir(parents=True, exist_ok=True)
        (mounts / path).write_text(text)
    said = subprocess.run([program, listed, mounts], check=True, capture_output=True, text=True)
    assert int(said.stdout) == expected
    assert config.cgroup_processor_quota(listed, mounts) == (None if expected == ANY else expected)


def test_usable_processors_keep_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "cgroup_processor_quota", lambda: 1)
    assert config.usable_processors() == 1
