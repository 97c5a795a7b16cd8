"""One process with sessions on every GPU of the machine: own contexts, the same bits, no mixing.

    python -m tests.gpu.several MODEL.onnx=RESULT.onnx [--provider] [--runs 100]

Opens a session of a result on each GPU in turn, chosen by ``TRACEA_CUDA_DEVICE``, or with
``--provider`` by ``device_id`` of the CUDA provider (onnxruntime-gpu, inputs and outputs bound to
that GPU).  Prints a line for each GPU: which GPUs have a context once it is open, MB in use on it,
and the median time of a run; then how many runs differ from the first GPU's while all sessions run
from threads of their own, and once more after the first session was closed.  The exit code is 1 if
a run differs, or if a session opened a context on another GPU than its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import onnxruntime
from cuda.bindings import driver

from tests.gpu.device import checked
from tests.gpu.endurance import Feed, Finished, error, finished, megabytes, same

Run = Callable[[Feed], Sequence[Any]]


def devices() -> list[str]:
    """Return the names of the machine's GPUs, without opening one."""
    checked(driver.cuInit(0))
    return [
        checked(driver.cuDeviceGetName(100, device)).split(b"\0")[0].decode()
        for device in range(checked(driver.cuDeviceGetCount()))
    ]


def active() -> list[int]:
    """Return the GPUs on which this process has a context."""
    count = checked(driver.cuDeviceGetCount())
    return [d for d in range(count) if checked(driver.cuDevicePrimaryCtxGetState(d))[1]]


def opened_on(made: Finished, device: int, provider: bool) -> Run:
    """Open a session on a GPU; return what runs it on arrays of the host."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.register_custom_ops_library(str(made.library))
    if not provider:
        os.environ["TRACEA_CUDA_DEVICE"] = str(device)
        session = onnxruntime.InferenceSession(str(made.result), settings)
        return lambda feed: session.run(None, feed)
    asked = [("CUDAExecutionProvider", {"device_id": str(device)})]
    bound = onnxruntime.InferenceSession(str(made.result), settings, providers=asked)

    def run(feed: Feed) -> list[Any]:
        binding = bound.io_binding()
        for name, array in feed.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", device)
            binding.bind_ortvalue_input(name, value)
        for one in bound.get_outputs():
            binding.bind_output(one.name, "cuda", device)
        bound.run_with_iobinding(binding)
        return [value.numpy() for value in binding.get_outputs()]

    return run


def differing(sessions: Sequence[Run], feeds: Sequence[Feed], wanted: Any, runs: int) -> int:
    """Run all sessions at once, each from two threads; count runs with other bits."""

    def work(number: int) -> int:
        run = sessions[number % len(sessions)]
        turns = [(number + i) % len(feeds) for i in range(runs)]
        return sum(not same(run(feeds[i]), wanted[i]) for i in turns)

    with ThreadPoolExecutor(2 * len(sessions)) as pool:
        return sum(pool.map(work, range(2 * len(sessions))))


def timed(run: Run, feed: Feed, runs: int) -> float:
    """Return the median time of a run in µs."""
    times = []
    for _ in range(runs):
        start = perf_counter()
        run(feed)
        times.append(1e6 * (perf_counter() - start))
    return median(times)


def main() -> int:
    """Print a line for each GPU, and what their sessions do together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL.onnx=RESULT.onnx")
    parser.add_argument("--provider", action="store_true")
    parser.add_argument("--runs", type=int, default=100)
    asked = parser.parse_args()
    made = finished(asked.model, "fp16", Path(os.devnull))
    names, sessions, failed = devices(), [], False
    wanted: list[Any] = []
    for device, name in enumerate(names):
        sessions.append(opened_on(made, device, asked.provider))
        found = [sessions[-1](feed) for feed in made.feeds]
        wanted = wanted or found
        wrong = sum(not same(a, b) for a, b in zip(found, wanted, strict=True))
        spent = timed(sessions[-1], made.feeds[0], asked.runs)
        failed |= bool(wrong) or active() != list(range(device + 1))
        sys.stdout.write(
            f"GPU {device} ({name}): contexts on {active()}, {megabytes(device)} MB in use, "
            f"{spent:.0f} µs a run, {wrong} of {len(found)} results differ\n"
        )
    sys.stdout.write(f"error against the original {error(made, sessions[0]):.1e}\n")
    for said in ("all sessions", "without the first one")[: len(sessions)]:
        wrong = differing(sessions, made.feeds, wanted, asked.runs)
        failed |= bool(wrong)
        total = 2 * len(sessions) * asked.runs
        sys.stdout.write(f"{said}, two threads each: {wrong} of {total} runs differ\n")
        del sessions[0]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
