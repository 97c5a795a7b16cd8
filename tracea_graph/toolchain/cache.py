"""Content-addressed store of compiled objects.

An entry is one file, named by its key: the SHA-256 of the object, followed by the object.  An
entry that does not match its digest counts as absent and is rebuilt, and so does one that other
users can have written (:mod:`~tracea_graph.toolchain.trust`).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tracea_graph.errors import BuildError
from tracea_graph.toolchain.trust import make_private, read_private, trusted

__all__ = ["ObjectCache", "digest", "write_whole"]

_DIGEST_BYTES = 32


def digest(*parts: str | bytes) -> str:
    """Return the SHA-256 of parts, each preceded by its length so that no two lists collide."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def write_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file completely, then rename it into place; readers see the old or the new one."""
    handle, name = tempfile.mkstemp(prefix=".tracea-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


_guard = threading.Lock()
_making: dict[Path, threading.Lock] = {}
"""Locks of entries that threads of this process made or are making."""


@dataclass(frozen=True)
class ObjectCache:
    """Objects under ``root``, readable by their owner alone."""

    root: Path

    @contextmanager
    def making(self, key: str) -> Iterator[None]:
        """Wait until no other thread of this process makes the object of a key; then make it.

        Ask for the object again in this block: another thread may have stored it.
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
        return body if hashlib.sha256(body).digest() == data[:_DIGEST_BYTES] else None

    def put(self, key: str, data: bytes) -> None:
        """Store an object, unless other users can write to the folder.

        Raises BuildError if the folder cannot be written.
        """
        path = self._path(key)
        try:
            make_private(path.parent)
            if trusted(path.parent, self.root):
                write_whole(path, hashlib.sha256(data).digest() + data, mode=0o600)
        except OSError as error:
            raise BuildError(
                f"The build cache {self.root} cannot be written ({error.strerror}); "
                "set TRACEA_CACHE to a folder of your own."
            ) from error

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / key
