"""Fallbacks to PyTorch's own kernels: counted, and logged once for each operator and reason."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from threading import Lock

import torch

__all__ = ["fallback_counts", "log_call_fallback", "log_fallback"]

_LOG = logging.getLogger("tracea_graph.torch")
_COUNTS: Counter[tuple[str, str]] = Counter()
_LOCK = Lock()


def log_fallback(op: str, reason: str, level: int = logging.INFO) -> None:
    """Count a fallback; the first one of an operator for a reason is logged."""
    with _LOCK:
        first = not _COUNTS[op, reason]
        _COUNTS[op, reason] += 1
    if first:
        _LOG.log(level, "%s falls back to PyTorch: %s", op, reason)


def log_call_fallback(op: str, reason: str) -> None:
    """Count a call that fell back, except while it is traced: tracing has no side effects."""
    if not torch.compiler.is_compiling():
        log_fallback(op, reason)


def fallback_counts() -> Mapping[tuple[str, str], int]:
    """Return how many calls of this process fell back, by operator and reason."""
    with _LOCK:
        return dict(_COUNTS)
