"""Workers as forks of a process that has loaded NumPy and ONNX Runtime.

To start Python and load both takes a fifth of a second, more than most tests ask of a worker, and
the suite starts thousands.  A fork server does it once for each process of a test run.  Its
children run ``worker_main.py`` as it is, each in a session of its own as always; an environment
that comes again gets a server too.  Linux alone has this; elsewhere workers are started.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tracea_graph.check import worker_process
from tracea_graph.check.worker_process import Worker

__all__ = ["FORKING", "fork_workers"]

_SERVER = Path(__file__).with_name("fork_server.py")
_OURS = ("TRACEA_", "PYTEST_CURRENT_TEST", "CXX")
"""Beginnings of the names of variables that a worker does not read when it starts."""


_SERVERS = 4
"""Environments that have a fork server in one process of a test run."""
_servers: dict[frozenset[tuple[str, str]], socket.socket] = {}
_met: set[frozenset[tuple[str, str]]] = set()
_lock = threading.Lock()


def fork_workers() -> None:
    """Let every :class:`Worker` of this process be forked where that makes no difference."""
    if sys.platform == "linux":
        _met.add(_read_at_start(os.environ))
        worker_process.subprocess = FORKING  # type: ignore[assignment]


def _popen(command: list[str], *, stderr: Any, env: Mapping[str, str], **named: Any) -> Any:
    if command[:-1] == [sys.executable, "-P", str(Worker.script)] and (server := _server(env)):
        return _ForkedProcess(server, command, stderr.fileno(), env)
    return subprocess.Popen(command, stderr=stderr, env=env, **named)


def _read_at_start(env: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in env.items() if not item[0].startswith(_OURS))


def _server(env: Mapping[str, str]) -> socket.socket | None:
    """The socket of an environment's fork server; None for one that is asked for once."""
    kept = _read_at_start(env)
    with _lock:
        if kept not in _servers and kept in _met and len(_servers) < _SERVERS:
            _servers[kept] = _start(dict(kept))
        _met.add(kept)
        return _servers.get(kept)


def _start(env: dict[str, str]) -> socket.socket:
    """The socket of a new fork server, which ends when this process does."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    atexit.register(ours.close)
    with its:
        command = [sys.executable, "-P", str(_SERVER), str(its.fileno()), str(Worker.script)]
        # a fork lacks the thread, and would share the database, of ONNX Runtime's telemetry
        env |= {"ORT_DISABLE_TELEMETRY": "1"}
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=env, pass_fds=[its.fileno()], cwd="/"
        )
    return ours


class _ForkedProcess:
    """What a worker asks of ``subprocess.Popen``; the process is a grandchild of the server.

    Its pid and, when it has ended, its return code come through a pipe.
    """

    def __init__(
        self, server: socket.socket, command: list[str], stderr: int, env: Mapping[str, str]
    ) -> None:
        given, stdin = os.pipe()
        stdout, taken = os.pipe()
        self._status, told = os.pipe()
        request = json.dumps({"argv": command[2:], "env": dict(env), "cwd": os.getcwd()})
        fds = (given, taken, stderr, told)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        server.sendmsg([request.encode()], [rights])
        for fd in (given, taken, told):
            os.close(fd)
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb", buffering=0)
        self.returncode: int | None = None
        self.pid = self._told()

    def _told(self) -> int:
        word = os.read(self._status, 8)
        assert len(word) == 8, "the fork server ended"
        return int.from_bytes(word, "little", signed=True)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            self.returncode = self._told()
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


FORKING = SimpleNamespace(Popen=_popen, PIPE=subprocess.PIPE)
"""What :class:`Worker` uses instead of ``subprocess``."""
