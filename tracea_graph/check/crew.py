"""Who runs what is to be verified: a fresh worker each time, or a crew that stays for many models.

A process is started for each library and environment (``TRACEA_ISA``), as everything generated
may corrupt the process it runs in.  Where many models share one library, starting processes would
take longer than all the rest: there a worker stays until it dies, or until another library is to
be loaded in its environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tracea_graph.check.worker import Worker

__all__ = ["Crew", "Hire", "fresh"]

Hire = Callable[[Path | None, Mapping[str, str]], AbstractContextManager[Worker]]
"""From a library and environment variables to a worker, for as long as it is needed."""

_LIMIT = 300.0
"""Seconds one request may take."""

_Mark = tuple[int, int] | None
"""A library, whatever its name: the device and number of its file."""


@contextmanager
def fresh(library: Path | None, env: Mapping[str, str]) -> Iterator[Worker]:
    """A worker of one's own."""
    with Worker(limit=_LIMIT, env=env) as worker:
        yield worker


@dataclass
class _Post:
    worker: Worker
    library: _Mark
    uses: int = 0


class Crew(AbstractContextManager["Crew"]):
    """Workers that stay: one without a library and one with, for each environment.

    Use it in a ``with`` statement, and each environment from one thread at a time.
    """

    def __init__(self, limit: float = _LIMIT) -> None:
        self._limit = limit
        self._posts: dict[tuple[bool, tuple[tuple[str, str], ...]], _Post] = {}

    @contextmanager
    def hire(self, library: Path | None, env: Mapping[str, str]) -> Iterator[Worker]:
        """The worker for a library and environment; its sessions are closed afterwards."""
        key, mark = (library is None, tuple(sorted(env.items()))), _mark(library)
        post = self._posts.get(key)
        if post is None or post.library != mark or not post.worker.alive:
            if post is not None:
                post.worker.stop()
            post = self._posts[key] = _Post(Worker(limit=self._limit, env=env), mark)
        post.uses += 1
        try:
            yield post.worker
        finally:
            if post.worker.alive:
                post.worker.clear()

    def dismiss(self, who: str) -> bool:
        """End workers that served more than once: ``all`` of them, the ``dead``, or none (``""``).

        What such a worker said of its last model may be the fault of one before.  True if there
        was one.
        """
        found = [
            key
            for key, post in self._posts.items()
            if who and post.uses > 1 and (who == "all" or not post.worker.alive)
        ]
        for key in found:
            self._posts.pop(key).worker.stop()
        return bool(found)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for post in self._posts.values():
            post.worker.stop()
        self._posts.clear()


def _mark(library: Path | None) -> _Mark:
    if library is None:
        return None
    found = library.stat()
    return found.st_dev, found.st_ino
