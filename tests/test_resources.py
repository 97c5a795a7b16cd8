"""Temporary folders go when their use ends, and with the next run where it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracea_graph.temporary_files import STAGED, ScratchFolder, remove_leftovers

NOBODY = 65534
HOLD = """
import sys, time
from pathlib import Path
from tracea_graph.temporary_files import ScratchFolder
made = [ScratchFolder("work"), ScratchFolder(folder=Path(sys.argv[1]))]
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's place for temporary folders."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "tmp"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of an output."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def holder(place: Path, home: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a folder in both places."""
    command = [sys.executable, "-c", HOLD, home]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_goes_at_the_end_of_its_use(place: Path, home: Path) -> None:
    with ScratchFolder("work") as name, ScratchFolder(folder=home) as other:
        assert Path(name).parent == place and Path(name).name.startswith("tracea-work-")
        assert Path(other).parent == home and Path(other).name.startswith(STAGED)
        (Path(name) / "file").touch()
        assert {p.stat().st_mode & 0o777 for p in (Path(name), Path(other))} == {0o700}
    assert names(place) == names(home) == set()


def test_what_is_in_use_stays(holder: subprocess.Popen[str], place: Path, home: Path) -> None:
    before = names(place), names(home)
    assert all(before)
    with ScratchFolder("own"):
        remove_leftovers()
        remove_leftovers(home)
        assert (names(place) > before[0], names(home)) == (True, before[1])


def test_what_a_killed_process_left_goes(
    holder: subprocess.Popen[str], place: Path, home: Path
) -> None:
    (staged,) = home.iterdir()
    for ending in (".onnx", ".so"):
        staged.with_suffix(ending).touch()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    remove_leftovers()
    remove_leftovers(home)
    assert names(place) == names(home) == set()


def test_what_others_made_stays(place: Path, home: Path) -> None:
    """Folders of such names that are no work of this tool, and links to anything."""
    for folder, prefix in ((place, "tracea-"), (home, STAGED)):
        (folder / f"{prefix}results").mkdir()
        (folder / f"{prefix}link").symlink_to(place.parent)
        (folder / f"{prefix}file").touch()
    (home / "model.onnx").touch()
    before = names(place), names(home)
    remove_leftovers()
    remove_leftovers(home)
    assert (names(place), names(home)) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_another_user_left_stays(
    holder: subprocess.Popen[str], place: Path, home: Path
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    for folder in (*place.iterdir(), *home.iterdir()):
        os.chown(folder, NOBODY, NOBODY)
    before = names(place), names(home)
    remove_leftovers()
    remove_leftovers(home)
    assert (names(place), names(home)) == before and all(before)


def test_a_file_half_written_long_ago_goes(home: Path) -> None:
    old, new = home / f"{STAGED}old", home / f"{STAGED}new"
    for path, mtime in ((old, 1.0), (new, None)):
        path.touch()
        if mtime is not None:
            os.utime(path, (mtime, mtime))
    remove_leftovers(home)
    assert names(home) == {new.name}


def test_a_place_that_cannot_be_listed_is_left_alone(tmp_path: Path) -> None:
    remove_leftovers(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
