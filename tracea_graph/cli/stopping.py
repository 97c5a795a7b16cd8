"""SIGTERM and SIGHUP end a command as Ctrl-C does: what it started ends, what it began is gone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["code_of", "stoppable"]

_INTERRUPTED = 130
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _Stopped(KeyboardInterrupt):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """While it lasts, SIGTERM and SIGHUP raise what Ctrl-C raises.

    Once: a second one would interrupt the cleaning up.  Signals that are ignored (``nohup``) or
    have a handler already are left alone, and so is everything outside of the main thread.
    """
    installed = []
    if threading.current_thread() is threading.main_thread():
        installed = [s for s in _SIGNALS if signal.getsignal(s) is signal.SIG_DFL]
    for number in installed:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in installed:
            signal.signal(number, signal.SIG_DFL)


def code_of(error: KeyboardInterrupt) -> int:
    """The exit code of a command that was interrupted: 128 and the signal's number."""
    return 128 + error.number if isinstance(error, _Stopped) else _INTERRUPTED


def _stop(number: int, frame: FrameType | None) -> None:
    for known in _SIGNALS:
        if signal.getsignal(known) is _stop:
            signal.signal(known, _pass)
    raise _Stopped(number)


def _pass(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which a process that is started now would keep."""
