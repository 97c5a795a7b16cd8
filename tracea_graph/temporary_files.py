"""Temporary folders, input files, and pauses of the garbage collector.

Temporary folders are removed after use, or by the next run after a SIGKILL.  A folder's user holds
a lock on a file in it while alive, so that later processes can distinguish folders in use from
those that a killed process left.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "STAGED",
    "ScratchFolder",
    "gc_paused",
    "is_owned_by_user",
    "kill_group",
    "lock_file",
    "open_regular_file",
    "remove_leftovers",
]

STAGED = ".tracea-"
"""Prefix of temporary files and folders beside an output."""
_PREFIX = "tracea-"
_HELD = ".held"
_BESIDE = (".onnx", ".so", ".dll", ".dylib")
"""Suffixes of files that may accompany a folder beside an output."""
_OLD_SECONDS = 86400.0
"""Age of the last write after which a file beside an output is abandoned; no write takes longer.
"""


_AT_ONCE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags to open a file without waiting for a writer, as bytes, and not for child processes."""
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def lock_file(handle: int, wait: bool = False) -> None:
    """Lock an open file against other processes, until it is closed.

    Raises OSError if another process holds the lock, unless ``wait`` is True.
    """
    if sys.platform == "win32":
        msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def is_owned_by_user(found: os.stat_result) -> bool:
    """Return whether a file belongs to this user.

    Always True on Windows, where folders of other users are protected by other means.
    """
    return sys.platform == "win32" or found.st_uid == os.geteuid()


def kill_group(leader: int) -> None:
    """Kill a process that was started as the leader of a group, and its child processes.

    Raises ProcessLookupError if it is gone.
    """
    if sys.platform == "win32":
        command = ("taskkill", "/F", "/T", "/PID", str(leader))
        subprocess.run(command, capture_output=True, check=False)
    else:
        os.killpg(leader, signal.SIGKILL)


class ScratchFolder(tempfile.TemporaryDirectory[str]):
    """A private folder with a random name, in the system's temporary folder or in ``folder``.

    Raises OSError if it cannot be created.
    """

    def __init__(self, kind: str = "", folder: Path | None = None) -> None:
        """``kind`` becomes part of the name; a folder beside an output has none."""
        prefix = f"{STAGED if folder else _PREFIX}{kind and f'{kind}-'}"
        super().__init__(prefix=prefix, dir=folder, ignore_cleanup_errors=True)
        self._held = _hold(Path(self.name))

    def cleanup(self) -> None:
        """Remove the folder and its contents.  May be called twice."""
        super().cleanup()
        if self._held is not None:
            os.close(self._held)
            self._held = None


def remove_leftovers(folder: Path | None = None) -> None:
    """Remove what killed runs of this user left beside an output, or in the temporary folder."""
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
    """Yield this user's entries of a folder with a prefix, without following links."""
    try:
        names = [name for name in os.listdir(home) if name.startswith(prefix)]
    except OSError:  # unreadable, or does not exist yet
        return
    for name in names:
        with suppress(OSError):  # another run is sweeping too
            found = (home / name).lstat()
            if is_owned_by_user(found):
                yield home / name, found


def _is_old(found: os.stat_result) -> bool:
    return time.time() - found.st_mtime > _OLD_SECONDS


def _hold(folder: Path) -> int | None:
    """Lock a file in a folder that is still empty; None if files cannot be locked.

    The file is renamed after it is locked, so that no other process ever sees it unlocked.
    """
    handle = os.open(folder / f"{_HELD}-", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        lock_file(handle)
    except OSError:
        os.close(handle)
        return None
    os.rename(folder / f"{_HELD}-", folder / _HELD)
    return handle


def _abandoned(folder: Path) -> bool:
    """Return True if :class:`ScratchFolder` made a folder and its user is gone."""
    try:
        handle = os.open(folder / _HELD, os.O_RDWR | _AT_ONCE | _NO_LINK)
    except OSError:
        return False
    try:
        lock_file(handle)
    except OSError:  # in use, or unknown
        return False
    finally:
        os.close(handle)
    return True


def open_regular_file(path: Path) -> IO[bytes]:
    """Open a regular file for reading.

    Raises OSError, with ``strerror``, if it cannot be opened or is something else: opening a pipe
    would block until a writer comes, and a device may never end.
    """
    handle = os.open(path, os.O_RDONLY | _AT_ONCE)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector inside the block.

    Useful for code that creates many objects and no cyclic garbage.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
