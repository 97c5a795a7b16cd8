"""C++ headers shared by all runtimes, and the C and C++ headers for programs that call kernels.

Backends include them, like their own headers, as ``runtime/<name>.h``.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = [
    "PUBLIC_HEADERS",
    "RUNTIME_HEADER",
    "RUNTIME_SOURCE",
    "abi_version",
    "header",
    "public_header",
]

_SHARED = Path(__file__).parent
PUBLIC_HEADERS = ("tracea.h", "tracea.hpp", "tsr.h")
"""Headers that a stand-alone library comes with."""
RUNTIME_HEADER = "tsr_device.h"
"""What that source asks of a kind of device."""
RUNTIME_SOURCE = "tsr.cpp"
"""The source of the library with the functions of ``tsr.h``."""


def header(folder: Path, name: str) -> str:
    """Read a header: from the backend's ``folder`` if it has one, else the shared header."""
    own, shared = folder / name, _SHARED.parent / name
    return (own if own.exists() else shared).read_text(encoding="utf-8")


def public_header(name: str) -> str:
    """Read one of :data:`PUBLIC_HEADERS`, :data:`RUNTIME_HEADER` or :data:`RUNTIME_SOURCE`."""
    return (_SHARED / name).read_text(encoding="utf-8")


def abi_version() -> tuple[int, int]:
    """Return major and minor version of the C interface."""
    text = public_header("tracea.h")
    numbers = re.findall(r"#define TRACEA_ABI_(?:MAJOR|MINOR) (\d+)", text)
    return int(numbers[0]), int(numbers[1])
