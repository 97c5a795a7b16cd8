"""Types of command-line values that several subcommands take; argparse calls them."""

from __future__ import annotations

import argparse
import re

__all__ = ["count", "seconds", "shape", "share", "threads", "words"]


def count(text: str) -> int:
    """A number from 1."""
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def share(text: str) -> float:
    """A finite number from 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0")
    return value


def seconds(text: str) -> float:
    """``90``, ``90s``, ``1.5m`` or ``2h``, from 0."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smh]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 60, 60s or 5m")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def words(text: str) -> tuple[str, ...]:
    """``a,b``."""
    return tuple(filter(None, text.split(",")))


def threads(text: str) -> tuple[int, ...]:
    """``1,2``, each once."""
    return tuple(dict.fromkeys(map(count, text.split(","))))


def shape(text: str) -> dict[str, int]:
    """``batch=1,sequence=128``."""
    pairs = (part.rpartition("=") for part in text.split(","))
    sizes = {name: count(size) for name, _, size in pairs}
    if "" in sizes:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N[,NAME=N]")
    return sizes
