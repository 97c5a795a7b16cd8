"""A PostgreSQL server of its own for a test, on loopback."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["free_port", "postgres_url", "why_not"]

_DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _tool(name: str) -> str | None:
    """Debian keeps the server's programs out of the path."""
    return shutil.which(name, path=os.pathsep.join(map(str, _DEBIAN))) or shutil.which(name)


def _user() -> str | None:
    """Whom the server runs as: it refuses to run as root."""
    if os.getuid() != 0:
        return None
    return "postgres"


def why_not() -> str:
    """Why no server can be started here; empty if one can."""
    if not (_tool("initdb") and _tool("pg_ctl")):
        return "PostgreSQL is not installed: apt-get install postgresql"
    if (user := _user()) is not None:
        try:
            pwd.getpwnam(user)
        except KeyError:
            return f"PostgreSQL does not run as root, and there is no user {user}"
    return ""


@contextmanager
def postgres_url() -> Iterator[str]:
    """The URL of an empty database, gone afterwards."""
    user = _user()
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        folder = Path(name)
        if user is not None:
            shutil.chown(folder, user)

        def run(tool: str, *args: str) -> None:
            program = _tool(tool)
            assert program is not None
            subprocess.run(
                [program, *args], user=user, cwd=folder, check=True, timeout=120,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip

        port, data = free_port(), str(folder / "data")
        run("initdb", "-D", data, "-U", "tuner", "-A", "trust", "--no-sync")
        settings = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -k {folder}"
        run("pg_ctl", "-D", data, "-o", settings, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql://tuner@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
