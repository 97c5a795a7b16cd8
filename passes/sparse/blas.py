"""How many threads NumPy's linear algebra takes.

A factorisation of a few hundred rows is over in a millisecond on one thread.  OpenBLAS shares it
among all processors, each spinning for the others: where one of these is busy, with what is being
timed or with another process, that takes a hundred times as long, and disturbs it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["one_thread"]

_NAMES = tuple(
    (f"{prefix}openblas_get_num_threads{suffix}", f"{prefix}openblas_set_num_threads{suffix}")
    for prefix in ("scipy_", "")
    for suffix in ("64_", "_64", "")
)
"""As the builds of OpenBLAS in NumPy's wheels and in distributions spell them."""


@contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's factorisations and products take one thread; with another BLAS than OpenBLAS, what
    they always do."""
    found = _threads()
    if found is None:
        yield
        return
    get, put = found
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@cache
def _threads() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Functions that say and change how many threads OpenBLAS takes."""
    for path in _libraries():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for get, put in _NAMES:
            if hasattr(library, get) and hasattr(library, put):
                return getattr(library, get), getattr(library, put)
    return None


def _libraries() -> Iterator[str]:
    """The OpenBLAS this process has loaded with NumPy."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    yield from sorted({line.split()[-1] for line in lines if "openblas" in line})
