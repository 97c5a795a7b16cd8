"""Add flags to parsers, and convert parsed flags to Options, both from the option records."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tracea_graph.options import ALONE, OPTIONS, Options

__all__ = ["OPTIMIZE", "add_flags", "options_from_flags"]

OPTIMIZE = "optimize"
"""The command that takes every option."""
_ALL = MappingProxyType({**OPTIONS, **ALONE})

Groups = Mapping[str, Any]


def add_flags(parser: argparse.ArgumentParser, command: str) -> Groups:
    """Add the flags of a command to its parser.

    Returns the argument groups by title, so that callers can add more arguments to them.
    """
    groups: dict[str, Any] = {"": parser}
    for keyword, one in _ALL.items():
        use = one.also.get(command)
        if use is None and command != OPTIMIZE:
            continue
        title = one.group if use is None else use.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        one.add(groups[title].add_argument, keyword, command)
    return groups


def options_from_flags(args: argparse.Namespace, **others: Any) -> Options:
    """Convert parsed arguments to Options; ``others`` take precedence.

    Raises UsageError for invalid values.
    """
    given = {
        keyword: one.value(getattr(args, keyword))
        for keyword, one in OPTIONS.items()
        if hasattr(args, keyword)
    }
    return Options(**{**given, **others})
