"""What others can have put into a cache is never linked, run or believed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tracea_graph.config import Environment
from tracea_graph.hardware import disk_cache
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.kernels.program import LibraryContents, OpType
from tracea_graph.pipeline.decision_cache import DecisionCache
from tracea_graph.toolchain.cache_trust import (
    is_trusted,
    make_private,
    read_private,
    why_untrusted,
)
from tracea_graph.toolchain.object_cache import ObjectCache, sha256_of_parts
from tracea_graph.tuning import CacheEntry, TuningCache

KEY = sha256_of_parts("x")
NOBODY = 65534
TYPE = OpType("FusedNorm_a1", (DType.F32, DType.F32), (DType.F32,))

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

Spoil = Callable[[Path], None]


def open_to(mode: int) -> Spoil:
    return lambda place: place.chmod(place.stat().st_mode | mode)


def of_another(place: Path) -> None:
    os.chown(place, NOBODY, NOBODY)


WAYS = [
    pytest.param(open_to(0o020), "can be written by other users", id="group"),
    pytest.param(open_to(0o002), "can be written by other users", id="world"),
    pytest.param(of_another, "belongs to another user", id="owner", marks=root_only),
]


@pytest.fixture
def objects(tmp_path: Path) -> ObjectCache:
    cache = ObjectCache(tmp_path / "cache" / "objects")
    cache.put(KEY, b"object")
    assert cache.get(KEY) == b"object"
    return cache


@pytest.mark.parametrize("depth", range(3), ids=["root", "folder", "file"])
@pytest.mark.parametrize(("spoil", "why"), WAYS)
def test_an_object_others_can_have_written_counts_as_absent(
    objects: ObjectCache, spoil: Spoil, why: str, depth: int
) -> None:
    place = (objects.root, objects.root / KEY[:2], objects.root / KEY[:2] / KEY)[depth]
    spoil(place)
    with pytest.warns(UserWarning, match=f"{place} {why}; set TRACEA_CACHE") as said:
        assert objects.get(KEY) is None
        assert objects.get(KEY) is None
    assert len(said) == 1


@pytest.mark.parametrize("inside", [False, True], ids=["root", "folder"])
@pytest.mark.parametrize(("spoil", "why"), WAYS)
def test_nothing_is_stored_where_others_can_write(
    objects: ObjectCache, spoil: Spoil, why: str, inside: bool
) -> None:
    spoil(objects.root / KEY[:2] if inside else objects.root)
    with pytest.warns(UserWarning, match=why):
        objects.put(KEY, b"other")
    files = [path for path in objects.root.rglob("*") if path.is_file()]
    assert [path.read_bytes()[32:] for path in files] == [b"object"]


@pytest.mark.compiler
def test_a_planted_object_is_not_linked(tmp_path: Path) -> None:
    environment = replace(Environment(), cache=tmp_path / "cache")
    good = build_library(
        LibraryContents([TYPE]), ("scalar",), tmp_path / "a.so", environment=environment
    )
    files = (path for path in environment.cache.rglob("*") if path.is_file())
    planted = min(files, key=lambda path: path.stat().st_size)
    planted.chmod(0o666)
    with pytest.warns(UserWarning, match=f"{planted.name} can be written by other users"):
        again = build_library(
            LibraryContents([TYPE]), ("scalar",), tmp_path / "b.so", environment=environment
        )
    assert (again.compiled_units, again.sha256) == (1, good.sha256)
    assert planted.stat().st_mode & 0o077 == 0, "it was made anew"


def test_links_count_as_what_they_lead_to(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir(mode=0o700)
    link.symlink_to(real)
    assert why_untrusted(link, link) == ""
    real.chmod(0o777)
    assert why_untrusted(link, link) == f"{link} can be written by other users"


@root_only
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir(mode=0o700)
    link.symlink_to(real)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    assert why_untrusted(link, link) == f"{link} is a link of another user"


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """To open a FIFO would wait for a writer for ever."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.warns(UserWarning, match="pipe is neither a file nor a folder"):
        assert read_private(tmp_path / "pipe", tmp_path) is None


def test_what_is_missing_is_nobodys(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_trusted(tmp_path / "a" / "b", tmp_path)
        assert read_private(tmp_path / "a" / "b", tmp_path) is None


def test_a_file_exchanged_after_the_look_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"planted")
    (tmp_path / "a").chmod(0o666)
    monkeypatch.setattr("tracea_graph.toolchain.cache_trust.why_untrusted", lambda path, root: "")
    with pytest.warns(UserWarning, match="a can be written by other users"):
        assert read_private(tmp_path / "a", tmp_path) is None


def test_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")} == {0o700}


@pytest.mark.parametrize("part", ["", "-wal", "-shm", "folder"])
@pytest.mark.parametrize(("spoil", "why"), WAYS)
def test_tuning_others_can_have_written_is_not_used(
    tmp_path: Path, spoil: Spoil, why: str, part: str
) -> None:
    path = tmp_path / "cache" / "tuning.sqlite"
    with TuningCache(path) as cache:
        cache.put("k", CacheEntry(1, [], final=True))
    place = path.parent if part == "folder" else path.with_name(path.name + part)
    if part.startswith("-"):
        place.touch(0o600)
    before = path.read_bytes()
    spoil(place)
    with pytest.warns(UserWarning, match=f"{place} {why}") as said, TuningCache(path) as cache:
        assert cache.get("k") is None
        cache.put("k", CacheEntry(2, [], final=True))
        assert cache.get("k") == CacheEntry(2, [], final=True), "it lasts as long as the object"
    assert len(said) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize(("spoil", "why"), WAYS)
def test_a_decision_others_can_have_written_is_read_by_nobody(
    tmp_path: Path, spoil: Spoil, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "decisions" / "key.json"
    path.parent.mkdir(mode=0o700)
    path.write_text("{}")
    seen: list[object] = []
    monkeypatch.setattr(
        "tracea_graph.pipeline.decision_cache.parse_lock",
        lambda content, where: seen.append(content),
    )
    path.write_text('{"made": 0, "busy": false, "gain": "", "lock": 1}')
    DecisionCache(path).load()
    assert seen == [1]
    spoil(path)
    with pytest.warns(UserWarning, match=f"{path} {why}"):
        assert DecisionCache(path).load() is None
    assert seen == [1]


@pytest.mark.parametrize(("spoil", "why"), WAYS)
def test_measurements_others_can_have_written_are_made_again(
    tmp_path: Path, spoil: Spoil, why: str
) -> None:
    disk_cache.store_cached(tmp_path, "machine", "key", 7)
    assert disk_cache.load_cached(tmp_path, "machine", "key") == 7
    spoil(tmp_path / "machine-key.json")
    with pytest.warns(UserWarning, match=why):
        assert disk_cache.load_cached(tmp_path, "machine", "key") is None
