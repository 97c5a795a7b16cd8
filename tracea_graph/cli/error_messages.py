"""Report a failure as one line on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from tracea_graph.errors import BuildError, TraceaError, UsageError

__all__ = ["INTERNAL", "discard_stdout", "print_error", "report_failure"]

INTERNAL = 1
"""Exit code of a bug, and of too little memory."""
_LONGEST = 6000
"""Maximum length of a message in characters: room for two paths and a sentence."""


def report_failure(error: Exception, verbose: int, model: Path | None = None) -> int:
    """Print an error and return its exit code.

    ``model`` is printed before the error; pass it if the command has several models.
    """
    about = f"error: {model}: " if model else "error: "
    if isinstance(error, TraceaError):
        print_error(f"{about}{error}")
        if verbose and isinstance(error, BuildError) and error.command:
            sys.stderr.write(f"{error.command}\n{error.stderr}\n")
        return error.exit_code
    if isinstance(error, MemoryError):
        print_error(f"{about}there is not enough memory for this model")
        return INTERNAL
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        discard_stdout()
        place = f"{error.filename}" if error.filename else "the output"
        print_error(f"{about}{place} cannot be written: {error.strerror}")
        return UsageError.exit_code
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        print_error(f"{about}too many files are open; allow more with 'ulimit -n 1024'")
        return UsageError.exit_code
    if verbose:
        traceback.print_exception(error)
    print_error(f"{about}{type(error).__name__}: {error} (a bug; -v shows where)")
    return INTERNAL


def discard_stdout() -> None:
    """Abandon stdout, so that unwritten output is not flushed again when the process ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(sentence: str) -> None:
    """Print a message as one line on stderr, shortened if it is very long."""
    line = " ".join(sentence.split())
    shown = line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
    with suppress(OSError):  # the exit code still reports the failure
        sys.stderr.write((shown if shown.isprintable() else _printable(shown)) + "\n")


def _printable(text: str) -> str:
    from tracea_graph.views import plain_text  # imported here because it loads all views

    return plain_text(text)
