"""Compare a result with its original by processor time: ``python -m models.processor_time A B``.

Times are those of the thread that runs, so that other work on the machine counts only as far as it
takes caches and clock; runs of both models take turns.  ``--openvino`` runs the original in
OpenVINO as a third, whose time is that of all threads of the process.  With more than one thread
all times are those of the clock; those are better taken by :mod:`models.processes_in_turn`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from models.quantize import feeds
from tracea_graph import Options, session
from tracea_graph.check.baseline_worker_main import OpenVinoSession
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.model_inputs import gather_inputs

__all__ = ["inputs_of", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print least and median milliseconds of both, their ratios, and how far results differ."""
    parser = argparse.ArgumentParser(prog="python -m models.processor_time", description=__doc__)
    parser.add_argument("original", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--like", type=Path, help="time with the inputs of optimizing this")
    parser.add_argument("--data", type=Path, help="time with the first inputs of this .npz")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--openvino", choices=("f32", "bf16"), metavar="PRECISION",
        help="f32 or bf16, which OpenVINO uses where it does not multiply integers")  # fmt: skip
    args = parser.parse_args(argv)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    sessions = [session(path, sess_options=options) for path in (args.original, args.result)]
    feed = inputs_of(args)
    outputs = [output.name for output in sessions[0].get_outputs()]
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    runs = [(one.run, clock) for one in sessions]
    if args.openvino:
        request = {"model": str(args.original), "threads": args.threads,
                   "precision": args.openvino,
                   "shapes": {name: array.shape for name, array in feed.items()}}  # fmt: skip
        whole = time.process_time if args.threads == 1 else clock
        runs.append((OpenVinoSession(request).run, whole))
    times = np.array(
        [[_once(run, outputs, feed, timer) for run, timer in runs] for _ in range(args.pairs + 3)]
    )
    times = times[3:] * 1e3
    (least, other), (middle, ours) = times[:, :2].min(0), np.median(times[:, :2], 0)
    pairs = np.median(times[:, 0] / times[:, 1])
    wanted, found = (s.run(outputs, feed) for s in sessions)
    print(
        f"{args.original.stem}: {least:.2f} / {other:.2f} ms at least ({least / other:.2f}x), "
        f"{middle:.2f} / {ours:.2f} ms in the median; median ratio of pairs {pairs:.2f}x; "
        f"difference {_difference(wanted, found):.2g} of the norm"
    )
    if args.openvino:
        peer = times[:, 2]
        print(
            f"{args.original.stem}: OpenVINO {args.openvino} {peer.min():.2f} ms at least "
            f"({peer.min() / other:.2f}x), {np.median(peer):.2f} ms in the median; median ratio "
            f"of pairs {np.median(peer / times[:, 1]):.2f}x"
        )
    return 0


def inputs_of(args: argparse.Namespace) -> Mapping[str, np.ndarray]:
    """Return the inputs that ``--data`` or ``--like`` name, or made-up ones for the original."""
    if args.data:
        with np.load(args.data) as sets:
            return {name: np.asarray(sets[name][0]) for name in sets}
    if args.like:
        return next(iter(gather_inputs(load(args.like), Options()).timing.values()))
    return next(feeds(args.original))


def _difference(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """Return the largest distance of an output of floats, relative to its norm."""
    pairs = [(a, b) for a, b in zip(wanted, found, strict=True) if a.dtype.kind == "f"]
    return max(
        float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(a)), 1e-30) for a, b in pairs
    )


def _once(
    run: Callable[..., object],
    outputs: Sequence[str],
    feed: Mapping[str, np.ndarray],
    timer: Callable[[], float],
) -> float:
    start = timer()
    run(outputs, feed)
    return timer() - start


if __name__ == "__main__":
    sys.exit(main())
