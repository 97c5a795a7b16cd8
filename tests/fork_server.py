"""Load NumPy and ONNX Runtime, then run a script in a fork for each request.

Arguments: a socket of ``SOCK_SEQPACKET``, and the script.  A request is JSON with ``argv``,
``env`` and ``cwd``, and four descriptors: stdin, stdout, stderr, and a pipe that the fork's pid is
written to and then its return code as ``subprocess`` has it, each in 8 bytes.
"""

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import types
from pathlib import Path
from typing import Any

import numpy  # noqa: F401
import onnxruntime  # noqa: F401

PR_SET_PDEATHSIG = 1


def word(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def next_request(server: socket.socket) -> dict[str, Any]:
    """Return in a fork that is to serve a request; the server itself ends with its parent."""
    libc = ctypes.CDLL(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    while True:
        data, fds, _, _ = socket.recv_fds(server, 1 << 20, 4)
        if not data:
            os._exit(0)
        if (one := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            server.close()
            if (pid := os.fork()) == 0:
                return begin(json.loads(data), fds)
            for fd in fds[:3]:
                os.close(fd)
            _, status = os.waitpid(pid, 0)
            os.write(fds[3], word(os.waitstatus_to_exitcode(status)))
            os._exit(0)
        assert one > 0
        for fd in fds:
            os.close(fd)


def begin(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Make this process what a new one would be."""
    os.setsid()
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.write(fds[3], word(os.getpid()))
    for fd in fds:
        os.close(fd)
    return request


if __name__ == "__main__":
    script = Path(sys.argv[2])
    code = compile(script.read_bytes(), str(script), "exec")
    sys.path.append(str(script.parent))
    for name in ("instrumented_models", "worker_arrays"):
        importlib.import_module(name)
    sys.argv = next_request(socket.socket(fileno=int(sys.argv[1])))["argv"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = str(script)
    exec(code, vars(main))
