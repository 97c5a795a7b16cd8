"""Worker processes for verification: a new one per request, or a pool reused across models.

A process is started for each library and environment (``TRACEA_ISA``), because generated code may
corrupt its process.  If many models share one library, starting processes would dominate: a pooled
worker lives until it dies, or until another library is to be loaded in its environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tracea_graph.check.worker_process import Worker

__all__ = ["AcquireWorker", "WorkerPool", "new_worker"]

AcquireWorker = Callable[[Path | None, Mapping[str, str]], AbstractContextManager[Worker]]
"""Function from a library and environment variables to a context manager that yields a worker."""

_LIMIT = 300.0
"""Time limit of a request in seconds."""

_LibraryId = tuple[int, int] | None
"""Identity of a library independent of its name: device and inode number."""


@contextmanager
def new_worker(library: Path | None, env: Mapping[str, str]) -> Iterator[Worker]:
    """Start a worker for one request and stop it afterwards."""
    with Worker(limit=_LIMIT, env=env) as worker:
        yield worker


@dataclass
class _PooledWorker:
    worker: Worker
    library: _LibraryId
    uses: int = 0


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Reusable workers: for each environment, one without a library and one with a library.

    Use it in a ``with`` statement, and each environment from one thread at a time.
    """

    def __init__(self, limit: float = _LIMIT) -> None:
        self._limit = limit
        self._workers: dict[tuple[bool, tuple[tuple[str, str], ...]], _PooledWorker] = {}

    @contextmanager
    def acquire(self, library: Path | None, env: Mapping[str, str]) -> Iterator[Worker]:
        """Yield the worker for a library and environment; its sessions are closed afterwards."""
        key, mark = (library is None, tuple(sorted(env.items()))), _library_id(library)
        pooled = self._workers.get(key)
        if pooled is None or pooled.library != mark or not pooled.worker.alive:
            if pooled is not None:
                pooled.worker.stop()
            pooled = self._workers[key] = _PooledWorker(Worker(limit=self._limit, env=env), mark)
        pooled.uses += 1
        try:
            yield pooled.worker
        finally:
            if pooled.worker.alive:
                pooled.worker.clear()

    def discard(self, who: str) -> bool:
        """Stop workers used more than once: all, only the dead ones, or none (``who`` is "").

        The last result of such a worker may have been spoiled by an earlier model.  Returns True
        if a worker was stopped.
        """
        found = [
            key
            for key, pooled in self._workers.items()
            if who and pooled.uses > 1 and (who == "all" or not pooled.worker.alive)
        ]
        for key in found:
            self._workers.pop(key).worker.stop()
        return bool(found)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pooled in self._workers.values():
            pooled.worker.stop()
        self._workers.clear()


def _library_id(library: Path | None) -> _LibraryId:
    if library is None:
        return None
    found = library.stat()
    return found.st_dev, found.st_ino
