"""Custom-op libraries that models need beside ours; every session registers them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tracea_graph.errors import UsageError

__all__ = ["libraries_to_register", "use_custom_op_libraries"]

_active: list[Path] = []
"""Libraries of all blocks that are open in any thread.  A session may register more libraries
than it needs.
"""


@contextmanager
def use_custom_op_libraries(libraries: Iterable[Path]) -> Iterator[None]:
    """Register these libraries in every session that is opened in the block.

    Raises UsageError for a file that does not exist.
    """
    found = [Path(library).resolve() for library in libraries]
    for library in found:
        if not library.is_file():
            raise UsageError(f"--custom-ops-library {library} does not exist")
    _active.extend(found)
    try:
        yield
    finally:
        for library in found:
            _active.remove(library)


def libraries_to_register() -> list[Path]:
    """Return the libraries that sessions must register now, each once."""
    return list(dict.fromkeys(_active))
