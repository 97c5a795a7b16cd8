"""Words for the command line: the CPU targets one can name, and the problems a doctor takes.

Parsers read them before anything else of the backend is loaded; keep this module light.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["PROBLEMS", "TARGETS"]

TARGETS = ("cpu:scalar", "cpu:avx2", "cpu:avx512")
"""Lowest first."""

_ROWS = ("rows", "cols")
PROBLEMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": ("M", "N", "K"),
        "conv2d": ("batch", "channels", "height", "width", "filters", "kernel"),
        "attention": ("batch", "heads", "queries", "keys", "head"),
        "norm": _ROWS,
        "gather": _ROWS,
        "reduce": _ROWS,
        "softmax": _ROWS,
        "chain": _ROWS,
    }
)
"""Operations whose variants can be asked for, with the sizes each takes."""
