"""A MariaDB server of its own for a test, on loopback."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuning.postgres import free_port

__all__ = ["mariadb_url", "why_not"]

_TOOLS = ("mariadb-install-db", "mariadbd")
_PLACES = "/usr/sbin:/usr/bin:/usr/local/bin"
_PATIENCE = 120.0


def why_not() -> str:
    """Why no server can be started here; empty if one can."""
    if all(shutil.which(tool, path=_PLACES) for tool in _TOOLS):
        return ""
    return "MariaDB is not installed: apt-get install mariadb-server"


@contextmanager
def mariadb_url() -> Iterator[str]:
    """The URL of an empty database, gone afterwards."""
    install, server = (shutil.which(tool, path=_PLACES) for tool in _TOOLS)
    assert install and server
    with tempfile.TemporaryDirectory(prefix="mariadb-") as name:
        data, port, user = Path(name, "data"), free_port(), getpass.getuser()
        common = ["--no-defaults", f"--datadir={data}", f"--user={user}"]
        subprocess.run(
            [install, *common, "--auth-root-authentication-method=normal"],
            check=True, timeout=_PATIENCE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        process = subprocess.Popen(
            [server, *common, f"--port={port}", "--bind-address=127.0.0.1",
             f"--socket={name}/socket", f"--log-error={name}/log"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait(port, process)
            yield f"mysql://root@127.0.0.1:{port}/test"
        finally:
            process.kill()
            process.wait()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until the server takes connections."""
    end = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the MariaDB server did not start")
