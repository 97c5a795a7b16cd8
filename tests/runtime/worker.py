"""Loads a generated library and runs one job, read from stdin; prints the answer as JSON."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

ort.set_default_logger_severity(4)


def session(library: str, model: str | bytes, threads: int = 2) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.register_custom_ops_library(library)
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(job: dict[str, Any]) -> list[str | None]:
    """Run each case folder; None, or the text of what went wrong."""
    answers: list[str | None] = []
    for folder in map(Path, job["jobs"]):
        try:
            with np.load(folder / "feeds.npz") as feeds:
                found = session(job["library"], str(folder / "model.onnx"), job.get("threads", 2))
                outputs = run_on(found, dict(feeds))
            np.savez(folder / "outputs.npz", **{f"y{i}": y for i, y in enumerate(outputs)})
            answers.append(None)
        except Exception as error:  # the text is the answer
            answers.append(str(error))
    return answers


_ONNX_TYPES = {"V2": 16, "f4": 1, "i4": 6, "i8": 7, "b1": 9}
"""Of bf16, float32, int32, int64 and boolean arrays by their kind and bytes."""


def run_on(found: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs; bf16 goes in as any two bytes and comes out as uint16."""
    if not any(v.type == "tensor(bfloat16)" for v in (*found.get_inputs(), *found.get_outputs())):
        return found.run(None, feeds)
    binding, halves = found.io_binding(), dict[str, np.ndarray]()
    made = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
    for name, x in feeds.items():
        half = x.dtype.kind == "V"
        bits = np.ascontiguousarray(x.view(np.uint16) if half else x)
        kind = f"{x.dtype.kind}{x.dtype.itemsize}"
        binding.bind_ortvalue_input(name, made(bits, _ONNX_TYPES[kind]))
    sizes = {
        d: n for v in found.get_inputs() for d, n in zip(v.shape, feeds[v.name].shape, strict=True)
    }
    for value in found.get_outputs():
        if value.type != "tensor(bfloat16)":
            binding.bind_output(value.name)
            continue
        first = feeds[f"{value.name.rpartition('y')[0]}x0"]
        shape = [d if isinstance(d, int) else sizes.get(d, first.shape[0]) for d in value.shape]
        halves[value.name] = np.zeros(shape, np.uint16)
        binding.bind_ortvalue_output(value.name, made(halves[value.name], 16))
    found.run_with_iobinding(binding)
    named = zip(found.get_outputs(), binding.get_outputs(), strict=True)
    return [halves[v.name] if v.name in halves else y.numpy() for v, y in named]


def mutants(job: dict[str, Any]) -> list[int]:
    """Load and run every mutated model of a folder; how many were refused, and how many ran."""
    folder = Path(job["folder"])
    with np.load(folder / "feeds.npz") as data:
        feeds = dict(data)
    counts = [0, 0]
    for path in sorted(folder.glob("*.onnx")):
        try:
            run_on(session(job["library"], str(path), threads=1), feeds)
            counts[1] += 1
        except Exception:  # any answer but a crash is right
            counts[0] += 1
    return counts


def libraries(job: dict[str, Any]) -> list[str]:
    """Load every library of a folder and run a model with it; what each one said, if anything."""
    said = []
    with np.load(job["feeds"]) as data:
        feeds = dict(data)
    for path in sorted(Path(job["folder"]).glob("*.so")):
        try:
            session(str(path), job["model"], threads=1).run(None, feeds)
            said.append("")
        except Exception as error:  # the text is the answer
            said.append(str(error))
    return said


def concurrent(job: dict[str, Any]) -> bool:
    """Whether 8 threads on one session give the bits one run gives."""
    folder = Path(job["folder"])
    with np.load(folder / "feeds.npz") as data:
        feeds = dict(data)
    shared = session(job["library"], str(folder / "model.onnx"))
    first = shared.run(None, feeds)

    def same(_: int) -> bool:
        return all(
            np.array_equal(a, b) for a, b in zip(first, shared.run(None, feeds), strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        return all(pool.map(same, range(200)))


def shapes(job: dict[str, Any]) -> list[list[Any]]:
    """The output shapes the runtime infers."""
    found = session(job["library"], job["model"])
    return [list(output.shape) for output in found.get_outputs()]


def register(job: dict[str, Any]) -> str:
    """The text of the error of registering a library, or nothing."""
    try:
        ort.SessionOptions().register_custom_ops_library(job["library"])
    except Exception as error:  # the text is the answer
        return str(error)
    return ""


def registrations(job: dict[str, Any]) -> float:
    """Bytes of the process's own memory that one registration of a library costs, once the first
    of them have been made; nothing else keeps the library loaded."""

    def register(times: int) -> int:
        for _ in range(times):
            ort.SessionOptions().register_custom_ops_library(job["library"])
        text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
        return int(next(r for r in text.splitlines() if r.startswith("Anonymous:")).split()[1])

    before = register(job["times"] // 4)
    return (register(job["times"]) - before) * 1024 / job["times"]


def files(job: dict[str, Any]) -> int:
    """Files that stay open after many registrations of a library."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(job["times"]):
        ort.SessionOptions().register_custom_ops_library(job["library"])
    return len(os.listdir("/proc/self/fd")) - before


def comings_and_goings(job: dict[str, Any]) -> bool:
    """Whether 4 threads that each make a session, run it and drop it, over and over, get the
    same bits every time: the library is unloaded whenever no thread has one."""
    folder = Path(job["folder"])
    with np.load(folder / "feeds.npz") as data:
        feeds = dict(data)

    def answer(_: int) -> list[bytes]:
        found = session(job["library"], str(folder / "model.onnx"), threads=1)
        return [y.tobytes() for y in found.run(None, feeds)]

    first = answer(0)
    with ThreadPoolExecutor(4) as pool:
        return all(found == first for found in pool.map(answer, range(job["times"])))


def version(job: dict[str, Any]) -> str:
    return str(ort.__version__)


TASKS = {
    "run": run,
    "mutants": mutants,
    "libraries": libraries,
    "concurrent": concurrent,
    "shapes": shapes,
    "register": register,
    "registrations": registrations,
    "files": files,
    "comings_and_goings": comings_and_goings,
    "version": version,
}

if __name__ == "__main__":
    request = json.load(sys.stdin)
    sys.stdout.write(json.dumps(TASKS[request["task"]](request)) + "\n")
