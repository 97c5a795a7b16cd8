"""Models on this machine's GPU, in the plain onnxruntime wheel: built, checked, timed.

    python -m tests.gpu.models [NAME|FILE.onnx…] [--precision fp32,fp16] [--runs N] [--batch N]
                               [--launches|--alone]
                               [--write models/RESULTS.md]

Prints a line for each model and precision: nodes left and those that are kernels, the error
against the original, µs of ``session.run`` (median, and the tenth part that was fastest), and of
the original on the CPU.  With ``--launches``, which needs no GPU, prints instead what a run
launches at the sizes it is timed at; with ``--alone`` how long each of them takes, on a GPU.
``--write`` puts a table of each precision between its marker lines of a file.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime

from models.make import available, make
from models.score import replace_table
from tests.gpu.launches import listed, timed
from tracea_graph import Options, api
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.model_inputs import gather_inputs

NAMES = ("tiny-bert", "minilm", "mobilenetv2", "resnet50", "bert-base", "vit-base", "gpt2")
Feed = Mapping[str, Any]


def microseconds(session: Any, feed: Feed, runs: int) -> tuple[float, float]:
    """Return the median and the 10th percentile of the run time in µs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, feed)
        times.append((time.perf_counter() - start) * 1e6)
    return median(times), sorted(times)[len(times) // 10]


def refusal(library: Path) -> str:
    """Return why a library uses no GPU, or "" if it does; call it after opening a session."""
    asked = ctypes.CDLL(str(library)).tracea_gpu_refusal
    asked.restype = ctypes.c_char_p
    said = asked()
    return said.decode() if said else ""


@dataclass(frozen=True)
class Measured:
    """A line of text, and a row of a table if the model ran on the GPU."""

    line: str
    row: tuple[str, ...] = ()


HEADS = ("model", "µs", "nodes left", "max error", "opens in, s", "first run, s")


def table(rows: Sequence[Sequence[str]], runs: int, batch: int) -> str:
    """Return rows as Markdown, with what they were measured on."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    note = (
        f"{done.stdout.strip().replace(', ', ', driver ')}, the CPU wheel of onnxruntime "
        f"{onnxruntime.__version__}, batch {batch}, tensors in host memory, median of {runs} "
        f"`session.run`, {datetime.now(UTC):%Y-%m-%d}."
    )
    lines = [HEADS, ("---", *("---:" for _ in HEADS[1:])), *rows]
    return "\n".join([*("| " + " | ".join(row) + " |" for row in lines), "", note, ""])


def measured(name: str, precision: str, runs: int, folder: Path, batch: int = 1) -> Measured:
    """Optimize, check and time a model of the zoo, or a copy of a file."""
    own = name.endswith(".onnx")
    path = Path(shutil.copy(name, folder)) if own else make(name, folder)
    name = path.stem
    start = time.perf_counter()
    shapes = ({"batch": batch},) if batch > 1 else ()
    options = Options(target="cuda", keep="all", precision=precision, shapes=shapes)
    report = api.optimize(path, options)
    built = time.perf_counter() - start
    head = f"{name:14} {precision:5} {report.status:9} error {report.error or 0:.1e}"
    if report.library is None:
        return Measured(f"{head} no library: {report.reason[:300]}")
    plain = onnxruntime.InferenceSession(path)
    settings = onnxruntime.SessionOptions()
    settings.register_custom_ops_library(report.library)
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(report.output, settings)
    opened = time.perf_counter() - start
    if said := refusal(Path(report.library)):
        return Measured(f"{head} no GPU: {said}")
    feed = next(iter(gather_inputs(load(path), options).timing.values()))
    start = time.perf_counter()
    found = session.run(None, feed)
    first = time.perf_counter() - start
    wanted = plain.run(None, feed)
    again = session.run(None, feed)
    session.run(None, feed)
    error = max(_distance(a, b) for a, b in zip(found, wanted, strict=True))
    moved = max(_distance(a, b) for a, b in zip(again, found, strict=True))
    half, tenth = microseconds(session, feed, runs)
    cpu, _ = microseconds(plain, feed, 5)
    size = Path(report.library).stat().st_size >> 10
    left = (report.nodes_after or 0) - report.kernels
    row = (name, f"{half:.0f}", f"{left}", f"{error:.1e}", f"{opened:.2f}", f"{first:.2f}")
    line = (
        f"{head} here {error:.1e} again {moved:.0e} | nodes {report.nodes_after} kernels "
        f"{report.kernels} | {half:8.0f} µs ({tenth:.0f}) CPU {cpu:.0f} | optimize {built:.0f} s "
        f"build {report.seconds.get('build', 0):.1f} open {opened:.2f} first {first:.2f} s "
        f"library {size} KB"
    )
    return Measured(line, row)


def _distance(found: Any, wanted: Any) -> float:
    a, b = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return float(np.abs(a - b).max() / (np.abs(b).max() or 1)) if a.size else 0.0


def main() -> int:
    """Print a line for each model and precision; the exit code is 1 if a model failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(available()))
    parser.add_argument("--precision", default="fp32,fp16")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--batch", type=int, default=1, help="size of the symbol of that name")
    parser.add_argument("--launches", action="store_true", help="list them; needs no GPU")
    parser.add_argument("--alone", action="store_true", help="list them with the time of each")
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    asked, failed = parser.parse_args(), 0
    rows: dict[str, list[tuple[str, ...]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.names or NAMES:
            for precision in asked.precision.split(","):
                # one process treats two libraries with one name as the same library
                own = Path(folder, precision)
                own.mkdir(exist_ok=True)
                try:
                    if asked.launches or asked.alone:
                        lines = timed if asked.alone else listed
                        line = lines(name, precision, own, asked.batch)
                    else:
                        found = measured(name, precision, asked.runs, own, asked.batch)
                        line = found.line
                        rows.setdefault(precision, []).extend([found.row] if found.row else [])
                except Exception as error:  # the next model may succeed
                    line, failed = f"{name:14} {precision:5} {type(error).__name__}: {error}", 1
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
    for precision, held in rows.items() if asked.write else ():
        text = table(held, asked.runs, asked.batch)
        replace_table(asked.write, precision, text, "tests.gpu.models")
    return failed


if __name__ == "__main__":
    sys.exit(main())
