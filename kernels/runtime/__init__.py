"""What the runtimes of all backends share, in C++: ONNX Runtime's ABI, errors, size expressions.

Their sources include these headers as ``runtime/<name>.h``, as they do their own.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["header"]

_SHARED = Path(__file__).parent


def header(folder: Path, name: str) -> str:
    """The text of a header that a backend's sources include: its own, or a shared one."""
    own, shared = folder / name, _SHARED.parent / name
    return (own if own.exists() else shared).read_text()
