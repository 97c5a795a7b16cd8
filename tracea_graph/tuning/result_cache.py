"""Persistent cache of tuning results, so that nothing is measured twice on a machine.

One SQLite file, readable by its owner alone.  A key is a digest of everything a result depends on,
listed in ``about``; an entry holds the schedule found and its measurements.  Entries that are not
final hold what an interrupted study measured, so that the next run can resume it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tracea_graph.temporary_files import lock_file
from tracea_graph.toolchain.cache_trust import make_private, why_untrusted

__all__ = ["CacheEntry", "TuningCache"]

_APPLICATION = 0x74726163
"""``trac``: marks the file as this tool's (SQLite's ``application_id``)."""
_VERSION = 3
_WAIT_SECONDS = 60.0
"""Time to wait for other writers."""
_TABLE = """
CREATE TABLE IF NOT EXISTS result (
    key TEXT PRIMARY KEY,
    what TEXT NOT NULL,
    about TEXT NOT NULL,
    value TEXT NOT NULL,
    evidence TEXT NOT NULL,
    final INTEGER NOT NULL,
    written REAL NOT NULL
) WITHOUT ROWID
"""
_STORE = """
INSERT INTO result VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    what = excluded.what, about = excluded.about,
    value = excluded.value, evidence = excluded.evidence,
    final = excluded.final, written = excluded.written
WHERE excluded.final >= result.final
"""
_BESIDE = ("-wal", "-shm")
"""Suffixes of the files that SQLite keeps beside a database."""
_COLUMNS = "key, what, about, value, evidence, final, written"

_T = TypeVar("_T")


@dataclass(frozen=True)
class CacheEntry:
    """A cached tuning result.

    * ``value``, ``evidence``: the result and its measurements, JSON-ready.
    * ``final``: False if the study was interrupted.
    * ``what``: the problem in words, for display.
    * ``about``: everything that the result depends on; the cache key is a digest of it.
    * ``written``: time of writing in seconds since 1970, set by the cache.
    """

    value: Any
    evidence: Any
    final: bool
    what: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    written: float = field(default=0.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return what ``tracea cache export`` writes of an entry, besides its key."""
        return {
            "what": self.what, "about": dict(self.about), "value": self.value,
            "evidence": self.evidence, "final": self.final, "written": self.written,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CacheEntry:
        """Parse what :meth:`to_json` returned.  Raises KeyError, TypeError or ValueError."""
        about = {str(name): str(value) for name, value in dict(data["about"]).items()}
        final, written = bool(data["final"]), float(data["written"])
        return cls(data["value"], data["evidence"], final, str(data["what"]), about, written)


class TuningCache(AbstractContextManager["TuningCache"]):
    """Cache of tuning results in the file ``path``; use it in a ``with`` statement.

    Several processes may use the file at once.  A file that is damaged, or that another program
    wrote, is renamed, with a warning.  If the file cannot be written, or if other users can write
    to it, results are kept in memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = self._connect()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def get(self, key: str) -> CacheEntry | None:
        """Return the entry of a key; None if there is none or it cannot be read."""
        query = f"SELECT {_COLUMNS} FROM result WHERE key = ?"
        row = self._guarded(lambda: self._connection.execute(query, (key,)).fetchone())
        return None if row is None else _entry(row)

    def put(self, key: str, entry: CacheEntry) -> None:
        """Store an entry; an unfinished one never replaces a final one."""
        texts = (json.dumps(x, sort_keys=True) for x in (entry.about, entry.value, entry.evidence))
        row = (key, entry.what, *texts, int(entry.final), entry.written or time.time())
        self._guarded(lambda: self._connection.execute(_STORE, row))

    def abouts(self) -> list[dict[str, str]]:
        """Return the ``about`` of every entry."""
        query = "SELECT about FROM result"
        found = []
        for (text,) in self._guarded(lambda: self._connection.execute(query).fetchall()):
            with suppress(ValueError):
                found.append(json.loads(text))
        return found

    def remove(self, keys: Iterable[str]) -> None:
        """Remove entries; unknown keys are ignored."""
        rows = [(key,) for key in keys]
        query = "DELETE FROM result WHERE key = ?"
        self._guarded(lambda: self._connection.executemany(query, rows))

    def __len__(self) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM result").fetchone()
        return int(count)

    def __iter__(self) -> Iterator[tuple[str, CacheEntry]]:
        """Yield keys and entries, oldest first, without unreadable ones."""
        query = f"SELECT {_COLUMNS} FROM result ORDER BY written"
        for row in self._guarded(lambda: self._connection.execute(query).fetchall()):
            if (entry := _entry(row)) is not None:
                yield row[0], entry

    # ---- the file ----------------------------------------------------------------------

    def _guarded(self, work: Callable[[], _T]) -> _T:
        """Call ``work``; if the file turns out to be damaged, call it again on a new one."""
        try:
            return work()
        except sqlite3.OperationalError:  # busy or disk full, not damaged
            raise
        except sqlite3.DatabaseError as error:
            self._connection.close()
            with suppress(OSError):  # the next connection will be in memory
                self._set_aside(error)
            self._connection = self._connect()
            return work()

    def _connect(self) -> sqlite3.Connection:
        """Connect to the file, to a new one, or as a last resort to memory."""
        try:
            self._make_private()
            try:
                return _open(self.path)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                self._set_aside(error)
                return _open(self.path)
        except (OSError, sqlite3.Error) as error:
            return self._in_memory(error)

    def _make_private(self) -> None:
        make_private(self.path.parent)
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
        for suffix in ("", *_BESIDE):
            if why := why_untrusted(_beside(self.path, suffix), self.path.parent):
                raise PermissionError(why)

    def _set_aside(self, error: Exception) -> None:
        """Rename a damaged file, unless another process has done so already."""
        aside = self.path.with_name(f"{self.path.name}.{time.time_ns()}.damaged")
        with _locked(self.path):
            if _is_sound(self.path):
                return
            os.replace(self.path, aside)
            for suffix in _BESIDE:
                _beside(self.path, suffix).unlink(missing_ok=True)
            self._make_private()
        warnings.warn(
            f"The tuning cache {self.path} is damaged ({error}); it was moved to {aside.name} "
            "and tuning starts afresh.",
            stacklevel=2,
        )

    def _in_memory(self, error: Exception) -> sqlite3.Connection:
        warnings.warn(
            f"The tuning cache {self.path} cannot be used ({error}), so nothing tuned now will be "
            "remembered; set TRACEA_CACHE or --cache to a folder of your own.",
            stacklevel=2,
        )
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.execute(_TABLE)
        return connection


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _entry(row: tuple[Any, ...]) -> CacheEntry | None:
    """Parse a row of all columns; None if it is not valid JSON."""
    try:
        about, value, evidence = map(json.loads, row[2:5])
    except ValueError:
        return None
    return CacheEntry(value, evidence, bool(row[5]), row[1], about, row[6])


def _open(path: Path) -> sqlite3.Connection:
    """Connect to a cache file, creating its tables if it is empty.

    Raises DatabaseError for a file that is damaged or not this tool's.
    """
    connection = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)
    try:
        if not _is_ours(connection):
            with _locked(path):
                if not _is_ours(connection):
                    _shape(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_ours(connection: sqlite3.Connection) -> bool:
    """Return False for an empty file.  Raises DatabaseError for another program's file."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (owner, version, tables) == (0, 0, 0):
        return False
    if (owner, version, tables) != (_APPLICATION, _VERSION, 1):
        raise sqlite3.DatabaseError("it is not a tuning cache of this version")
    return True


def _shape(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_TABLE)
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")


def _is_sound(path: Path) -> bool:
    """Return True if a file is this tool's and undamaged."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, _WAIT_SECONDS)) as connection:
        whole = connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
        return _is_ours(connection) and whole
    return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Serialize processes by an advisory lock on a file beside ``path``."""
    with _beside(path, ".lock").open("w") as file:
        lock_file(file.fileno(), wait=True)
        yield
