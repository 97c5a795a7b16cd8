"""Open input files, refusing anything that is not a regular file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

__all__ = ["open_regular"]


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading.

    Raises OSError, with ``strerror``, if it cannot be opened or is something else: opening a pipe
    would block until a writer comes, and a device may never end.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
