"""Servers that a test starts for itself, at ports of their own on loopback."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["PATIENCE", "PORTS", "free_port", "serving"]

PATIENCE = 1200.0
"""Seconds a server may take to start, for a busy machine is no failure."""
PORTS = 5
"""So many ports are tried: between being found free and being used one may go to another."""


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(start: Callable[[int], subprocess.Popen[bytes]]) -> Iterator[int]:
    """The port of a server, once it takes connections; it is killed afterwards.

    ``start`` starts it at a port; one that ends at once found the port taken.
    """
    for _ in range(PORTS):
        port = free_port()
        process = start(port)
        try:
            if _answers(port, process):
                yield port
                return
        finally:
            process.kill()
            process.wait()
    raise AssertionError(f"the server ended {PORTS} times, with code {process.returncode}")


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a server takes connections; False if it ends before."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.1)
        else:
            return process.poll() is None
    return False
