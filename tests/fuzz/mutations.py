"""Model files with some bytes changed, and the process in which the tool meets them.

    python mutations.py FILES OUT verify|plain      reads paths, one a line, from FILES

tells what it does on stdout, a JSON line each: ``{"step": …}``, and for every file ``{"file",
"error"}``; at last ``{"peak": bytes, "worker_peak": bytes}``.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["mutate"]

Mutation = Callable[[random.Random, bytearray, Sequence[bytes]], None]
_TELLING = (0x00, 0x01, 0x7F, 0x80, 0xFF, 0x08, 0x0A, 0x2E)
"""Bytes that are the ends of ranges, or the tags of protobuf fields."""


def mutate(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """``data`` with up to four changes; some splice in a piece of one of the ``others``."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if found:
            rng.choice(_MUTATIONS)(rng, found, others)
    return bytes(found)


def _span(rng: random.Random, data: bytearray) -> slice:
    start = rng.randrange(len(data))
    return slice(start, min(len(data), start + rng.choice((1, 2, 4, 16, 200))))


def _flip(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    data[rng.randrange(len(data))] = rng.choice(_TELLING)


def _remove(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    del data[_span(rng, data)]


def _repeat(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    span = _span(rng, data)
    data[span.stop : span.stop] = data[span] * rng.choice((1, 1, 50))


def _widen(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    """A number becomes an enormous or negative one."""
    at = rng.randrange(len(data))
    data[at : at + 1] = rng.choice((b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x08", b"\xff\x7f"))


def _cut(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data)) :]


def _splice(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = bytearray(rng.choice(others))
    data[_span(rng, data)] = other[_span(rng, other)]


_MUTATIONS: Sequence[Mutation] = (
    _flip, _flip, _overwrite, _overwrite, _remove, _repeat, _widen, _widen, _cut, _splice
)  # fmt: skip


def main(files: str, out: str, how: str) -> None:
    """Optimize the files together, as a user of the API would."""
    from tracea_graph import Options, api

    def tell(**what: object) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    options = Options(Path(out), keep="all", verify=how == "verify")
    paths = Path(files).read_text(encoding="utf-8").split("\n")
    for outcome in api.optimize_many(paths, options, lambda step: tell(step=step)):
        error = outcome.error
        tell(file=outcome.source.name, error=f"{type(error).__name__}: {error}" if error else "")
    tell(peak=_peak(), worker_peak=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)


def _peak() -> int:
    """Bytes this program took: ``ru_maxrss`` would count the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main(*sys.argv[1:])
