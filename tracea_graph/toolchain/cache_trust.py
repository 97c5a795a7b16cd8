"""Check that nobody else can have written what a cache holds.

Cached objects are linked and run, and a digest beside an object does not say who wrote it.  An
entry therefore counts only if this user alone can have put it there: the cache's folder, the
folders inside and the file belong to this user, and nobody else may write to them.  A cache that
others can write to counts as empty, and nothing is stored in it.
"""

from __future__ import annotations

import os
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tracea_graph.temporary_files import is_owned_by_user, open_regular_file

__all__ = ["is_trusted", "make_private", "read_private", "why_untrusted"]

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0

_warned: set[Path] = set()
"""Caches that were warned about."""


def why_untrusted(path: Path, root: Path) -> str:
    """Return why another user could have written the file ``path``; empty if none could.

    The answer is a clause.  ``root``, ``path`` and all folders between them are checked; ``path``
    may be ``root``.  Symbolic links are followed, but must belong to this user or to root.  A
    missing file is trusted.  Raises OSError if an owner cannot be determined.
    """
    for place in _from(root, path):
        try:
            own = place.lstat()
            real = place.stat() if stat.S_ISLNK(own.st_mode) else own
        except (FileNotFoundError, NotADirectoryError):
            return ""
        if real is not own and not is_owned_by_user(own) and own.st_uid != _ROOT:
            return f"{place} is a link of another user"
        if why := _fault(real):
            return f"{place} {why}"
    return ""


def is_trusted(path: Path, root: Path) -> bool:
    """Return True if nobody but this user can have written ``path`` in the cache ``root``.

    Warns once per cache if not.
    """
    try:
        why = why_untrusted(path, root)
    except OSError as error:
        why = f"{path} cannot be examined: {error.strerror}"
    if why:
        _warn(root, why)
    return not why


def read_private(path: Path, root: Path) -> bytes | None:
    """Return the content of a file of the cache ``root``; None if it is missing or not trusted.

    Raises OSError if it cannot be read.
    """
    if not is_trusted(path, root):
        return None
    try:
        file = open_regular_file(path)
    except FileNotFoundError:
        return None
    with file:
        if why := _fault(os.fstat(file.fileno())):  # the file was replaced in the meantime
            _warn(root, f"{path} {why}")
            return None
        return file.read()


def make_private(folder: Path) -> None:
    """Create a folder that only this user can enter, and its missing parents.

    Raises OSError if that fails.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        with suppress(FileExistsError):  # another process created it, or a file is in the way
            folder.mkdir(mode=0o700)


def _from(root: Path, path: Path) -> Iterator[Path]:
    """Yield ``root``, the folders on the way, and ``path``."""
    yield root
    inside = path.relative_to(root)
    for folder in reversed(inside.parents[:-1]):
        yield root / folder
    if inside.parts:
        yield path


def _fault(found: os.stat_result) -> str:
    """Return what is wrong with a file or folder, as the end of a clause; empty if nothing is."""
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return "is neither a file nor a folder"
    if not is_owned_by_user(found):
        return "belongs to another user"
    others = found.st_mode & _OTHERS and sys.platform != "win32"  # modes mean nothing there
    return "can be written by other users" if others else ""


def _warn(root: Path, why: str) -> None:
    if root in _warned:
        return
    _warned.add(root)
    warnings.warn(
        f"The cache {root} is not used: {why}; set TRACEA_CACHE to a folder of your own that "
        "others cannot write to.",
        stacklevel=3,
    )
