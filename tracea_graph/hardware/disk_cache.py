"""On-disk cache of small values that are expensive to compute: one JSON file each, with a key.

A file that cannot be read, that another user may have written, or that has another key, counts as
absent.  If the folder cannot be written, values are recomputed.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from tracea_graph.toolchain.cache_trust import is_trusted, make_private, read_private
from tracea_graph.toolchain.object_cache import sha256_of_parts, write_atomically

__all__ = ["cache_key", "file_version", "load_cached", "store_cached"]


def cache_key(*parts: Any) -> str:
    """Return a digest of JSON-ready parts, for use as a cache key."""
    return sha256_of_parts(json.dumps(parts, sort_keys=True))[:32]


def file_version(path: str | Path | None) -> list[Any]:
    """Return a file's real path, size and time, which identify its version; empty if absent."""
    if not path:
        return []
    try:
        real = Path(path).resolve()
        facts = real.stat()
    except OSError:
        return []
    return [str(real), facts.st_size, facts.st_mtime_ns]


def load_cached(folder: Path, name: str, key: str) -> Any | None:
    """Return the value stored under a name and a key; None if there is no readable one."""
    try:
        entry = json.loads(read_private(folder / f"{name}-{key}.json", folder) or b"null")
    except (OSError, ValueError):
        return None
    return entry.get("value") if isinstance(entry, dict) and entry.get("key") == key else None


def store_cached(folder: Path, name: str, key: str, value: Any) -> None:
    """Store a JSON-ready value atomically."""
    data = json.dumps({"key": key, "value": value}, indent=1).encode()
    with contextlib.suppress(OSError):  # recomputed next time
        make_private(folder)
        if is_trusted(folder, folder):
            write_atomically(folder / f"{name}-{key}.json", data, mode=0o600)
