"""Make SIGTERM and SIGHUP end a command like Ctrl-C: child processes end, partial files go."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupt_exit_code", "interrupt_on_signals"]

_INTERRUPTED = 130
_SIGNALS = tuple(getattr(signal, n) for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n))


class _Stopped(KeyboardInterrupt):
    """Raised by a signal that asks the command to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Context in which SIGTERM and SIGHUP raise a KeyboardInterrupt.

    Only the first signal does so: a second one would interrupt the cleanup.  A signal that is
    ignored (``nohup``) or already has a handler keeps its behavior.  Outside the main thread the
    context does nothing.
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


def interrupt_exit_code(error: KeyboardInterrupt) -> int:
    """Return the exit code of an interrupted command: 128 plus the signal number."""
    return 128 + error.number if isinstance(error, _Stopped) else _INTERRUPTED


def _stop(number: int, frame: FrameType | None) -> None:
    for known in _SIGNALS:
        if signal.getsignal(known) is _stop:
            signal.signal(known, _pass)
    raise _Stopped(number)


def _pass(number: int, frame: FrameType | None) -> None:
    """Ignore a signal; unlike SIG_IGN, child processes do not inherit this handler."""
