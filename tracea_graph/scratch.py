"""Folders that are gone afterwards: at the end of their use, or of the next run after a SIGKILL.

A folder's user holds a lock on a file in it for as long as it lives, so that whoever comes later
can tell what is in use from what a killed process left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["STAGED", "Scratch", "sweep"]

STAGED = ".tracea-"
"""How names of what lies beside an output meanwhile begin, files and folders."""
_PREFIX = "tracea-"
_HELD = ".held"
_BESIDE = (".onnx", ".so")
"""What may lie beside a folder beside an output, under its name."""
_OLD_SECONDS = 86400.0
"""Since a file beside an output was last written: no single one takes that long."""


class Scratch(tempfile.TemporaryDirectory[str]):
    """A private folder, in the system's place for such or in ``folder``, under a random name.

    Raises OSError if it cannot be made.
    """

    def __init__(self, kind: str = "", folder: Path | None = None) -> None:
        """``kind`` is a word for its name; a folder beside an output has none."""
        prefix = f"{STAGED if folder else _PREFIX}{kind and f'{kind}-'}"
        super().__init__(prefix=prefix, dir=folder, ignore_cleanup_errors=True)
        self._held = _hold(Path(self.name))

    def cleanup(self) -> None:
        """Remove the folder and all that is in it.  May be called twice."""
        super().cleanup()
        if self._held is not None:
            os.close(self._held)
            self._held = None


def sweep(folder: Path | None = None) -> None:
    """Remove what killed runs of this user left: beside an output in ``folder``, or in the
    system's place for temporary folders.
    """
    home = folder or Path(tempfile.gettempdir())
    for path, found in _own(home, STAGED if folder else _PREFIX):
        if stat.S_ISDIR(found.st_mode):
            if _abandoned(path):
                shutil.rmtree(path, ignore_errors=True)
                _remove(*(path.with_suffix(ending) for ending in _BESIDE if folder))
        elif folder and stat.S_ISREG(found.st_mode) and _is_old(found):
            _remove(path)


def _remove(*files: Path) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()


def _own(home: Path, prefix: str) -> Iterator[tuple[Path, os.stat_result]]:
    """This user's entries of a folder whose names begin so; links are what they are."""
    try:
        names = [name for name in os.listdir(home) if name.startswith(prefix)]
    except OSError:  # it may not be listed, or not exist yet
        return
    for name in names:
        with suppress(OSError):  # another run sweeps too
            found = (home / name).lstat()
            if found.st_uid == os.geteuid():
                yield home / name, found


def _is_old(found: os.stat_result) -> bool:
    return time.time() - found.st_mtime > _OLD_SECONDS


def _hold(folder: Path) -> int | None:
    """Lock a file in a folder that is still empty; None where files cannot be locked.

    The file gets its name once it is locked: no other process ever finds it free by mistake.
    """
    handle = os.open(folder / f"{_HELD}-", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    os.rename(folder / f"{_HELD}-", folder / _HELD)
    return handle


def _abandoned(folder: Path) -> bool:
    """True if a folder was made by :class:`Scratch`, and its user is gone."""
    try:
        handle = os.open(folder / _HELD, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # in use, or nobody can tell
        return False
    finally:
        os.close(handle)
    return True
