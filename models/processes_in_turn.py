"""Time an original and its result in two processes: ``python -m models.processes_in_turn A B``.

In one process, threads of the original's session spin for tens of milliseconds behind a run, and
where there are as many threads as processors the result's threads wait for theirs.  Here each has
a process of its own, which runs some times in turn with the other and sleeps in between.  On Linux
``chrt -f 10`` before the command keeps other work off the processors meanwhile.

A virtual machine's processors lie under one cache for a while and under two for another, and data
then cost several times as much between them.  ``--lines`` therefore measures in each round how
fast one processor reads what another wrote (:mod:`models.lines_between_cores`), and times are
printed for rounds above and below that many GB/s.  ``--openvino`` adds the original in OpenVINO.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from models.lines_between_cores import compile_program
from models.processor_time import inputs_of
from tracea_graph import session
from tracea_graph.check.baseline_worker_main import OpenVinoSession

__all__ = ["main"]

_REST = 0.1  # seconds before a turn, until the threads of the other process sleep
_WARM = 2  # runs of a turn that are not counted: the other process has emptied the caches

Rows = list[tuple[float, ...]]


def _serve(pipe: Connection, path: str, threads: int, feed: Mapping[str, Any], peer: str) -> None:
    """Open a model, then answer each number of runs with the median of their times in ms."""
    if peer:
        shapes = {name: array.shape for name, array in feed.items()}
        request = {"model": path, "threads": threads, "precision": peer, "shapes": shapes}
        one: Any = OpenVinoSession(request)
    else:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        one = session(Path(path), sess_options=options)
    outputs = [output.name for output in one.get_outputs()]
    one.run(outputs, feed)
    pipe.send(0.0)
    while runs := pipe.recv():
        times = []
        for _ in range(runs + _WARM):
            start = time.perf_counter()
            one.run(outputs, feed)
            times.append(1e3 * (time.perf_counter() - start))
        pipe.send(float(np.median(times[_WARM:])))


def _start(stack: ExitStack, *what: Any) -> Connection:
    """Return the pipe to a process that has opened its model."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_serve, args=(other, *what), daemon=True)
    process.start()
    other.close()
    stack.callback(process.join)
    stack.callback(pipe.send, 0)
    pipe.recv()
    return pipe


def _turn(pipe: Connection, runs: int) -> float:
    time.sleep(_REST)
    pipe.send(runs)
    return float(pipe.recv())


def _rate_of_lines(program: Path) -> float:
    """Return the GB/s at which all processors read some lines of what their neighbours wrote."""
    last = subprocess.run([program], capture_output=True, text=True, check=True).stdout.rstrip()
    found = re.search(r"rows of another's ([0-9.]+)", last.rpartition("\n")[2])
    assert found, last
    return float(found[1])


def _report(title: str, rows: Rows, names: Sequence[str]) -> None:
    """Print the median time of each, and quartiles of the others' times over the result's."""
    times = np.array(rows)
    words = [f"{name} {ms:.2f} ms" for name, ms in zip(names, np.median(times, 0), strict=True)]
    for i, name in enumerate(names):
        if i != 1:
            low, middle, high = np.percentile(times[:, i] / times[:, 1], [25, 50, 75])
            words.append(f"{middle:.2f}x over {name} ({low:.2f} to {high:.2f})")
    print(f"{title}, {len(rows)} rounds: {', '.join(words)}", flush=True)


def _measure(args: argparse.Namespace, stack: ExitStack) -> None:
    feed = {name: np.asarray(array) for name, array in inputs_of(args).items()}
    start = partial(_start, stack)
    pipes = [start(str(p), args.threads, feed, "") for p in (args.original, args.result)]
    names = ["ONNX Runtime", "this tool"]
    if args.openvino:
        pipes.append(start(str(args.original), args.threads, feed, args.openvino))
        names.append("OpenVINO")
    rate = None
    if args.lines:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tracea-"))
        rate = partial(_rate_of_lines, compile_program(Path(folder)))
    found: dict[str, Rows] = {}
    for _ in range(args.rounds):
        before = rate() if rate else 0.0
        row = tuple(_turn(pipe, args.runs) for pipe in pipes)
        after = rate() if rate else 0.0
        sides = {here >= args.lines for here in (before, after)}
        key = "changing" if len(sides) > 1 else "near" if before >= args.lines else "far"
        found.setdefault(key if rate else "", []).append(row)
    title = f"{args.original.stem}, {args.threads} threads"
    for key, rows in sorted(found.items()):
        if key != "changing":
            _report(f"{title} {key}".rstrip(), rows, names)


def main(argv: Sequence[str] | None = None) -> int:
    """Time both in turn, and print."""
    name = "python -m models.processes_in_turn"
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("original", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--runs", type=int, default=10, help="of a turn")
    parser.add_argument("--like", type=Path, help="time with the inputs of optimizing this")
    parser.add_argument("--data", type=Path, help="time with the first inputs of this .npz")
    parser.add_argument("--openvino", choices=("f32", "bf16"), default="", metavar="PRECISION")
    parser.add_argument("--lines", type=float, default=0.0, metavar="GB/S", help="see above")
    args = parser.parse_args(argv)
    with ExitStack() as stack:
        _measure(args, stack)
    return 0


if __name__ == "__main__":
    sys.exit(main())
