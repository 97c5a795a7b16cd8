"""Models on this machine's GPU for long, and under conditions that make runs fail.

    python -m tests.gpu.endurance [NAME|MODEL.onnx=RESULT.onnx…]
                                  [--seconds 120] [--threads 8] [--sessions 500]

Models of the zoo are optimized for this machine's GPU; a RESULT was, with its library beside it.
Prints for each model: its largest error against the original, seconds to open the library and to
run first, MB of the device that the driver's context, the first session, its runs and a second
session take, runs per second of many threads at several sizes (each compared bitwise with the
first of its size), and MB of the device and of the process that sessions lose which come and go.
Then what is said in a forked process, and when the device has no memory left.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from models.make import make
from tests.tiny import child, error_between
from tracea_graph import Options, api
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.model_inputs import gather_inputs

NAMES = ("minilm", "bert-base")
_CONTEXT = """
from tests.gpu.device import Device
from tests.gpu.endurance import megabytes
device = Device()
print(megabytes())
"""
Feed = Mapping[str, Any]


def megabytes(device: int = 0) -> int:
    """Return how many MB of a GPU are in use, by all processes."""
    asked = "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", str(device)
    command = ["nvidia-smi", *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def own_megabytes() -> int:
    """Return how many MB of the machine's memory this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


@dataclass(frozen=True)
class Finished:
    """An optimized model, and feeds for its sizes."""

    original: Path
    result: Path
    library: Path
    feeds: Sequence[Feed]

    @property
    def stored(self) -> int:
        """MB of the result's files, which hold its weights."""
        data = self.result.parent.glob(f"{self.result.stem}.*.data")
        return sum(path.stat().st_size for path in (self.result, *data)) >> 20


def finished(name: str, precision: str, folder: Path) -> Finished:
    """Return a result that was written before, or optimize a model of the zoo.

    Raises RuntimeError if the model gets no library.
    """
    options = Options(target="cuda", keep="all", precision=precision)
    if "=" in name:
        original, result = map(Path, name.split("="))
        library = result.with_suffix(".so")
    else:
        original = make(name, folder)
        report = api.optimize(original, options)
        if report.library is None:
            raise RuntimeError(f"no library: {report.reason}")
        result, library = Path(report.output), Path(report.library)
    found = gather_inputs(load(original), options)
    return Finished(
        original, result, library, [*found.timing.values(), *found.verification.values()]
    )


def opened(made: Finished) -> tuple[Any, float]:
    """Open a session; return it and the seconds it took."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.register_custom_ops_library(str(made.library))
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(str(made.result), settings)
    return session, time.perf_counter() - start


def same(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, wanted, strict=True))


def together(session: Any, feeds: Sequence[Feed], threads: int, seconds: float) -> str:
    """Run feeds in turn from many threads; say how many runs there were, and how many differed."""
    wanted = [session.run(None, feed) for feed in feeds]
    end = time.perf_counter() + seconds

    def work(first: int) -> tuple[int, int]:
        runs = wrong = 0
        while time.perf_counter() < end:
            i = (first + runs) % len(feeds)
            wrong += not same(session.run(None, feeds[i]), wanted[i])
            runs += 1
        return runs, wrong

    with ThreadPoolExecutor(threads) as pool:
        counts = list(pool.map(work, range(threads)))
    runs, wrong = (sum(column) for column in zip(*counts, strict=True))
    return f"{threads} threads {runs / seconds:.0f} runs/s, {wrong} of {runs} differ"


def sessions(made: Finished, count: int) -> str:
    """Open, run and close sessions; say what the device and the process have lost."""
    if not count:
        return "no sessions"
    before, own, start = megabytes(), own_megabytes(), time.perf_counter()
    for _ in range(count):
        session, _ = opened(made)
        session.run(None, made.feeds[0])
        del session
    seconds = (time.perf_counter() - start) / count
    return (
        f"{count} sessions of {1e3 * seconds:.0f} ms, {before} {megabytes() - before:+} MB of the "
        f"device, {own} {own_megabytes() - own:+} MB of the process"
    )


def forked(session: Any, feed: Feed) -> str:
    """Return what a run in a forked process says."""
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            session.run(None, feed)
            said = "it ran"
        except Exception as error:  # ONNX Runtime's exception classes are not public
            said = str(error)
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    said = os.read(read, 4096).decode()
    os.waitpid(child, 0)
    return said


def crowded(made: Finished) -> str:
    """Return what opening or running says while the device has no memory left, and after."""
    from tests.gpu.device import Device, checked, driver

    Device()
    held = []
    for size in (1 << 30, 1 << 26, 1 << 21):
        while True:
            result, place = driver.cuMemAlloc(size)
            if result != driver.CUresult.CUDA_SUCCESS:
                break
            held.append(place)
    try:
        opened(made)[0].run(None, made.feeds[0])
        said = "it ran"
    except Exception as error:  # ONNX Runtime's exception classes are not public
        said = str(error)
    for place in held:
        checked(driver.cuMemFree(place))
    opened(made)[0].run(None, made.feeds[0])
    return said


def error(made: Finished, run: Callable[[Feed], Sequence[Any]]) -> float:
    """Return the largest error of results over all feeds, as a share of the largest answer."""
    plain = onnxruntime.InferenceSession(str(made.original))
    names = [one.name for one in plain.get_outputs()]
    pairs = ((answers(feed) for answers in (run, partial(plain.run, None))) for feed in made.feeds)
    return max(
        error_between(*(dict(zip(names, answers, strict=True)) for answers in pair))
        for pair in pairs
    )


def endured(name: str, precision: str, folder: Path, asked: argparse.Namespace) -> Iterator[str]:
    """Put a model under load; yield a line after each step."""
    made = finished(name, precision, folder)
    feeds, before = made.feeds, megabytes()
    context = int(child(_CONTEXT)) - before
    session, first = opened(made)
    with_session, start = megabytes(), time.perf_counter()
    session.run(None, feeds[0])
    run = time.perf_counter() - start
    for feed in feeds * 2:
        session.run(None, feed)
    after_runs = megabytes()
    other, second = opened(made)
    other.run(None, feeds[0])
    after_second = megabytes()
    yield (
        f"{name} {precision}: error {error(made, partial(session.run, None)):.1e}, "
        f"open {first:.2f} s, first run {run:.3f} s, again {second:.2f} s"
    )
    yield (
        f"  MB: files {made.stored}, session {with_session - before} with the driver's context of "
        f"{context}, runs {after_runs - with_session:+}, second session "
        f"{after_second - after_runs:+}"
    )
    yield f"  {together(session, feeds, asked.threads, asked.seconds)}"
    yield f"  after that {megabytes() - after_second:+} MB"
    yield f"  {sessions(made, asked.sessions)}"
    yield f"  forked: {forked(session, feeds[0])[-300:]}"
    yield f"  no memory: {crowded(made)[-300:]}"


def main() -> int:
    """Print the lines of each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=500)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.names or NAMES:
            for line in endured(name, asked.precision, Path(folder), asked):
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
