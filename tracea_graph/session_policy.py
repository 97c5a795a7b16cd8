"""The policy of a session: the ``runtime`` mapping of a YAML file, beside options and hints.

runtime:
  threads: 2
  allocator: arena
  profile: runs.txt
  timeout: 5s
"""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any

from tracea_graph.errors import UsageError, did_you_mean
from tracea_graph.options import value_parsers
from tracea_graph.options.config_files import RUNTIME, read_config

__all__ = ["ALLOCATORS", "RuntimePolicy", "read_policy"]

ALLOCATORS = ("arena", "plain", "guard")
"""ONNX Runtime's arena, malloc for each run, or guard pages and canaries (``TRACEA_DEBUG``)."""
_LOCK = Lock()


@dataclass(frozen=True)
class RuntimePolicy:
    """How the programs of a model run; None keeps the setting of the process.

    * ``threads``: number of threads for each node.
    * ``allocator``: one of :data:`ALLOCATORS`.
    * ``profile``: file to which a record of every run is appended.
    * ``timeout``: seconds after which a run ends with an error.
    """

    threads: int | None = None
    allocator: str | None = None
    profile: Path | None = None
    timeout: float | None = None

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the environment variables that a library reads when it is registered."""
        found = {
            "TRACEA_PROFILE": None if self.profile is None else str(self.profile),
            "TRACEA_TIMEOUT": None if self.timeout is None else str(self.timeout),
            "TRACEA_DEBUG": "guard" if self.allocator == "guard" else None,
        }
        return {name: value for name, value in found.items() if value is not None}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the variables are set; register the library inside it."""
        with _LOCK:
            before = {name: os.environ.get(name) for name in self.variables}
            os.environ.update(self.variables)
            try:
                yield
            finally:
                for name, value in before.items():
                    if value is None:
                        del os.environ[name]
                    else:
                        os.environ[name] = value


def read_policy(path: Path) -> RuntimePolicy:
    """Read the policy of a file; a relative ``profile`` is relative to the file's folder.

    Raises UsageError if the file cannot be read, or for an unknown setting or an invalid value.
    """
    found = read_config(path).get(RUNTIME) or {}
    if not isinstance(found, dict):
        raise UsageError(f"{path}: {RUNTIME} is not a mapping")
    known = [one.name for one in fields(RuntimePolicy)]
    for name in found:
        if name not in known:
            which = did_you_mean(str(name), known) or f"; there are {', '.join(known)}"
            raise UsageError(f"{path}: {RUNTIME} has no setting {name!r}{which}")
    try:
        return RuntimePolicy(**{name: _value(name, found[name], path.parent) for name in found})
    except (ValueError, ArgumentTypeError) as error:
        raise UsageError(f"{path}: {RUNTIME}: {error}") from None


def _value(name: str, value: Any, folder: Path) -> Any:
    if name == "threads":
        return value_parsers.parse_count(str(value))
    if name == "timeout":
        seconds = value_parsers.parse_seconds(str(value))
        if seconds <= 0:
            raise ValueError("timeout must be above 0")
        return seconds
    if name == "profile":
        return folder / str(value)
    if value not in ALLOCATORS:
        raise ValueError(f"allocator must be {' or '.join(ALLOCATORS)}, not {value!r}")
    return value
