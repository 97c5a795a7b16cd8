"""``--config FILE.yaml``: convert the settings of a file to command-line words.

Options on the command line override those of the file; repeatable options accumulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracea_graph.errors import UsageError
from tracea_graph.options import ALONE, OPTIONS
from tracea_graph.options.config_files import CONFIG, PATTERNS, RUNTIME, read_config

__all__ = ["insert_config_options"]

_RECORDS = {one.name: one for one in (*OPTIONS.values(), *ALONE.values())}
_NO_SETTINGS = {"help", "save-config", *(n for n, one in _RECORDS.items() if not one.in_file)}


def insert_config_options(words: Sequence[str]) -> list[str]:
    """Insert the options of a command line's config file before its own options.

    Raises UsageError if the file cannot be read or is not a mapping.
    """
    path = _path_of(words)
    if path is None:
        return list(words)
    options: list[str] = []
    for name, value in read_config(path).items():
        if name not in (PATTERNS, RUNTIME):
            options += _words(name, value, path)
    at = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return [*words[:at], *options, *words[at:]]


def _path_of(words: Sequence[str]) -> Path | None:
    flag = f"--{CONFIG}"
    for i, word in enumerate(words):
        if word == flag and i + 1 < len(words):
            return Path(words[i + 1])
        if word.startswith(f"{flag}="):
            return Path(word.partition("=")[2])
    return None


def _words(name: str, value: Any, path: Path) -> list[str]:
    """Convert one setting to command-line words."""
    if name in _NO_SETTINGS:
        raise UsageError(f"--config {path}: {name!r} is not allowed in a file")
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    one = _RECORDS.get(name)
    if one and one.join and isinstance(value, list):
        value = one.join.join(map(str, value))
    try:
        values = value if isinstance(value, list) else [value]
        return [f"--{name}={_text(one)}" for one in values]
    except ValueError as error:
        raise UsageError(f"--config {path}: invalid value for {name!r}: {error}") from None


def _text(value: Any) -> str:
    """Convert a value to text.  Raises ValueError for a value that no option accepts.

    Nested lists are rejected: a few YAML aliases would expand to millions of values.
    """
    if isinstance(value, dict):  # for example, sizes: {batch: 1, sequence: 128}
        return ",".join(f"{_plain(name)}={_plain(size)}" for name, size in value.items())
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, list | dict | set | tuple):
        raise ValueError("it holds lists or mappings")
    text = str(value)
    if "\0" in text:
        raise ValueError("it holds a NUL character")
    return text
