"""A MariaDB server of its own for a test, on loopback."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tuning.servers import PATIENCE, serving

__all__ = ["mariadb_url", "why_not"]

_TOOLS = ("mariadb-install-db", "mariadbd")
_PLACES = "/usr/sbin:/usr/bin:/usr/local/bin"


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
        data, user = Path(name, "data"), getpass.getuser()
        common = ["--no-defaults", f"--datadir={data}", f"--user={user}"]
        subprocess.run(
            [install, *common, "--auth-root-authentication-method=normal"],
            check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

        def start(port: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [server, *common, f"--port={port}", "--bind-address=127.0.0.1",
                 f"--socket={name}/socket", f"--log-error={name}/log"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

        with serving(start) as port:
            yield f"mysql://root@127.0.0.1:{port}/test"
