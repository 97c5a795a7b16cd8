"""Consoles: output wraps to the width of a terminal, and is not wrapped in files and pipes."""

from __future__ import annotations

from typing import Any

from rich.console import Console

__all__ = ["made_console"]

_NARROWEST, _UNLIMITED = 60, 100_000


class _Console(Console):
    """Console that lets ``main`` handle a broken pipe."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print; in files and pipes, lines end where their text ends."""
        if self.is_terminal or self.quiet:
            super().print(*objects, **settings)
            return
        with self.capture() as capture:
            super().print(*objects, **settings)
        self.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def made_console(stderr: bool = False, quiet: bool = False) -> Console:
    """Create a console that wraps lines to a terminal's width, but not in files and pipes."""
    console = _Console(stderr=stderr, quiet=quiet, highlight=False)
    narrow = console.is_terminal and max(console.width, _NARROWEST)
    console.width = narrow or _UNLIMITED
    return console
