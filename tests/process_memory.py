"""The memory that a program and everything it starts take together, at the worst moment."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

__all__ = ["Peak", "peak_of"]

_PROC = Path("/proc")


@dataclass(frozen=True)
class Peak:
    """Bytes, at the worst moment of each: ``all`` with the pages of files that are mapped, a page
    that several processes share counted once; ``own`` what no file backs.  Both are sums over
    the whole tree of processes."""

    all: int
    own: int


def peak_of(command: Sequence[str | Path], env: Mapping[str, str], every: float = 0.05) -> Peak:
    """Run a command, which must succeed, and look at its processes every so many seconds."""
    whole = own = 0
    with TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=env, stdout=said, stderr=subprocess.STDOUT)
        while process.poll() is None:
            found = [_memory(pid) for pid in _tree(process.pid)]
            whole = max(whole, sum(pss for pss, _ in found))
            own = max(own, sum(anonymous for _, anonymous in found))
            time.sleep(every)
        said.seek(0)
        assert process.returncode == 0, said.read()
    return Peak(whole, own)


def _tree(root: int) -> Iterable[int]:
    """A process and its descendants, those in other process groups among them."""
    children: dict[int, list[int]] = {}
    for place in _PROC.iterdir():
        if place.name.isdigit():
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
            children.setdefault(parent, []).append(int(place.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _memory(pid: int) -> tuple[int, int]:
    """Bytes: its share of all pages it maps, and of those that no file backs."""
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0, 0
    rows = (line.split() for line in text.splitlines()[1:])
    kilobytes = {row[0]: int(row[1]) for row in rows}
    return kilobytes.get("Pss:", 0) << 10, kilobytes.get("Pss_Anon:", 0) << 10
