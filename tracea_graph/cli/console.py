"""Where commands print: a terminal, however narrow, or a file with one line for each of theirs."""

from __future__ import annotations

from typing import Any

from rich.console import Console

__all__ = ["made_console"]

_NARROWEST, _UNLIMITED = 60, 100_000


class _Console(Console):
    """Leaves a broken pipe to ``main``."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print(self, *objects: Any, **settings: Any) -> None:
        """For a file or a program lines end where their text does."""
        if self.is_terminal or self.quiet:
            super().print(*objects, **settings)
            return
        with self.capture() as capture:
            super().print(*objects, **settings)
        self.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def made_console(stderr: bool = False, quiet: bool = False) -> Console:
    """Lines fit a terminal, however narrow, and are never wrapped for a file or a program."""
    console = _Console(stderr=stderr, quiet=quiet, highlight=False)
    narrow = console.is_terminal and max(console.width, _NARROWEST)
    console.width = narrow or _UNLIMITED
    return console
