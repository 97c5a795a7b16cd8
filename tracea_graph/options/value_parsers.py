"""Parse option values; argparse calls these functions and reports the errors they raise."""

from __future__ import annotations

import argparse
import re

from tracea_graph.config import AttentionWindow, PruneSpec
from tracea_graph.errors import UsageError

__all__ = [
    "parse_count", "parse_prune", "parse_seconds", "parse_shape", "parse_share", "parse_threads",
    "parse_window", "parse_words",
]  # fmt: skip

_MOST_THREADS = 1024


def parse_count(text: str) -> int:
    """Parse an integer of at least 1."""
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def parse_share(text: str) -> float:
    """Parse a finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def parse_seconds(text: str) -> float:
    """Parse a duration: ``90``, ``90s``, ``1.5m`` or ``2h``, at least 0."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smh]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 60, 60s or 5m")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def parse_words(text: str) -> tuple[str, ...]:
    """Parse ``a,b``."""
    return tuple(filter(None, text.split(",")))


def parse_threads(text: str) -> tuple[int, ...]:
    """Parse ``1,2`` to distinct thread counts."""
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise UsageError(f"--threads takes numbers such as 1 or 1,4, not {text!r}")
    counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    if not 1 <= min(counts) <= max(counts) <= _MOST_THREADS:
        raise UsageError(f"--threads must be 1 to {_MOST_THREADS}, not {text!r}")
    return counts


def parse_shape(text: str) -> dict[str, int]:
    """Parse ``batch=1,sequence=128``."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.rpartition("=")
        if not name or not re.fullmatch(r"[0-9]{1,9}", size):
            raise UsageError(f"--shape takes NAME=N[,NAME=N], not {text!r}")
        if int(size) < 1:
            raise UsageError(f"--shape must be at least 1, not {part!r}")
        sizes[name] = int(size)
    return sizes


def parse_window(text: str) -> AttentionWindow:
    """Parse ``256``, ``256+1`` or ``0-5:256``."""
    form = r"(?:(\d{1,5})(?:-(\d{1,5}))?:)?([1-9]\d{0,8})(?:\+(\d{1,9}))?"
    if not (found := re.fullmatch(form, text)):
        raise UsageError(f"--window takes N, N+G or A-B:N+G, not {text!r}")
    first, last, keys, global_keys = found.groups()
    layers = None if first is None else (int(first), int(last or first) + 1)
    if layers and layers[0] >= layers[1]:
        raise UsageError(f"--window {text!r} names no layer: {first} is above {last}")
    return AttentionWindow(int(keys), int(global_keys or 0), layers)


def parse_prune(text: str) -> PruneSpec:
    """Parse ``0.6``, ``2:4``, ``block:16x4:0.7`` or ``channels:0.5``."""
    form = r"(?:(?:block:(\d{1,3})x(\d{1,3}):|(channels):)?(0?\.\d{1,6})|([1-9]\d?):([1-9]\d?))"
    if not (found := re.fullmatch(form, text)):
        raise UsageError(f"--prune takes 0.6, 2:4, block:16x4:0.7 or channels:0.5, not {text!r}")
    from tracea_graph.ops.weight_layouts import (  # imported here because it loads NumPy
        ALIGNED,
        BLOCKS,
    )

    columns, steps, channels, share, stay, group = found.groups()
    if group:
        if int(stay) >= int(group):
            raise UsageError(f"--prune {text} prunes nothing: keep fewer than {group}")
        return PruneSpec(1 - int(stay) / int(group), group=int(group))
    if not 0 < float(share) < 1:
        raise UsageError(f"--prune takes a share of zeros between 0 and 1, not {text!r}")
    if columns is None:
        return PruneSpec(float(share), channels=bool(channels))
    if int(columns) != ALIGNED or int(steps) not in BLOCKS:
        raise UsageError(
            f"--prune takes blocks of {ALIGNED} columns and {', '.join(map(str, BLOCKS))} rows, "
            f"such as block:16x4:{share}, not {text!r}"
        )
    return PruneSpec(float(share), block=(int(columns), int(steps)))
