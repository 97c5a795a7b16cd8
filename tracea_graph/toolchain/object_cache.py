"""Content-addressed store of compiled objects, bounded in size.

An entry is one file, named by its key: the SHA-256 of the object, followed by the object.  An
entry that does not match its digest counts as absent and is rebuilt, and so does one that other
users can have written (:mod:`~tracea_graph.toolchain.cache_trust`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tracea_graph.config import Environment
from tracea_graph.errors import BuildError, UsageError
from tracea_graph.toolchain.cache_trust import is_trusted, make_private, read_private

__all__ = ["ObjectCache", "check_object_cache", "sha256_of_parts", "write_atomically"]

_DIGEST_BYTES = 32
_BINARY = getattr(os, "O_BINARY", 0)  # of Windows
LIMIT = 2 << 30
"""Bytes of objects to keep; a library for all levels has about 30 MB of them."""


def sha256_of_parts(*parts: str | bytes) -> str:
    """Return the SHA-256 of parts, each preceded by its length so that no two lists collide."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file completely, then rename it into place; readers see the old or the new one.

    As for any new file, the process's umask is taken from its ``mode``.
    """
    draft = path.parent / f".tracea-{secrets.token_hex(8)}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def check_object_cache(environment: Environment) -> None:
    """Raise UsageError, before any work, if no object can be stored in the cache or be in it.

    A cache that can only be read passes: whatever is needed may have been compiled.
    """
    root = environment.cache / "objects"
    try:
        make_private(root)
        missing = not os.access(root, os.W_OK | os.X_OK) and not any(root.iterdir())
    except OSError as error:
        raise UsageError(_unwritable(root, error.strerror)) from error
    if missing:
        raise UsageError(_unwritable(root, os.strerror(errno.EACCES)))


def _unwritable(root: Path, why: str | None) -> str:
    return (
        f"The build cache {root} cannot be written ({why}); "
        "set TRACEA_CACHE or --cache to a folder of your own."
    )


_guard = threading.Lock()
_making: dict[Path, threading.Lock] = {}
"""Locks of entries that threads of this process made or are making."""


_trimmed = set[Path]()
"""Roots that this process has brought within the limit; once is enough for a build's objects."""


@dataclass(frozen=True)
class ObjectCache:
    """Cache of compiled objects in the folder ``root``, readable by their owner alone.

    When a process stores its first object, the least recently used objects are removed until the
    cache is within its size limit.
    """

    root: Path

    @contextmanager
    def making(self, key: str) -> Iterator[None]:
        """Context in which only one thread of this process makes the object of a key.

        Other threads wait at its beginning.  Look the object up again inside the context: the
        thread before may have stored it.
        """
        with _guard:
            lock = _making.setdefault(self._path(key), threading.Lock())
        with lock:
            yield

    def get(self, key: str) -> bytes | None:
        """Return the object stored under a key; None if it is absent, damaged or not trusted."""
        try:
            data = read_private(self._path(key), self.root)
        except OSError:
            return None
        if data is None:
            return None
        body = data[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != data[:_DIGEST_BYTES]:
            return None
        with suppress(OSError):  # a cache that cannot be written serves as well
            os.utime(self._path(key))
        return body

    def put(self, key: str, data: bytes) -> None:
        """Store an object, unless other users can write to the folder.

        Raises BuildError if the folder cannot be written.
        """
        path = self._path(key)
        try:
            make_private(path.parent)
            if is_trusted(path.parent, self.root):
                write_atomically(path, hashlib.sha256(data).digest() + data, mode=0o600)
                if self.root not in _trimmed:
                    _trimmed.add(self.root)
                    self.trim()
        except OSError as error:
            raise BuildError(_unwritable(self.root, error.strerror)) from error

    def trim(self, limit: int = LIMIT) -> int:
        """Remove the least recently used objects until the rest has at most ``limit`` bytes.

        Returns the number of bytes removed.  Other processes may remove files at the same time.
        """
        found = []
        for path in self.root.glob("*/*"):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        excess, removed = sum(size for _, size, _ in found) - limit, 0
        for _, size, path in sorted(found):
            if removed >= excess:
                break
            with suppress(OSError):
                path.unlink()
                removed += size
        return removed

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / key
