"""The version of the package: the one place that names it."""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0"
