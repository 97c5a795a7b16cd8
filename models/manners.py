"""Count what a result takes from others: ``python -m models.manners ORIGINAL.onnx RESULT.onnx``.

Original and result take turns in sessions of one process per situation: more threads than
processors, several sessions at once, beside processes that compute, with half of the processors'
time (a control group, where this user may make one), on half of the processors, without spinning.
Printed are ms of wall time and of processor time a run, and their ratios (below 1: the result
takes less).  The last columns are ms of processor time from the end of a run on, until all threads
sleep.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
from rich.console import Console
from rich.table import Table

from models.quantize import feeds
from tracea_graph import session
from tracea_graph.config import usable_processors

__all__ = ["Situation", "main", "situations"]

ROUNDS, RESTS = 4, 0.3
_PERIOD_US = 100_000


@dataclass(frozen=True)
class Situation:
    """``sessions`` of ``threads`` threads each, beside ``neighbours`` processes that compute.

    ``processors`` limits where the process runs, ``quota`` the processors' worth of its time.
    """

    name: str
    threads: int
    sessions: int = 1
    neighbours: int = 0
    processors: int = 0
    quota: int = 0
    spinning: bool = True


def situations(processors: int) -> tuple[Situation, ...]:
    """Return what is tried on a machine of so many processors."""
    half = max(1, processors // 2)
    return (
        Situation("alone", processors),
        Situation("four times the threads", 4 * processors),
        Situation("four sessions", processors, sessions=4),
        Situation("busy neighbours", processors, neighbours=half),
        Situation("half of the processors", processors, processors=half),
        Situation("half of their time", processors, quota=half),
        Situation("no spinning", processors, spinning=False),
        Situation("no spinning, four sessions", processors, sessions=4, spinning=False),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each situation in a process of its own and print a table."""
    parser = argparse.ArgumentParser(prog="python -m models.manners", description=__doc__)
    parser.add_argument("original", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a burst of runs")
    parser.add_argument("--only", default="", help="situations whose names contain this")
    parser.add_argument("--situation", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.situation:
        what = Situation(**args.situation)
        print(json.dumps(_measure(what, args.original, args.result, args.seconds)))
        return 0
    names = ("wall", "", "ratio", "processor", "", "ratio", "after", "")
    table = Table("situation", "threads", *names, box=None)
    table.title = f"{args.result.name}: ms of original, result"
    for what in situations(usable_processors()):
        if args.only not in what.name:
            continue
        found = _in_its_place(what, args)
        cells = [f"{value:.3g}" for value in found] if found else ["–"] * 6
        wall, cpu = (f"{found[i + 1] / found[i]:.2f}" if found else "–" for i in (0, 2))
        table.add_row(what.name, str(what.threads), *cells[:2], wall, *cells[2:4], cpu, *cells[4:])
    Console().print(table)
    return 0


def _in_its_place(what: Situation, args: argparse.Namespace) -> list[float] | None:
    """Measure in a new process under the situation's limits; None if they cannot be set."""
    given = (f"--seconds={args.seconds}", f"--situation={json.dumps(what.__dict__)}")
    paths = (str(args.original), str(args.result))
    command = (sys.executable, "-m", "models.manners", *paths, *given)
    try:
        with _group(what.quota) as group, _busy(what.neighbours):
            enter = ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"]
            done = subprocess.run(
                (*(enter if group else ()), *command), check=True, capture_output=True, text=True
            )
    except PermissionError:
        return None
    found: list[float] = json.loads(done.stdout)
    return found


@contextmanager
def _busy(count: int) -> Iterator[None]:
    spin = [sys.executable, "-c", "while True: pass"]
    neighbours = [subprocess.Popen(spin) for _ in range(count)]
    try:
        yield
    finally:
        for one in neighbours:
            one.kill()
            one.wait()


@contextmanager
def _group(quota: int) -> Iterator[Path | None]:
    """Yield a control group with a quota, of whichever version the system has.

    Raises PermissionError where this user may not make one.
    """
    if not quota:
        yield None
        return
    root, parts = Path("/sys/fs/cgroup"), (quota * _PERIOD_US, _PERIOD_US)
    old = (root / "cpu").is_dir()
    group = (root / "cpu" if old else root) / f"tracea-manners-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise PermissionError(error.errno, "no control group can be made", str(group)) from error
    try:
        limits = {"cpu.cfs_period_us": parts[1], "cpu.cfs_quota_us": parts[0]}
        try:
            for name, value in (limits if old else {"cpu.max": f"{parts[0]} {parts[1]}"}).items():
                (group / name).write_text(str(value))
        except OSError as error:
            raise PermissionError(error.errno, "it cannot be limited", str(group)) from error
        yield group
    finally:
        group.rmdir()


def _measure(what: Situation, original: Path, result: Path, seconds: float) -> list[float]:
    """Return wall and processor time a run, and that after one, of the original and the result."""
    if what.processors:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: what.processors])
    feed = next(feeds(original))
    models = [[_session(path, what) for _ in range(what.sessions)] for path in (original, result)]
    for one in (one for sessions in models for one in sessions):
        for _ in range(3):
            one.run(None, feed)
    found = [
        [_burst(sessions, feed, seconds) for sessions in turn]
        for turn in (models, models[::-1])[: ROUNDS // 2] * (ROUNDS // 2)
    ]
    rounds = [one if i % 2 == 0 else one[::-1] for i, one in enumerate(found)]
    return [
        statistics.median(one[model][figure] for one in rounds)
        for figure in range(3)
        for model in range(2)
    ]


def _session(path: Path, what: Situation) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = what.threads
    if not what.spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return session(path, sess_options=options)


def _burst(sessions: Sequence[Any], feed: Any, seconds: float) -> tuple[float, float, float]:
    counts = [0] * len(sessions)
    time.sleep(RESTS)
    start, before = time.perf_counter(), time.process_time()

    def work(index: int) -> None:
        while time.perf_counter() < start + seconds or not counts[index]:
            sessions[index].run(None, feed)
            counts[index] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(sessions))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    end, after = time.perf_counter(), time.process_time()
    time.sleep(RESTS)
    runs = sum(counts) / 1e3
    return (end - start) / runs, (after - before) / runs, (time.process_time() - after) * 1e3


if __name__ == "__main__":
    sys.exit(main())
