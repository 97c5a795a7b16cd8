"""Consoles: output wraps to the width of a terminal; in files and pipes only tables wrap."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich.console import Console

__all__ = ["make_console", "print_written_files"]

_NARROWEST, _UNLIMITED = 60, 100_000
_PIPED = 80
"""Width of tables in files and pipes, unless ``COLUMNS`` gives another width."""


class _Console(Console):
    """Console that lets ``main`` handle a broken pipe.

    Tables are at most ``table_width`` wide.
    """

    table_width: int

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print objects; in files and pipes, without spaces at the ends of lines."""
        if self.is_terminal or self.quiet:
            super().print(*objects, **settings)
            return
        with self.capture() as capture:
            super().print(*objects, **settings)
        self.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def make_console(stderr: bool = False, quiet: bool = False) -> Console:
    """Create a console for the command's output.

    On a terminal, all text wraps to the terminal's width.  In files and pipes only tables wrap.
    """
    console = _Console(stderr=stderr, quiet=quiet, highlight=False)
    given = os.environ.get("COLUMNS", "")
    piped = int(given) if given.isdecimal() else _PIPED
    width = console.width if console.is_terminal else piped
    console.table_width = max(width, _NARROWEST)
    console.width = console.table_width if console.is_terminal else _UNLIMITED
    return console


def print_written_files(console: Console, *paths: Path) -> None:
    """Print a line for each file that was written."""
    for path in paths:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
