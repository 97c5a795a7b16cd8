"""Whether what lies in a cache can be another user's work.

What a cache holds is linked, run and believed, and digests beside it say nothing about who wrote
it.  So it counts only where this user alone can have put it there: the cache's folder, the folders
inside and the file are this user's own, and nobody else may write to them.  A cache in the hands
of others counts as empty, and nothing is stored in it.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tracea_graph.files import open_regular

__all__ = ["distrust", "make_private", "read_private", "trusted"]

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0

_warned: set[Path] = set()
"""Caches that a warning named."""


def distrust(path: Path, root: Path) -> str:
    """Why others can have written what lies at ``path``, as a clause; empty if they cannot.

    Looks at ``root``, at the path, which is it or lies below it, and at every folder between.
    Symbolic links count as what they lead to, but must be this user's (or root's) themselves.  A
    missing file is nobody's.  Raises OSError if it cannot be told.
    """
    for place in _from(root, path):
        try:
            own = place.lstat()
            real = place.stat() if stat.S_ISLNK(own.st_mode) else own
        except (FileNotFoundError, NotADirectoryError):
            return ""
        if real is not own and own.st_uid not in (os.geteuid(), _ROOT):
            return f"{place} is a link of another user"
        if why := _fault(real):
            return f"{place} {why}"
    return ""


def trusted(path: Path, root: Path) -> bool:
    """True if nobody but this user can have written ``path`` in the cache ``root``.

    Says why not in a warning, once for a cache.
    """
    try:
        why = distrust(path, root)
    except OSError as error:
        why = f"{path} cannot be looked at: {error.strerror}"
    if why:
        _warn(root, why)
    return not why


def read_private(path: Path, root: Path) -> bytes | None:
    """The content of a file of the cache ``root``, None where it is missing or not trusted.

    Raises OSError if it cannot be read.
    """
    if not trusted(path, root):
        return None
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return None
    with file:
        if why := _fault(os.fstat(file.fileno())):  # it was exchanged meanwhile
            _warn(root, f"{path} {why}")
            return None
        return file.read()


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter, and those it lies in, where they are missing.

    Raises OSError.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        with suppress(FileExistsError):  # another process was first, or a file is in the way
            folder.mkdir(mode=0o700)


def _from(root: Path, path: Path) -> Iterator[Path]:
    """``root``, the folders on the way, and ``path``."""
    yield root
    inside = path.relative_to(root)
    for folder in reversed(inside.parents[:-1]):
        yield root / folder
    if inside.parts:
        yield path


def _fault(found: os.stat_result) -> str:
    """What is wrong with a file or folder, as the end of a clause; empty if nothing is."""
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return "is neither a file nor a folder"
    if found.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written by other users" if found.st_mode & _OTHERS else ""


def _warn(root: Path, why: str) -> None:
    if root in _warned:
        return
    _warned.add(root)
    warnings.warn(
        f"The cache {root} is not used: {why}; set TRACEA_CACHE to a folder of your own that "
        "others cannot write to.",
        stacklevel=3,
    )
