"""Decision cache: reuse what an earlier run decided if nothing it depends on has changed.

A decision is a plan lock in ``CACHE/decisions``.  Its key is a digest of the model's files, the
relevant options, the machine, the compiler, ONNX Runtime, and this package's version and sources.
A run with an equal key applies the lock: it tunes and times nothing, but builds and verifies the
result again.  Better schedules found since, or a result that is now wrong, invalidate the entry.
Only results that were measured faster are cached: a model that was kept unchanged is evaluated
again every time.  Decisions that were made while other processes kept a core busy are reused only
while that is still so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from tracea_graph import version
from tracea_graph.check.timing_statistics import other_processes_busy
from tracea_graph.errors import BuildError, OutdatedDecisionsError, UsageError, VerifyError
from tracea_graph.json_documents import to_json_data
from tracea_graph.onnx_io import DataFile
from tracea_graph.options import OPTIONS, Options
from tracea_graph.pipeline.plan_lock import PlanLock, parse_lock
from tracea_graph.target import Target
from tracea_graph.toolchain.cache_trust import is_trusted, make_private, read_private
from tracea_graph.toolchain.object_cache import sha256_of_parts, write_atomically
from tracea_graph.tuning.cache_key import machine_facts
from tracea_graph.views import Report, TimingRow, WeightRow

__all__ = ["FOLDER", "DecisionCache"]

_log = logging.getLogger(__name__)
FOLDER = "decisions"
_MOST = 200
"""Maximum number of cached decisions; the oldest are removed first."""
_PLACES = frozenset(keyword for keyword, one in OPTIONS.items() if one.place)
"""Options that change where files go, not what they contain."""
_SOURCES = ("*.py", "*.h", "*.cpp", "*.in")


@dataclasses.dataclass(frozen=True)
class DecisionCache:
    """The cache entry of one run's decisions; ``path`` is None if nothing is to be cached."""

    path: Path | None = None

    @classmethod
    def of(cls, files: Sequence[Path], options: Options, target: Target) -> DecisionCache:
        """Return the entry for a model.

        Nothing is cached for compressed models, for plans read from a file, or if decisions depend
        on the user's own data or metric.
        """
        own = options.data or options.holdout or options.metric or options.compresses
        if own or options.lock or options.keep != "faster" or not options.verify:
            return cls()
        try:
            facts = machine_facts(target.backend.fingerprint(), options.environment)
        except BuildError:
            return cls()
        settings = {k: v for k, v in dataclasses.asdict(options).items() if k not in _PLACES}
        settings["threads"] = options.thread_counts
        about = json.dumps(
            [settings, facts, list(target.every_level), _sources()], sort_keys=True, default=str
        )
        key = sha256_of_parts(about, *map(_content, files))
        return cls(options.environment.cache / FOLDER / f"{key}.json")

    def load(self) -> PlanLock | None:
        """Return the cached decisions as a lock with its date; None if there are none."""
        if self.path is None:
            return None
        try:
            found = json.loads(read_private(self.path, self.path.parent) or b"null")
            if found["busy"] and not other_processes_busy():
                raise ValueError("they were made on a busy machine, and it is quiet now")
            made = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(found["made"])))
            provenance = f"decided on {made} ({found['gain']}), verified again now"
            lock = parse_lock(found["lock"], str(self.path))
            weight_analysis = tuple(WeightRow(**row) for row in found["weight_analysis"])
            timings = tuple(TimingRow(**row) for row in found["timings"])
            library = str(found["library"])
            return dataclasses.replace(
                lock, provenance=provenance, library=library, data=_data_of(found["data"]),
                weight_analysis=weight_analysis, timings=timings, made=made,
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, UsageError) as error:
            _log.debug("no cached decisions in %s: %s", self.path, error)
            return None

    def store(
        self, lock: PlanLock, report: Report, library: str, data: DataFile | None, busy: bool
    ) -> None:
        """Store decisions with the SHA-256 of the library and of the data file.

        ``busy`` says that other processes kept a core busy while the decisions were made.  If the
        folder cannot be written, a message is logged, and the next run decides again.
        """
        if self.path is None:
            return
        found = {
            "made": time.time(), "busy": busy, "gain": report.gain, "library": library,
            "lock": to_json_data(lock.content),
            "data": data and {"sha256": data.sha256, "places": dict(data.places)},
            "weight_analysis": to_json_data(report.weight_analysis),
            "timings": [dataclasses.asdict(row) for row in report.timings],
        }  # fmt: skip
        try:
            make_private(self.path.parent)
            if not is_trusted(self.path.parent, self.path.parent):
                return
            write_atomically(self.path, json.dumps(found, default=str).encode(), 0o600)
            for old in _by_age(self.path.parent.glob("*.json"))[_MOST:]:
                old.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("decisions were not cached: %s", error)

    @contextmanager
    def invalidating(self, lock: PlanLock | None) -> Iterator[None]:
        """Remove the entry if applying it fails inside the block.

        Raises OutdatedError then; without cached decisions, errors pass through unchanged.
        """
        try:
            yield
        except (UsageError, VerifyError) as error:
            if lock is None or not lock.cached:
                raise
            self.invalidate()
            raise OutdatedDecisionsError(str(error)) from error

    def invalidate(self) -> None:
        """Remove the entry because its decisions are no longer valid."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


def _data_of(found: Mapping[str, Any] | None) -> DataFile | None:
    """Return the recorded data file; the caller supplies its folder."""
    if found is None:
        return None
    places = {str(name): (int(at), int(size)) for name, (at, size) in found["places"].items()}
    return DataFile(Path(), str(found["sha256"]), places)


def _by_age(paths: Iterable[Path]) -> list[Path]:
    """Return paths, newest first."""
    return sorted(paths, key=lambda path: -path.stat().st_mtime)


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _sources() -> str:
    """Digest of this package's sources, so that editing a rule invalidates cached decisions."""
    root = Path(version.__file__).parent
    found = (
        Path(folder) / name
        for folder, _, names in os.walk(root, followlinks=True)
        for name in names
        if any(Path(name).match(glob) for glob in _SOURCES)
    )
    return sha256_of_parts(*(path.read_bytes() for path in sorted(found)))
