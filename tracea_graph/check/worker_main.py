"""Child side of a worker: load models and libraries, run them and measure them.

Started by path, so that only NumPy and ONNX Runtime are imported (``onnx`` only when a request
needs it).  Requests are JSON lines on stdin, answers JSON lines on the original stdout; other
output to stdout is redirected to stderr.  Arrays are in files of a directory that the parent owns
(``worker_arrays``); ``instrumented_models`` edits models.  An answer is ``{"ok": …}`` or
``{"error": "sentence"}``.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

if TYPE_CHECKING:
    from tracea_graph.check.instrumented_models import (
        instrument_model,
        random_values,
        takes_jitter,
        with_extra_outputs,
        written_values,
    )
    from tracea_graph.check.worker_arrays import read_arrays, write_arrays
else:
    sys.path.append(str(Path(__file__).parent))
    from instrumented_models import (
        instrument_model,
        random_values,
        takes_jitter,
        with_extra_outputs,
        written_values,
    )
    from worker_arrays import read_arrays, write_arrays

BRIEF_NS = 4_000_000
"""If all callers together take less time than this, a pair is the mean of several runs."""
Array = np.ndarray[Any, np.dtype[Any]]
Request = Mapping[str, Any]

RAW: Mapping[str, tuple[np.dtype[Any], int]] = {
    "tensor(bfloat16)": (np.dtype(np.uint16), 16),
    "tensor(float8e4m3fn)": (np.dtype(np.uint8), 17),
    "tensor(float8e4m3fnuz)": (np.dtype(np.uint8), 18),
    "tensor(float8e5m2)": (np.dtype(np.uint8), 19),
    "tensor(float8e5m2fnuz)": (np.dtype(np.uint8), 20),
}
"""Types that NumPy lacks: the integer type their bits are transferred as, and their ONNX code."""

LEVELS = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@dataclass(frozen=True)
class OpenSession:
    """An open session, the ``request`` that opened it, and the names of its outputs."""

    session: ort.InferenceSession
    request: Request
    outputs: tuple[str, ...]
    plain: bool
    """True if strings, sequences or maps require NumPy inputs and outputs."""


def private_bytes() -> int:
    """Return the bytes of this process that no other process shares; 0 if unknown."""
    gc.collect()
    try:
        text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    rows = (line.split() for line in text.splitlines() if line.startswith("Private_"))
    return 1024 * sum(
        int(row[1]) for row in rows if row[0] in ("Private_Clean:", "Private_Dirty:")
    )


# ---- sessions --------------------------------------------------------------------------


def session_options(request: Request, profile_prefix: str = "") -> ort.SessionOptions:
    """Return the session options for a request.

    Idle threads must not spin, because they would slow down other sessions.
    """
    made = ort.SessionOptions()
    made.intra_op_num_threads, made.inter_op_num_threads = request["threads"], 1
    made.graph_optimization_level = LEVELS[request["level"]]
    made.log_severity_level = 4
    made.add_session_config_entry("session.force_spinning_stop", "1")
    if pinned := thread_affinities(request["threads"]):
        made.add_session_config_entry("session.intra_op_thread_affinities", pinned)
    if request["library"]:
        made.register_custom_ops_library(request["library"])
    for library in request["others"]:
        made.register_custom_ops_library(library)
    if profile_prefix:
        made.enable_profiling, made.profile_file_prefix = True, profile_prefix
    return made


def create_session(request: Request, profile_prefix: str = "") -> ort.InferenceSession:
    """Create a session; ``extra`` values become outputs, ``cut`` values become inputs.

    It runs in the first of ``providers`` that is installed and loads, else on the CPU.

    ``jitter`` is the relative size of the noise that is added to values before they are rounded to
    integers.
    """
    made, source = session_options(request, profile_prefix), request["model"]
    if request["extra"] or request["cut"] or request["jitter"]:
        folder = str(Path(source).resolve().parent)
        made.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", folder
        )
        if request["cut"] or request["jitter"]:
            source = instrument_model(source, request["extra"], request["cut"], request["jitter"])
        else:
            source = with_extra_outputs(source, request["extra"])
    wanted = [p for p in request["providers"] if p in ort.get_available_providers()]
    return ort.InferenceSession(source, made, providers=[*wanted, "CPUExecutionProvider"])


def wrap_session(session: ort.InferenceSession, request: Request) -> OpenSession:
    ends = [*session.get_inputs(), *session.get_outputs()]
    plain = any(not e.type.startswith("tensor(") or e.type == "tensor(string)" for e in ends)
    return OpenSession(session, request, tuple(o.name for o in session.get_outputs()), plain)


def session_ports(values: Sequence[Any]) -> list[list[Any]]:
    return [[v.name, v.type, list(v.shape or ())] for v in values]


# ---- arrays ----------------------------------------------------------------------------


def to_ort_value(array: Array, kind: str) -> ort.OrtValue:
    if kind in RAW:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, RAW[kind][1])
    return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))


def from_ort_value(value: ort.OrtValue) -> Array:
    """Return a value's elements; a type that NumPy lacks becomes an integer type of its bits."""
    if value.data_type() not in RAW:
        return np.asarray(value.numpy())
    bits, shape = RAW[value.data_type()][0], value.shape()
    size = int(np.prod(shape, dtype=np.int64)) * bits.itemsize
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.asarray(np.frombuffer(data, bits).reshape(shape))


def flatten_output(name: str, value: Any) -> dict[str, Array]:
    """Return a sequence as arrays ``name[i]``, a map as ``name.keys`` and ``name.values``.

    Returns any other value as ``name``, and an empty dict for None.
    """
    if value is None:
        return {}
    if isinstance(value, list):
        return {
            k: a for i, v in enumerate(value) for k, a in flatten_output(f"{name}[{i}]", v).items()
        }
    if isinstance(value, dict):
        keys = np.asarray(list(value))
        return {f"{name}.keys": keys, f"{name}.values": np.asarray(list(value.values()))}
    return {name: np.asarray(value)}


def session_feeds(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Any]:
    """Convert feeds to a session's inputs: ``name[i]`` become a list, absent optionals None."""
    found: dict[str, Any] = dict(feeds)
    for port in session.get_inputs():
        keys = [f"{port.name}[{i}]" for i in range(len(feeds))]
        parts = [found.pop(key) for key in keys if key in found]
        if parts or port.type.startswith("seq("):
            found[port.name] = parts
        elif port.type.startswith("optional("):
            found.setdefault(port.name, None)
    return found


def bound_call(opened: OpenSession, feeds: Mapping[str, Array]) -> Callable[[], Any]:
    """Return a function that runs the session once with ``feeds``, without copies if it can."""
    session, outputs = opened.session, list(opened.outputs)
    if opened.plain:
        whole = session_feeds(session, feeds)
        return lambda: session.run(outputs, whole)
    kinds = {i.name: i.type for i in session.get_inputs()}
    values = {name: to_ort_value(array, kinds.get(name, "")) for name, array in feeds.items()}
    return lambda: session.run_with_ort_values(outputs, values)


# ---- requests --------------------------------------------------------------------------


class WorkerServer:
    """Answers requests; holds the open sessions by name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sessions = folder, dict[str, OpenSession]()

    def open(self, request: Request) -> dict[str, Any]:
        self.sessions.pop(request["name"], None)
        weigh = private_bytes if request["weigh"] else lambda: 0
        before, start = weigh(), time.perf_counter()
        session = create_session(request)
        seconds = time.perf_counter() - start
        self.sessions[request["name"]] = wrap_session(session, request)
        return {
            "seconds": seconds,
            "private_bytes": max(0, weigh() - before),
            "inputs": session_ports(session.get_inputs()),
            "outputs": session_ports(session.get_outputs()),
            "providers": session.get_providers(),
        }

    def load(self, request: Request) -> None:
        ort.SessionOptions().register_custom_ops_library(request["library"])

    def close(self, request: Request) -> None:
        self.sessions.pop(request["name"], None)

    def clear(self, request: Request) -> None:
        self.sessions.clear()

    def run(self, request: Request) -> dict[str, Any]:
        opened = self.sessions[request["name"]]
        feeds = self.feeds(request)  # kept alive: an output may alias an input
        found = bound_call(opened, feeds)()
        outputs: dict[str, Array] = {}
        for name, value in zip(opened.outputs, found, strict=True):
            outputs |= (
                flatten_output(name, value) if opened.plain else {name: from_ort_value(value)}
            )
        kinds = {o.name: o.type for o in opened.session.get_outputs()}
        return {
            "names": list(outputs),
            "arrays": write_arrays(request["answer"], outputs.values()),
            "kinds": [kinds.get(name, "") for name in outputs],
        }

    def feeds(self, request: Request) -> dict[str, Array]:
        arrays = read_arrays(request["feeds"], request["arrays"])
        return dict(zip(request["names"], arrays, strict=True))

    def compare(self, request: Request) -> dict[str, Any]:
        feeds = self.feeds(request)
        calls = [bound_call(self.sessions[name], feeds) for name in request["sessions"]]
        for call in calls * request["warmup"]:
            call()
        gc.collect()
        gc.disable()
        try:
            return {"ms": time_paired(calls, request["pairs"], request["seconds"])}
        finally:
            gc.enable()

    def serve(self, request: Request) -> dict[str, Any]:
        """Run all sessions at once, each in a thread of its own."""
        feeds = self.feeds(request)
        calls = [bound_call(self.sessions[name], feeds) for name in request["sessions"]]
        for call in calls:
            call()
        start, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(len(calls)) as pool:
            found = pool.map(lambda call: time_repeated(call, start + request["seconds"]), calls)
            ms = [one for times in found for one in times]
        return {
            "ms": ms,
            "wall": time.perf_counter() - start,
            "cpu": time.process_time() - cpu,
        }

    def profile(self, request: Request) -> dict[str, Any]:
        """Return per-node times of interleaved sessions."""
        feeds, opened = self.feeds(request), list[OpenSession]()
        for i, name in enumerate(request["sessions"]):
            spec = self.sessions[name].request
            opened.append(
                wrap_session(create_session(spec, str(self.folder / f"profile{i}")), spec)
            )
        calls = [bound_call(o, feeds) for o in opened]
        runs, total = request["runs"], request["runs"] + request["warmup"]
        for call in calls * total:
            call()
        traces = [(o, Path(o.session.end_profiling())) for o in opened]
        rows = [node_times(trace, total, runs, custom_op_domains(o)) for o, trace in traces]
        for _, trace in traces:
            trace.unlink()
        return {"rows": rows}

    def check(self, request: Request) -> None:
        import onnx

        onnx.checker.check_model(request["model"], full_check=True)

    def values(self, request: Request) -> list[str]:
        return written_values(request["model"])

    def random(self, request: Request) -> list[str]:
        import onnx

        model = onnx.load(request["model"], load_external_data=False)
        return random_values(model.graph, request["ops"])

    def takes_jitter(self, request: Request) -> bool:
        import onnx

        model = onnx.load(request["model"], load_external_data=False)
        return takes_jitter(model.graph)

    def answer(self, request: Request) -> dict[str, Any]:
        """Answer one request; an exception of ONNX Runtime or onnx becomes an error."""
        try:
            return {"ok": getattr(self, request["do"])(request)}
        except Exception as error:  # the parent decides what an error means
            return {"error": f"{type(error).__name__}: {error}".strip()[:4000]}


def time_repeated(call: Callable[[], Any], end: float) -> list[float]:
    """Call repeatedly until the clock reads ``end``, at least once; return each duration in ms."""
    times: list[float] = []
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def time_paired(
    calls: Sequence[Callable[[], Any]], pairs: int, seconds: float
) -> list[list[float]]:
    """Run the calls by turns; return each call's milliseconds per pair.

    The order changes with every round, because the caller that ran last finds its caches warm,
    which can halve the time of a small model.  For brief calls, a pair is therefore the mean over
    a multiple of the rounds that :func:`run_orders` needs to be fair.
    """
    times: list[list[float]] = [[] for _ in calls]
    clock, order, rounds = time.perf_counter_ns, run_orders(len(calls)), 1
    end = clock() + int(seconds * 1e9)
    for pair in range(pairs):
        spent, done = [0] * len(calls), 0
        while done < rounds:
            for i in next(order):
                start = clock()
                calls[i]()
                spent[i] += clock() - start
            done += 1
            if pair == 0 and done == 1 and sum(spent) < BRIEF_NS:
                fair = 2 * len(calls)
                rounds = fair * math.ceil(BRIEF_NS / (fair * max(sum(spent), 1)))
        for found, took in zip(times, spent, strict=True):
            found.append(took / rounds / 1e6)
        if clock() > end:
            break
    return times


def run_orders(callers: int) -> Iterator[Sequence[int]]:
    """Yield orders in which to run the callers, so that each profits equally from warm caches.

    A caller's caches are warm if it also ran last.  In ``2 * callers`` orders, each caller runs
    directly after itself once: each order is followed by its reverse, which begins with the caller
    that ran last; the next two orders begin with another caller.
    """
    for first in itertools.cycle(range(callers)):
        order = [*range(first, callers), *range(first)]
        yield order
        yield order[::-1]


def custom_op_domains(opened: OpenSession) -> dict[str, str]:
    """Return the domain of each custom operator type in the model; empty without a library."""
    if not opened.request["library"]:
        return {}
    import onnx

    model = onnx.load(opened.request["model"], load_external_data=False)
    graphs = [model.graph]
    for graph in graphs:
        attributes = [a for node in graph.node for a in node.attribute]
        graphs += [g for a in attributes for g in (*a.graphs, *([a.g] if a.HasField("g") else []))]
    return {n.op_type: n.domain for graph in graphs for n in graph.node if n.domain}


def node_times(trace: Path, total: int, keep: int, domain: Mapping[str, str]) -> list[list[Any]]:
    """Return ``[name, op, domain, median µs, [µs per run]]`` of each node in a profile.

    The trace covers ``total`` runs, of which the last ``keep`` count.  The times of a node in a
    loop body are added up within a run, and are no part of the loop's own.
    """
    times: dict[tuple[str, str, str], list[float]] = {}
    events = [
        event
        for event in json.loads(trace.read_text(encoding="utf-8"))
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]
    for event, own in zip(events, _own_times(events), strict=True):
        name, args = event["name"].removesuffix("_kernel_time"), event["args"]
        key = (args.get("node_index", ""), name, args.get("op_name", ""))
        times.setdefault(key, []).append(own)
    rows: list[list[Any]] = []
    for (_, name, op), found in times.items():
        step = max(1, len(found) // total)
        sums = [sum(found[i : i + step]) for i in range(0, len(found), step)][-keep:]
        rows.append([name, op, domain.get(op, ""), statistics.median(sums), sums])
    return rows


def _own_times(events: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the duration of each event less those of the events that run inside it."""
    own = [float(event["dur"]) for event in events]
    around: list[int] = []
    for i in sorted(
        range(len(events)), key=lambda i: (events[i]["tid"], events[i]["ts"], -events[i]["dur"])
    ):
        while around and not _is_within(events[i], events[around[-1]]):
            around.pop()
        if around:
            own[around[-1]] -= events[i]["dur"]
        around.append(i)
    return [max(0.0, time) for time in own]


def _is_within(event: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    end, last = event["ts"] + event["dur"], other["ts"] + other["dur"]
    return bool(event["tid"] == other["tid"] and other["ts"] <= event["ts"] and end <= last)


def thread_affinities(threads: int, siblings: str = _SIBLINGS) -> str:
    """Return ``session.intra_op_thread_affinities``: a core for each thread except the caller's.

    Empty for one thread, or for more threads than this process has cores.  ONNX Runtime pins
    threads only if a session has one per core.  Otherwise, next to a busy process, the system may
    place all threads of one session on one core while two sessions are compared, which makes that
    session look several times slower.
    """
    if not hasattr(os, "sched_getaffinity"):  # Linux's
        return ""
    mine = os.sched_getaffinity(0)
    cores = sorted({tuple(sorted(_core(Path(siblings.format(p)), p) & mine)) for p in mine})
    if not 1 < threads <= len(cores):
        return ""
    return ";".join(",".join(str(p + 1) for p in core) for core in cores[1:threads])


def _core(siblings: Path, processor: int) -> set[int]:
    """Return the processors of a core from a list such as ``0-1,8``; itself alone if unknown."""
    try:
        text = siblings.read_text("ascii").strip()
    except OSError:
        return {processor}
    ranges = ([*map(int, part.split("-"))] for part in text.split(",") if part)
    return {p for bounds in ranges for p in range(bounds[0], bounds[-1] + 1)}


def exit_with_parent(parent: int) -> None:
    """Wait for the parent to end, then exit, even if a kernel never returns."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main(folder: str, kind: Callable[[Path], WorkerServer] = WorkerServer) -> None:
    """Serve requests until stdin ends."""
    threading.Thread(target=exit_with_parent, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    server = kind(Path(folder))
    for line in sys.stdin:
        answers.write(json.dumps(server.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
