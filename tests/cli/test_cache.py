"""``tracea cache``: results are listed, travel, and are forgotten when they can serve no more."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracea_graph.cli import main
from tracea_graph.config import Environment
from tracea_graph.kernels.cpu.backend import CPU
from tracea_graph.tuning import CACHE_FILE, CacheEntry, TuningCache
from tracea_graph.tuning.cache_key import machine_facts

pytestmark = pytest.mark.compiler  # machine facts name one
VALUE = {"schedule": [4, 0, 128, 0, 0], "gain": 1.25}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A cache with a usable result and several that are not."""
    here = machine_facts(CPU.fingerprint(), Environment())
    entries = {
        "good": CacheEntry(VALUE, [{}], True, "gemm 8x8, 4 rows", here),
        "unfinished": CacheEntry(VALUE, [], False, "gemm 8x16, 4 rows", here),
        "stale": CacheEntry(VALUE, [], True, "gemm 8x32, 4 rows", {**here, "tracea": "0.0"}),
        "far": CacheEntry(VALUE, [], True, "gemm 8x64, 4 rows", {**here, "machine": "another"}),
        "old": CacheEntry(VALUE, [], True, "gemm 8x96, 4 rows", here, time.time() - 90 * 86400),
    }
    with TuningCache(tmp_path / CACHE_FILE) as cache:
        for key, entry in entries.items():
            cache.put(key, entry)
    yield tmp_path


def keys(folder: Path) -> set[str]:
    with TuningCache(folder / CACHE_FILE) as cache:
        return {key for key, _ in cache}


def run(folder: Path, *words: str) -> int:
    return main(["cache", words[0], "--cache", str(folder), *words[1:]])


def test_the_list_says_what_is_usable_here(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "ls") == 0
    lines = {line.split("   ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "1.250×" in lines["gemm 8x8, 4 rows"] and " final" in lines["gemm 8x8, 4 rows"]
    assert "unusable here" in lines["gemm 8x64, 4 rows"]
    assert "unfinished" in lines["gemm 8x16, 4 rows"]
    assert run(folder, "ls", "--json") == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["good"]["trials"] == 1 and rows["good"]["value"] == VALUE


def test_results_travel(folder: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "all.jsonl", tmp_path / "other"
    assert run(folder, "export", str(file)) == 0
    assert run(other, "import", str(file)) == 0
    with TuningCache(folder / CACHE_FILE) as a, TuningCache(other / CACHE_FILE) as b:
        assert {k: (e, e.written) for k, e in a} == {k: (e, e.written) for k, e in b}


@pytest.mark.parametrize("text", ["{", "[]", '{"key": "k"}', '{"key": "k", "about": 3}'])
def test_a_file_that_is_no_export_changes_nothing(
    folder: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good.jsonl"
    assert run(folder, "export", str(good)) == 0
    file, other = tmp_path / "bad.jsonl", tmp_path / "other"
    file.write_text(good.read_text() + text + "\n")
    assert run(other, "import", str(file)) == 2
    assert "line 6 of" in capsys.readouterr().err
    assert keys(other) == set()


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ((), {"good", "unfinished", "far", "old"}),
        (("--unfinished",), {"good", "far", "old"}),
        (("--other-machines",), {"good", "unfinished", "old"}),
        (("--older", "30"), {"good", "unfinished", "far"}),
        (("--all",), set()),
    ],
)
def test_pruning(folder: Path, words: tuple[str, ...], left: set[str]) -> None:
    assert run(folder, "prune", *words) == 0
    assert keys(folder) == left
