"""Run sessions of many threads for long: ``python -m models.endurance RESULT.onnx… --minutes 10``.

First every result runs with 1, 2, 3, 5, 8, 16 and 32 threads, then sessions of 16 threads run
together, in turn one of the results each, with inputs of four sizes, and rest for up to 1.5 s
now and then so that one to all of them run at a time.  Each output must have the same bits as
with one thread.  ``TRACEA_PROCESSORS=32`` divides work for so many processors on a machine that
has fewer, and ``--no-spinning`` forbids threads to spin.  Prints how many runs there were; the
exit code is 1 where bits differ.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from models.quantize import Feed, feeds
from models.versions_in_turn import TimedVersion

__all__ = ["Checked", "main"]

_COUNTS = (1, 2, 3, 5, 8, 16, 32)
_LENGTHS = (128, 64, 37, 5)
_LONGEST_REST = 1.5
_RESTS = 0.2  # of all runs, so many are followed by a rest


@dataclass
class Checked:
    """A result, inputs of several sizes, and what one thread computes from them."""

    model: TimedVersion
    inputs: list[Feed]
    outputs: list[list[Any]] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> Checked:
        """Compute the outputs with one thread."""
        model = TimedVersion(path.stem, path)
        session = model.open(1)
        full = next(feeds(path))
        made = cls(model, _shorter(full, session))
        made.outputs = [session.run(None, feed) for feed in made.inputs]
        return made

    def differs(self, session: onnxruntime.InferenceSession, which: int) -> bool:
        """Whether a run has other bits than with one thread."""
        got = session.run(None, self.inputs[which])
        return any(
            a.tobytes() != b.tobytes() for a, b in zip(got, self.outputs[which], strict=True)
        )


def _shorter(feed: Feed, session: onnxruntime.InferenceSession) -> list[Feed]:
    """Return the inputs, and shorter ones where their sequence may be."""
    axes = {
        put.name: put.shape.index("sequence")
        for put in session.get_inputs()
        if "sequence" in put.shape
    }
    if not axes:
        return [feed]
    return [
        {name: np.take(a, range(n), axes[name]) if name in axes else a for name, a in feed.items()}
        for n in _LENGTHS
    ]


@dataclass
class _Counts:
    runs: int = 0
    differ: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, differs: bool) -> None:
        with self.lock:
            self.runs += 1
            self.differ += differs


def _work(one: Checked, args: argparse.Namespace, end: float, seed: int, counts: _Counts) -> None:
    session = one.model.open(args.threads, not args.no_spinning)
    chance = random.Random(seed)
    while time.monotonic() < end:
        counts.add(one.differs(session, chance.randrange(len(one.inputs))))
        if chance.random() < _RESTS:
            time.sleep(chance.random() * _LONGEST_REST)


def main(argv: Sequence[str] | None = None) -> int:
    """Check thread counts, then sessions together, and print."""
    parser = argparse.ArgumentParser(prog="python -m models.endurance", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--threads", type=int, default=16, help="of a session")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--no-spinning", action="store_true")
    args = parser.parse_args(argv)
    checked, alone, together = [Checked.of(path) for path in args.results], _Counts(), _Counts()
    for one in checked:
        for n in _COUNTS:
            session = one.model.open(n, not args.no_spinning)
            for which in range(len(one.inputs)):
                alone.add(one.differs(session, which))
    print(
        f"{len(_COUNTS)} numbers of threads: {alone.runs} runs, {alone.differ} differ", flush=True
    )
    end = time.monotonic() + 60 * args.minutes
    workers = [
        threading.Thread(target=_work, args=(checked[i % len(checked)], args, end, i, together))
        for i in range(args.sessions)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(
        f"{args.sessions} sessions of {args.threads} threads, {args.minutes:g} minutes: "
        f"{together.runs} runs, {together.differ} differ"
    )
    return int(alone.differ + together.differ > 0)


if __name__ == "__main__":
    sys.exit(main())
