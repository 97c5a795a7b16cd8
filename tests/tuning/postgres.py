"""A PostgreSQL server of its own for a test, on loopback."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tuning.servers import PATIENCE, PORTS, free_port

__all__ = ["postgres_url", "why_not"]

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
                [program, *args], user=user, cwd=folder, check=True, timeout=PATIENCE,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip

        def start() -> int:
            """At which port; ``pg_ctl`` fails at once where that is taken."""
            for left in reversed(range(PORTS)):
                port = free_port()
                settings = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -k {folder}"
                words = ("-o", settings, "-l", str(folder / "log"), "-w", "-t", f"{PATIENCE:.0f}")
                try:
                    run("pg_ctl", "-D", data, *words, "start")
                    break
                except subprocess.CalledProcessError:
                    if not left:
                        raise
            return port

        data = str(folder / "data")
        run("initdb", "-D", data, "-U", "tuner", "-A", "trust", "--no-sync")
        port = start()
        try:
            yield f"postgresql://tuner@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "-t", "600", "stop")
