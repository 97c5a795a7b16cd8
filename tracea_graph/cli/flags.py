"""The flags of a command and the options they make: both follow from records."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tracea_graph.options import ALONE, OPTIONS, Options

__all__ = ["OPTIMIZE", "add_flags", "made_options"]

OPTIMIZE = "optimize"
"""The command that takes every option."""
_ALL = MappingProxyType({**OPTIONS, **ALONE})

Groups = Mapping[str, Any]


def add_flags(parser: argparse.ArgumentParser, command: str) -> Groups:
    """Add the flags a command takes; the groups they stand in, by title, for further ones."""
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


def made_options(args: argparse.Namespace, **others: Any) -> Options:
    """Options of what a command line said; ``others`` win.  Raises UsageError for values that
    make no sense."""
    given = {
        keyword: one.value(getattr(args, keyword))
        for keyword, one in OPTIONS.items()
        if hasattr(args, keyword)
    }
    return Options(**{**given, **others})
