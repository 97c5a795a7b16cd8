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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper

__all__ = ["TimedVersion", "main"]

_LARGE, _PAGE = 4096, 4096  # bytes
_RESTS = 0.15  # seconds until the threads of the session before sleep
_SIZES = {"sequence": 128}  # of symbolic axes; 1 where missing


@dataclass(frozen=True)
class TimedVersion:
    """A result, and environment variables under which its session is opened."""

    name: str
    model: Path
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> TimedVersion:
        """Return what ``NAME=OUT.onnx[,VARIABLE=VALUE…]`` says."""
        name, _, rest = text.partition("=")
        path, *settings = rest.split(",")
        pairs = tuple((key, value) for key, _, value in (s.partition("=") for s in settings))
        return cls(name, Path(path), pairs)

    def open(self, threads: int) -> onnxruntime.InferenceSession:
        """Return a session of so many threads."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.register_custom_ops_library(str(self.model.with_suffix(".so").resolve()))
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


def _race(versions: Sequence[TimedVersion], threads: int, rounds: int, seconds: float) -> str:
    """Return a line of medians, and of ratios to the first version."""
    sessions = {version.name: version.open(threads) for version in versions}
    first = versions[0].name
    feed = _inputs(sessions[first])
    results = {name: session.run(None, feed) for name, session in sessions.items()}
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for number in range(rounds):
        order = list(sessions)
        random.Random(number).shuffle(order)
        for name in order:
            time.sleep(_RESTS)
            session = sessions[name]
            times[name].append(_median_time(lambda: session.run(None, feed), seconds))  # noqa: B023
    words = [f"{threads} threads:"]
    for name, own in times.items():
        ratio = statistics.median(a / b for a, b in zip(own, times[first], strict=True))
        same = all(map(np.array_equal, results[name], results[first]))
        words.append(f"{name} {statistics.median(own):.3f} ({ratio:.3f}){'' if same else ' BITS'}")
    return "  ".join(words)


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
        print(_race(options.version, threads, options.rounds, options.seconds), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
