"""Race versions of a result in one process: ``python -m models.versions_in_turn NAME=OUT.onnx…``.

A version is a result with its library, and perhaps settings: ``NAME=OUT.onnx,TRACEA_BARRIERS=1``.
All run in turn in sessions of one process, for machines of one kind differ by a third, and so do
times of one machine from minute to minute.  Printed for each number of threads are medians in ms
and, in brackets, the median of each round's ratios to the first version; BITS where results
differ.

``--without-values DIR`` writes the graphs and libraries without large float weights instead, small
enough to carry to another machine.  Weights that are missing are made up when a version is timed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper

__all__ = ["RacedTimes", "TimedVersion", "main", "race"]

_LARGE, _PAGE = 4096, 4096  # bytes
_RESTS = 0.15  # seconds until the threads of the session before sleep
_SIZES = {"sequence": 128}  # of symbolic axes; 1 where missing


@dataclass(frozen=True)
class TimedVersion:
    """A result or an original, and environment variables under which its session is opened."""

    name: str
    model: Path
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> TimedVersion:
        """Return what ``NAME=OUT.onnx[,VARIABLE=VALUE…]`` says."""
        name, _, rest = text.partition("=")
        path, *settings = rest.split(",")
        pairs: list[tuple[str, str]] = []
        for setting in settings:
            key, equals, value = setting.partition("=")
            if equals or not pairs:
                pairs.append((key, value))
            else:  # a comma of the value before
                pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]},{setting}")
        return cls(name, Path(path), tuple(pairs))

    def open(self, threads: int, spinning: bool = True) -> onnxruntime.InferenceSession:
        """Return a session of so many threads, which may spin while they wait or not."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        if not spinning:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if (library := self.model.with_suffix(".so")).exists():
            options.register_custom_ops_library(str(library.resolve()))
        os.environ.update(self.settings)
        try:
            return onnxruntime.InferenceSession(
                str(self.model), options, providers=["CPUExecutionProvider"]
            )
        finally:
            for key, _ in self.settings:
                del os.environ[key]


def _write_without_values(model: Path, folder: Path) -> None:
    """Write the graph, whose large weights lie in a file that is missing, and its library."""
    graph = onnx.load(model)
    end = 0
    for tensor in graph.graph.initializer:
        size = numpy_helper.to_array(tensor).nbytes
        if tensor.data_type != TensorProto.FLOAT or size < _LARGE:
            continue
        start = -(-end // _PAGE) * _PAGE
        end = start + size
        for field in ("raw_data", "float_data", "external_data"):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": f"{model.stem}.weights", "offset": start, "length": size}
        for key, value in entries.items():
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / model.name).write_bytes(graph.SerializeToString())
    shutil.copy(model.with_suffix(".so"), folder)


def _make_up_weights(model: Path) -> None:
    """Write small random numbers into the file of weights, if there should be one."""
    ends: dict[str, int] = {}
    for tensor in onnx.load(model, load_external_data=False).graph.initializer:
        entry = {e.key: e.value for e in tensor.external_data}
        if entry.get("location", "").endswith(".weights"):
            name = entry["location"]
            ends[name] = max(ends.get(name, 0), int(entry["offset"]) + int(entry["length"]))
    for name, end in ends.items():
        path = model.with_name(name)
        if path.exists():
            continue
        rng = np.random.default_rng(0)
        with path.open("wb") as file:
            for start in range(0, end, 1 << 22):
                values = rng.standard_normal(1 << 20, np.float32) * np.float32(0.03)
                file.write(values.tobytes()[: end - start])


def _inputs(session: onnxruntime.InferenceSession) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    feed: dict[str, Any] = {}
    for put in session.get_inputs():
        shape = [d if isinstance(d, int) else _SIZES.get(d, 1) for d in put.shape]
        if put.type == "tensor(float)":
            feed[put.name] = rng.standard_normal(shape, np.float32)
        else:
            feed[put.name] = np.ones(shape, np.int64)
    return feed


def _median_time(run: Callable[[], Any], seconds: float) -> float:
    """Return the median time of runs, in ms; the first few are not counted."""
    for _ in range(3):
        run()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


@dataclass(frozen=True)
class RacedTimes:
    """A median time in ms, a median ratio to the first version, and whether results are equal."""

    ms: float
    ratio: float
    same: bool


def race(
    versions: Sequence[TimedVersion],
    counts: Sequence[int],
    rounds: int,
    seconds: float,
    feed: Mapping[str, Any] | None = None,
) -> dict[int, dict[str, RacedTimes]]:
    """Time versions in turn, each for some seconds a round, on ``feed`` or made-up inputs.

    Returns the times by number of threads, then by version.  All numbers of threads take part in
    every round, so that a machine whose speed changes in the meantime slows them alike.
    """
    first = versions[0].name
    keys = [(n, v) for n in counts for v in versions]
    settings = any(v.settings for v in versions)  # of the process, while a session opens
    with ThreadPoolExecutor(1 if settings else len(keys)) as pool:
        opened = pool.map(lambda key: key[1].open(key[0]), keys)
        sessions = {(n, v.name): session for (n, v), session in zip(keys, opened, strict=True)}
    feed = feed or _inputs(sessions[counts[0], first])
    results = {key: session.run(None, feed) for key, session in sessions.items()}
    times: dict[tuple[int, str], list[float]] = {key: [] for key in sessions}
    for number in range(rounds):
        order = list(sessions)
        random.Random(number).shuffle(order)
        for key in order:
            time.sleep(_RESTS)
            run = partial(sessions[key].run, None, feed)
            times[key].append(_median_time(run, seconds))
    found: dict[int, dict[str, RacedTimes]] = {n: {} for n in counts}
    for (n, name), own in times.items():
        ratios = (a / b for a, b in zip(own, times[n, first], strict=True))
        same = all(map(np.array_equal, results[n, name], results[n, first]))
        found[n][name] = RacedTimes(statistics.median(own), statistics.median(ratios), same)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Time versions of one model in turn, or write them without their values."""
    parser = argparse.ArgumentParser(prog="python -m models.versions_in_turn", description=__doc__)
    parser.add_argument("version", nargs="+", type=TimedVersion.parse)
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.25, help="of a version's turn")
    parser.add_argument("--without-values", type=Path, metavar="DIR")
    options = parser.parse_args(argv)
    for version in options.version:
        if options.without_values:
            _write_without_values(version.model, options.without_values / version.name)
        else:
            _make_up_weights(version.model)
    for threads in () if options.without_values else map(int, options.threads.split(",")):
        found = race(options.version, [threads], options.rounds, options.seconds)[threads]
        words = (
            f"{name} {one.ms:.3f} ({one.ratio:.3f}){'' if one.same else ' BITS'}"
            for name, one in found.items()
        )
        print(f"{threads} threads:", *words, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
