"""Results in the CUDA provider of onnxruntime-gpu, with inputs and outputs on the device.

    python -m tests.gpu.provider make FOLDER [NAME…] [--batch 1,32] [--precision fp16]
    python -m tests.gpu.provider run FOLDER [--runs 200] [--write models/RESULTS.md]

``make``, in an environment with the plain onnxruntime, optimizes models of the zoo and writes
feeds and what the originals say to them on the CPU; ``run``, in one with onnxruntime-gpu, compares
and times them beside the originals in the same provider.  Both sides are bound to the device, and
captured (``enable_cuda_graph``); originals also with images that have channels last
(``prefer_nhwc``).  The best of each side counts.  ``--write`` puts a table of each batch between
its marker lines of a file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime

NAMES = ("minilm-fp16", "bert-base-fp16", "vit-base-fp16", "gpt2-fp16", "whisper-tiny-fp16",
         "resnet50-fp16", "mobilenetv2-fp16", "convnext-tiny-fp16",
         "efficientnet-b0-fp16")  # fmt: skip
HEADS = ("model", "ours, µs", "max error", "original, µs", "max error", "over it")
WAYS = {"bound": {}, "captured": {"enable_cuda_graph": "1"}}
IMAGES = {f"{how}, channels last": {**given, "prefer_nhwc": "1"} for how, given in WAYS.items()}
"""Ways to run an original that has images."""
_IMAGE = 4
"""Rank of an image."""
_LONGEST = 1.0
"""Seconds after which a way is not run again."""
_FEWEST = 10


def made(name: str, precision: str, batch: int, folder: Path) -> str:
    """Optimize a model and write what ``run`` needs."""
    from models.make import make
    from tracea_graph import Options, api
    from tracea_graph.onnx_io import load
    from tracea_graph.pipeline.model_inputs import gather_inputs

    own = folder / f"{name}.{batch}"
    own.mkdir(parents=True, exist_ok=True)
    path = make(name, own)
    options = Options(
        target="cuda", keep="all", precision=precision, output=own / "result.onnx",
        shapes=({"batch": batch},), verify=False,
    )  # fmt: skip
    report = api.optimize(path, options)
    feed: Any = next(iter(gather_inputs(load(path), options).timing.values()))
    answers = onnxruntime.InferenceSession(path).run(None, feed)
    np.savez(own / "feed.npz", **feed)
    np.savez(own / "answers.npz", *answers)
    told = {"name": name, "batch": batch, "original": Path(path).name}
    (own / "model.json").write_text(json.dumps(told), encoding="utf-8")
    return f"{name} at {batch}: {report.status}, {report.nodes_after} nodes"


def bound(session: Any, feed: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Bind inputs, and outputs of the sizes that a first run gives, to the device."""
    binding = session.io_binding()
    for name, array in feed.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
        binding.bind_ortvalue_input(name, value)
    for one in session.get_outputs():
        binding.bind_output(one.name, "cuda", 0)
    session.run_with_iobinding(binding)
    results = binding.get_outputs()
    for one, value in zip(session.get_outputs(), results, strict=True):
        binding.bind_ortvalue_output(one.name, value)
    return binding, results


def timed(
    path: Path, library: Path | None, own: Path, runs: int, way: dict[str, str]
) -> tuple[float, float]:
    """Return the median time in µs of a run bound to the device, and the largest error.

    Raises what ONNX Runtime raises.
    """
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    if library:
        settings.register_custom_ops_library(str(library))
    asked = [("CUDAExecutionProvider", way)]
    session = onnxruntime.InferenceSession(str(path), settings, providers=asked)
    binding, results = bound(session, dict(np.load(own / "feed.npz")))
    times, began = list[float](), time.perf_counter()
    while len(times) < runs and (
        len(times) < _FEWEST or time.perf_counter() - began < _LONGEST
    ):  # fmt: skip
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(1e6 * (time.perf_counter() - start))
    wanted = np.load(own / "answers.npz").values()
    errors = [
        np.abs(r.numpy().astype(np.float32) - w).max() / (np.abs(w).max() or 1)
        for r, w in zip(results, (w.astype(np.float32) for w in wanted), strict=True)
    ]
    return median(times), float(max(errors))


def _tried(
    what: str, ways: Iterable[str], run: Callable[[str], tuple[float, float]]
) -> tuple[str, float, float]:
    """Run all ways; return their times as text, and the best time and its error."""
    told, found = list[str](), list[tuple[float, float]]()
    for way in ways:
        try:
            found.append(run(way))
            told.append(f"{found[-1][0]:.0f}")
        except Exception as error:  # ONNX Runtime's exception classes are not public
            told.append("–")
            sys.stderr.write(f"{what}, {way}: {type(error).__name__}: {str(error)[-160:]}\n")
    best = min(found, default=(float("nan"), float("nan")))
    return ", ".join(told), *best


def _row(own: Path, name: str, original: str, runs: int) -> tuple[tuple[str, ...], float]:
    """Time both sides of a model in all their ways; return a row and the ratio of the best."""
    images = any(a.ndim == _IMAGE for a in np.load(own / "feed.npz").values())
    theirs = WAYS | (IMAGES if images else {})
    result, library = own / "result.onnx", own / "result.so"
    ours = _tried(f"{name}, ours", WAYS, lambda w: timed(result, library, own, runs, WAYS[w]))
    peer = _tried(
        f"{name}, original", theirs, lambda w: timed(own / original, None, own, runs, theirs[w])
    )
    ratio = peer[1] / ours[1]
    row = (name, ours[0], f"{ours[2]:.1e}", peer[0], f"{peer[2]:.1e}", f"{ratio:.2f}")
    return row, ratio


def _table(rows: list[tuple[str, ...]], ratios: list[float], batch: int) -> str:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    mean = prod(ratios) ** (1 / len(ratios))
    note = (
        f"Geometric mean {mean:.2f}. {done.stdout.strip().replace(', ', ', driver ')}, "
        f"onnxruntime-gpu {onnxruntime.__version__}, batch {batch}, tensors on the device, "
        f"{datetime.now(UTC):%Y-%m-%d}; times: {', '.join(WAYS)}; of images also "
        f"{', '.join(IMAGES)}."
    )
    lines = [HEADS, ("---", *("---:" for _ in HEADS[1:])), *rows]
    return "\n".join([*("| " + " | ".join(row) + " |" for row in lines), "", note, ""])


def _run(folder: Path, runs: int, target: Path | None) -> None:
    """Print a line for each model in a folder; perhaps write the tables."""
    from models.score import replace_table

    described = [(path.parent, json.loads(path.read_text())) for path in
                 sorted(folder.glob("*/model.json"))]  # fmt: skip
    for batch in sorted({one["batch"] for _, one in described}):
        rows, ratios = list[tuple[str, ...]](), list[float]()
        for own, one in described:
            if one["batch"] == batch:
                row, ratio = _row(own, one["name"], one["original"], runs)
                sys.stdout.write(" | ".join(row) + "\n")
                sys.stdout.flush()
                rows.append(row)
                ratios.append(ratio)
        table = _table(rows, ratios, batch)
        sys.stdout.write(f"{table}\n")
        if target:
            replace_table(target, f"batch {batch}", table, "tests.gpu.provider")


def main() -> int:
    """Make or run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--batch", default="1,32", metavar="N[,M]")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    asked = parser.parse_args()
    if asked.what == "run":
        _run(asked.folder, asked.runs, asked.write)
        return 0
    for name in asked.names or NAMES:
        for batch in map(int, asked.batch.split(",")):
            sys.stdout.write(f"{made(name, asked.precision, batch, asked.folder)}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
