"""``--config FILE.yaml``: every long option, and hints per pattern, from a file.

    threads: [1, 2]
    budget: 60
    shape: [sequence=128]
    patterns:
      - {match: "gemm 768x3072*", tile: {rows: 64}, stages: 2}

Options on the command line win over the file's; of those that may be repeated both count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tracea_graph.errors import UsageError
from tracea_graph.tuning.hints import hints_from

__all__ = ["add_config", "save_config", "with_config"]

_OPTION, _PATTERNS = "--config", "patterns"
_NO_SETTINGS = ("config", "save-config", "help")


def add_config(add: Callable[..., Any]) -> None:
    """Add ``--config`` by a parser's or group's ``add_argument``."""
    add(
        _OPTION, type=_patterns_of, default=(), dest="patterns", metavar="FILE.yaml",
        help="read long options, and hints per pattern, from a file",
    )  # fmt: skip


def with_config(words: Sequence[str]) -> list[str]:
    """A command line with its config file's options before its own.

    Raises UsageError for a file that cannot be read or is no mapping.
    """
    path = _path_of(words)
    if path is None:
        return list(words)
    options: list[str] = []
    for name, value in _read(path).items():
        if name != _PATTERNS:
            options += _words(name, value, path)
    at = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return [*words[:at], *options, *words[at:]]


def save_config(path: Path, settings: Mapping[str, Any], patterns: Sequence[Any]) -> None:
    """Write a file that ``--config`` reads; settings that say nothing are left out."""
    said = {name: value for name, value in settings.items() if value not in (None, (), [], "")}
    text = yaml.safe_dump({**said, _PATTERNS: list(patterns)}, sort_keys=False, width=98)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--save-config {path} cannot be written: {error.strerror}") from None


def _path_of(words: Sequence[str]) -> Path | None:
    for i, word in enumerate(words):
        if word == _OPTION and i + 1 < len(words):
            return Path(words[i + 1])
        if word.startswith(f"{_OPTION}="):
            return Path(word.partition("=")[2])
    return None


def _patterns_of(text: str) -> tuple[Mapping[str, Any], ...]:
    """A file's hints, checked."""
    patterns = _read(Path(text)).get(_PATTERNS) or []
    hints_from(patterns)
    return tuple(patterns)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UsageError(f"--config {path} is no text") from None
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # the latter for dates and numbers
        raise UsageError(f"--config {path} is no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UsageError(f"--config {path} has more lists inside lists than can be read") from None
    if not isinstance(found, dict):
        raise UsageError(f"--config {path} is no mapping of options to values")
    return {str(name): value for name, value in found.items()}


def _words(name: str, value: Any, path: Path) -> list[str]:
    """One setting as it stands on a command line."""
    if name in _NO_SETTINGS:
        raise UsageError(f"--config {path} cannot have {name!r}")
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    if name == "threads" and isinstance(value, list):
        value = ",".join(map(str, value))
    try:
        values = value if isinstance(value, list) else [value]
        return [f"--{name}={_text(one)}" for one in values]
    except ValueError as error:
        raise UsageError(f"--config {path} has no such value for {name!r}: {error}") from None


def _text(value: Any) -> str:
    """Raises ValueError for what no option can be.

    Lists inside lists are not written out: a few aliases in a file make millions of values.
    """
    if isinstance(value, dict):  # sizes: {batch: 1, sequence: 128}
        return ",".join(f"{_plain(name)}={_plain(size)}" for name, size in value.items())
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, list | dict | set | tuple):
        raise ValueError("it holds lists or mappings")
    text = str(value)
    if "\0" in text:
        raise ValueError("it holds a NUL")
    return text
