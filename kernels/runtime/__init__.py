"""C++ headers shared by all runtimes: ONNX Runtime's ABI, errors and size expressions.

Backends include them, like their own headers, as ``runtime/<name>.h``.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["header"]

_SHARED = Path(__file__).parent


def header(folder: Path, name: str) -> str:
    """Read a header: the backend's own in ``folder`` if it exists, else the shared one."""
    own, shared = folder / name, _SHARED.parent / name
    return (own if own.exists() else shared).read_text()
