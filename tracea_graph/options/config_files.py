"""Read and write files for ``--config``: long options, and schedule hints per pattern.

threads: [1, 2]
budget: 60
shape: [sequence=128]
patterns:
  - {match: "gemm 768x3072*", tile: {rows: 64}, stages: 2}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracea_graph.errors import UsageError

__all__ = ["CONFIG", "PATTERNS", "RUNTIME", "read_config", "save_config", "validate_hints"]

CONFIG, PATTERNS, RUNTIME = "config", "patterns", "runtime"
"""The option that names a file, and the keys of the hints and of a session's policy in it."""


def validate_hints(text: str) -> tuple[Mapping[str, Any], ...]:
    """Read and validate the hints of a file."""
    from tracea_graph.target import tile_setting_names
    from tracea_graph.tuning.schedule_hints import parse_hints

    patterns = read_config(Path(text)).get(PATTERNS) or []
    parse_hints(patterns, tile_setting_names())
    return tuple(patterns)


def read_config(path: Path) -> dict[str, Any]:
    """Read the settings and hints of a file.

    Raises UsageError if the file cannot be read or is not a mapping.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UsageError(f"--config {path} is not a text file") from None
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from None
    # ValueError is raised for invalid dates and numbers
    except (yaml.YAMLError, ValueError) as error:
        why = " ".join(str(error).split())
        raise UsageError(f"--config {path} is not valid YAML: {why}") from None
    except RecursionError:
        raise UsageError(f"--config {path} nests lists too deeply") from None
    if not isinstance(found, dict):
        raise UsageError(f"--config {path} does not map options to values")
    return {str(name): value for name, value in found.items()}


def save_config(path: Path, settings: Mapping[str, Any], patterns: Sequence[Any]) -> None:
    """Write a file that :func:`read_config` reads; empty settings are omitted."""
    import yaml

    said = {name: value for name, value in settings.items() if value not in (None, (), [], "")}
    text = yaml.safe_dump({**said, PATTERNS: list(patterns)}, sort_keys=False, width=98)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--save-config {path} cannot be written: {error.strerror}") from None
