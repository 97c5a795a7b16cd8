"""Compare a result with its original by processor time: ``python -m models.processor_time A B``.

Times are those of the thread that runs, so that other work on the machine counts only as far as it
takes caches and clock; runs of both models take turns, on one thread.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from models.quantize import feeds
from tracea_graph import Options, session
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.model_inputs import gather_inputs

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print least and median milliseconds of both, their ratios, and how far results differ."""
    parser = argparse.ArgumentParser(prog="python -m models.processor_time", description=__doc__)
    parser.add_argument("original", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--like", type=Path, help="time with the inputs of optimizing this")
    args = parser.parse_args(argv)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [session(path, sess_options=options) for path in (args.original, args.result)]
    feed = _inputs_of(args.like) if args.like else next(feeds(args.original))
    times = np.array([[_once(s, feed) for s in sessions] for _ in range(args.pairs + 3)])[3:] * 1e3
    (least, other), (middle, ours) = times.min(0), np.median(times, 0)
    pairs = np.median(times[:, 0] / times[:, 1])
    wanted, found = (s.run(None, feed) for s in sessions)
    print(
        f"{args.original.stem}: {least:.2f} / {other:.2f} ms at least ({least / other:.2f}x), "
        f"{middle:.2f} / {ours:.2f} ms in the median; median ratio of pairs {pairs:.2f}x; "
        f"difference {_difference(wanted, found):.2g} of the norm"
    )
    return 0


def _inputs_of(path: Path) -> Mapping[str, np.ndarray]:
    return next(iter(gather_inputs(load(path), Options()).timing.values()))


def _difference(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """Return the largest distance of an output of floats, relative to its norm."""
    pairs = [(a, b) for a, b in zip(wanted, found, strict=True) if a.dtype.kind == "f"]
    return max(
        float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(a)), 1e-30) for a, b in pairs
    )


def _once(run: onnxruntime.InferenceSession, feed: Mapping[str, np.ndarray]) -> float:
    start = time.thread_time()
    run.run(None, feed)
    return time.thread_time() - start


if __name__ == "__main__":
    sys.exit(main())
