"""The cache keeps what it is given, under concurrency and after damage."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tracea_graph.tuning.result_cache import CacheEntry, TuningCache

ENTRY = CacheEntry(
    {"schedule": [4, 0, 128, 0, 0], "gain": 1.25}, [{"pairs": [1.0, 2.0]}], True, "a case"
)
BEGUN = CacheEntry({"schedule": [4, 0, 128, 0, 1], "gain": 1.0}, [], False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "tuning.sqlite"


def test_entries_survive_the_process(path: Path) -> None:
    with TuningCache(path) as cache:
        assert cache.get("k") is None
        cache.put("k", ENTRY)
    with TuningCache(path) as cache:
        assert cache.get("k") == ENTRY and list(cache) == [("k", ENTRY)] and len(cache) == 1
    assert path.stat().st_mode & 0o077 == 0 and path.parent.stat().st_mode & 0o077 == 0


def test_a_beginning_never_replaces_a_result(path: Path) -> None:
    with TuningCache(path) as cache:
        cache.put("k", BEGUN)
        assert cache.get("k") == BEGUN
        cache.put("k", ENTRY)
        cache.put("k", BEGUN)
        assert cache.get("k") == ENTRY


def test_entries_are_described_listed_and_forgotten(path: Path) -> None:
    told = CacheEntry({"gain": 1.0}, [], True, "gemm 8x8", {"machine": "m", "rows": "4"}, 12.0)
    with TuningCache(path) as cache:
        cache.put("a", told)
        cache.put("b", ENTRY)
        found = dict(cache)
        assert found["a"] == told and found["a"].written == 12.0 < found["b"].written
        assert CacheEntry.from_json(found["a"].to_json()) == told
        cache.remove(["a", "unknown"])
        assert list(dict(cache)) == ["b"]


def test_a_look_up_is_one_search_by_key(path: Path) -> None:
    """However many entries there are; ``python -m models.cache_latency`` measures how long."""
    asked: list[str] = []
    with TuningCache(path) as cache:
        cache.put("k", ENTRY)
        cache._connection.set_trace_callback(asked.append)
        assert cache.get("k") == ENTRY
        cache._connection.set_trace_callback(None)
        (query,) = asked
        plan = cache._connection.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
    assert [row[-1] for row in plan] == ["SEARCH result USING PRIMARY KEY (key=?)"]


WRITER = """
import sys
from pathlib import Path
from tracea_graph.tuning.result_cache import CacheEntry, TuningCache
with TuningCache(Path(sys.argv[1])) as cache:
    for i in range(50):
        cache.put(f"{sys.argv[2]}-{i}", CacheEntry({"gain": i}, [], True))
"""


def writers(path: Path, count: int) -> list[str]:
    """Let so many processes write at once; what they said."""
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(i)],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    return [process.communicate(timeout=600)[1] for process in started]


def test_many_processes_lose_no_row(path: Path) -> None:
    assert writers(path, 8) == [""] * 8
    with TuningCache(path) as cache:
        assert len(cache) == 8 * 50


@pytest.mark.parametrize(
    "damage", [b"", b"SQLite format 3\0" + b"\xff" * 5000, b"not a database" * 99]
)
def test_a_damaged_file_is_moved_aside(path: Path, damage: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with TuningCache(path) as cache:
            cache.put("k", ENTRY)
            assert cache.get("k") == ENTRY
    assert len(said) == bool(damage)
    aside = list(path.parent.glob("*.damaged"))
    assert [f.read_bytes() for f in aside] == ([damage] if damage else [])


def test_damage_in_the_middle_of_work_loses_entries_and_nothing_else(path: Path) -> None:
    with TuningCache(path) as cache:
        for i in range(400):
            cache.put(f"k{i}", ENTRY)
    path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * (path.stat().st_size - 4096))
    with pytest.warns(UserWarning, match="damaged"), TuningCache(path) as cache:
        assert cache.get("k200") is None
        cache.put("k200", ENTRY)
        assert cache.get("k200") == ENTRY


def test_a_database_of_somebody_else_is_left_whole(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    content = path.read_bytes()
    with pytest.warns(UserWarning, match="not a tuning cache"), TuningCache(path) as cache:
        assert cache.get("k") is None
    (aside,) = path.parent.glob("*.damaged")
    assert aside.read_bytes() == content


def test_where_nothing_can_be_written_the_cache_lives_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    with pytest.warns(UserWarning, match="TRACEA_CACHE"), TuningCache(file / "t.sqlite") as cache:
        cache.put("k", ENTRY)
        assert cache.get("k") == ENTRY
