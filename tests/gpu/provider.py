"""Results in the CUDA provider of onnxruntime-gpu, with inputs and outputs on the device.

    python -m tests.gpu.provider make FOLDER [NAME…] [--precision fp16]    # plain onnxruntime
    python -m tests.gpu.provider run FOLDER [--runs 200]                   # onnxruntime-gpu

``make`` optimizes models and writes feeds and what the original says to them; ``run``, in an
environment with the other wheel, compares and times them: bound to the device, and captured
(``enable_cuda_graph``), beside the original in the same provider.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime

NAMES = ("minilm", "bert-base", "resnet50", "vit-base")


def made(name: str, precision: str, folder: Path) -> str:
    """Optimize a model and write what ``run`` needs."""
    from models.make import make
    from tracea_graph import Options, api
    from tracea_graph.onnx_io import load
    from tracea_graph.pipeline.model_inputs import gather_inputs

    own = folder / name
    own.mkdir(parents=True, exist_ok=True)
    path = make(name, own)
    options = Options(
        target="cuda", keep="all", precision=precision, output=str(own / "result.onnx")
    )
    report = api.optimize(path, options)
    feed = next(iter(gather_inputs(load(path), options).timing.values()))
    (own / "original.txt").write_text(Path(path).name)
    answers = onnxruntime.InferenceSession(path).run(None, feed)
    np.savez(own / "feed.npz", **feed)
    np.savez(own / "answers.npz", *answers)
    return f"{name}: {report.status}, {report.nodes_after} nodes"


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


def timed(path: Path, library: Path | None, own: Path, runs: int, graph: bool) -> str:
    """Run a model bound to the device; return its error and the median time of a run in µs."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    if library:
        settings.register_custom_ops_library(str(library))
    asked = [("CUDAExecutionProvider", {"enable_cuda_graph": "1" if graph else "0"})]
    try:
        session = onnxruntime.InferenceSession(str(path), settings, providers=asked)
        binding, results = bound(session, dict(np.load(own / "feed.npz")))
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            session.run_with_iobinding(binding)
            times.append(1e6 * (time.perf_counter() - start))
    except Exception as error:  # ONNX Runtime's exception classes are not public
        return f"{type(error).__name__}: {str(error)[-160:]}"
    wanted = list(np.load(own / "answers.npz").values())
    errors = [
        np.abs(r.numpy().astype(np.float64) - w).max() / (np.abs(w).max() or 1)
        for r, w in zip(results, wanted, strict=True)
    ]
    return f"{median(times):.0f} µs, error {max(errors):.1e}"


def main() -> int:
    """Make or run; print a line for each model and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--runs", type=int, default=200)
    asked = parser.parse_args()
    if asked.what == "make":
        for name in asked.names or NAMES:
            sys.stdout.write(f"{made(name, asked.precision, asked.folder)}\n")
        return 0
    for own in sorted(p for p in asked.folder.iterdir() if p.is_dir()):
        original = own / (own / "original.txt").read_text()
        for graph in (False, True):
            ours = timed(own / "result.onnx", own / "result.so", own, asked.runs, graph)
            theirs = timed(original, None, own, asked.runs, graph)
            how = "captured" if graph else "bound"
            sys.stdout.write(f"{own.name} {how}: {ours} | original {theirs}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
