"""The store of compiled objects keeps within its limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracea_graph.toolchain import object_cache as module
from tracea_graph.toolchain.object_cache import ObjectCache, sha256_of_parts

KEYS = [sha256_of_parts(str(i)) for i in range(5)]
SIZE = 1000


@pytest.fixture
def filled(tmp_path: Path) -> ObjectCache:
    """Five objects, the first one stored longest ago."""
    cache = ObjectCache(tmp_path / "objects")
    for i, key in enumerate(KEYS):
        cache.put(key, bytes(SIZE))
        os.utime(cache.root / key[:2] / key, (1e9 + i, 1e9 + i))
    return cache


def test_what_was_not_used_for_longest_goes(filled: ObjectCache) -> None:
    assert filled.get(KEYS[0]) == bytes(SIZE), "which is a use"
    removed = filled.trim(3 * (SIZE + 32))
    assert removed == 2 * (SIZE + 32)
    assert [filled.get(key) is not None for key in KEYS] == [True, False, False, True, True]


def test_within_the_limit_nothing_goes(filled: ObjectCache) -> None:
    assert filled.trim(5 * (SIZE + 32)) == 0
    assert all(filled.get(key) for key in KEYS)


def test_the_first_object_of_a_process_makes_room(
    filled: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_trimmed", set())
    monkeypatch.setattr(ObjectCache.trim, "__defaults__", (2 * (SIZE + 32),))
    filled.put(sha256_of_parts("one more"), bytes(SIZE))
    assert sum(filled.get(key) is not None for key in KEYS) == 1
