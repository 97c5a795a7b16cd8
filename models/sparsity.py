"""Measure what sparsity in weights and masks gains, one experiment per command.

    python -m models.sparsity attention         # a banded mask, windows, all keys
    python -m models.sparsity memory            # memory of windowed attention, by sequence
    python -m models.sparsity gemm              # products with zero blocks, by share and pattern
    python -m models.sparsity unstructured      # products of 1 and 4 rows with scattered zeros
    python -m models.sparsity rank              # two factors against one matrix
    python -m models.sparsity scan MODEL.onnx   # time of the weight analysis of a model
    python -m models.sparsity dense             # a model with nothing to exploit

Results are minimum and median times of runs that alternate with their baseline in bursts, in one
process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from models.zero_blocks import PATTERNS, block_mask
from tracea_graph import Options, api
from tracea_graph.config import AttentionWindow
from tracea_graph.onnx_io import load
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.pipeline.reporting import analyze_weights

__all__ = ["attention_model", "product_model"]

Array = npt.NDArray[Any]
Run = Callable[[], Any]
HEADS, HEAD = 12, 64
SETTLE_SECONDS = 0.05
"""Seconds until idle threads sleep, and for which a model then runs."""
LOWEST = float(np.finfo(np.float32).min)


# ---- models ----------------------------------------------------------------------------


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    weights: Mapping[str, Array],
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model with float32 inputs by name; the last node's result is the output."""
    result = nodes[-1].output[0]
    graph = helper.make_graph(
        nodes,
        "figure",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in inputs.items()],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def attention_model(size: int, mask: Array | None = None) -> onnx.ModelProto:
    """Return scores, an optional additive mask ``[S, S]``, softmax and product: 12 heads of 64."""
    shape = [1, HEADS, size, HEAD]
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["raw"]),
        helper.make_node("Mul", ["raw", "scale"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    weights: dict[str, Array] = {"scale": np.array(HEAD**-0.5, np.float32)}
    if mask is None:
        del nodes[3]
        nodes[3].input[0] = "scores"
    else:
        weights["mask"] = mask
    return _model(nodes, dict.fromkeys("qkv", shape), weights)


def window_model(size: int, window: int) -> onnx.ModelProto:
    """Return ONNX's operator, whose queries see ``window`` keys around them: 12 heads of 64."""
    side, shape = window // 2, [1, HEADS, size, HEAD]
    node = helper.make_node(
        "Attention", [*"qkv"], ["y"], left_window_size=side, right_window_size=side
    )
    return _model([node], dict.fromkeys("qkv", shape), {}, opset=25)


def product_model(*matrices: Array, rows: int | str = "rows") -> onnx.ModelProto:
    """Return ``x [rows, K]`` multiplied by one matrix after another."""
    nodes, value = [], "x"
    for i, _ in enumerate(matrices):
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"y{i}"], f"product{i}"))
        value = f"y{i}"
    weights = {f"w{i}": np.ascontiguousarray(m, np.float32) for i, m in enumerate(matrices)}
    return _model(nodes, {"x": [rows, matrices[0].shape[0]]}, weights)


def band(size: int, window: int) -> Array:
    """Return an additive mask that keeps the ``window`` keys around each query."""
    i, j = np.ogrid[:size, :size]
    return np.where(abs(i - j) <= window // 2, np.float32(0), np.float32(LOWEST))


# ---- measure ---------------------------------------------------------------------------


class ModelTimer:
    """Models timed in one process, each optimized without timing or left as it is."""

    def __init__(self, threads: int, folder: Path) -> None:
        self.threads, self.folder, self.runs = threads, folder, dict[str, Run]()

    def add(
        self, name: str, model: onnx.ModelProto, feeds: Mapping[str, Array], **options: Any
    ) -> None:
        """Add the optimized form of a model or, without options, the model in ONNX Runtime."""
        path = self.folder / f"{len(self.runs)}.onnx"
        onnx.save(model, path)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = self.threads
        if options:
            out = path.with_suffix(".out.onnx")
            chosen = Options(output=out, keep="all", threads=(self.threads,), **options)
            report = api.optimize(path, chosen)
            assert report.improved, report.reason
            session = api.session(out, sess_options=settings)
        else:
            session = onnxruntime.InferenceSession(path, settings)
        bound = _bound(session, feeds)
        self.runs[name] = lambda: session.run_with_iobinding(bound)

    def times(self, seconds: float) -> dict[str, tuple[float, float]]:
        """Return minimum and median ms of each model, alternating in bursts for ``seconds``."""
        found: dict[str, list[float]] = {name: [] for name in self.runs}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, run in self.runs.items():
                found[name] += _burst(run)
        return {n: (min(t), statistics.median(t)) for n, t in found.items()}

    def show(self, base: str, seconds: float) -> dict[str, tuple[float, float]]:
        """Print times and speedups over ``base``, one line each; return the times."""
        found = self.times(seconds)
        for name, (least, middle) in found.items():
            ratio = found[base][0] / least, found[base][1] / middle
            print(
                f"  {name:28} {least:9.3f} ms least  {middle:9.3f} ms median  "
                f"{ratio[0]:5.2f}× / {ratio[1]:5.2f}×"
            )
        return found


def _burst(run: Run) -> list[float]:
    """Return the ms of consecutive runs, once the threads of the model before have stopped
    spinning."""
    began, found = time.perf_counter(), list[float]()
    while (start := time.perf_counter()) < began + 2 * SETTLE_SECONDS or not found:
        run()
        if start > began + SETTLE_SECONDS:
            found.append(1e3 * (time.perf_counter() - start))
    return found


def _bound(session: onnxruntime.InferenceSession, feeds: Mapping[str, Array]) -> Any:
    """Bind inputs and outputs in place, so that runs copy nothing."""
    names = [o.name for o in session.get_outputs()]
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name, array in zip(names, session.run(names, dict(feeds)), strict=True):
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_output(name, value)
    return binding


def _numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- experiments -----------------------------------------------------------------------


def attention(bench: ModelTimer, args: argparse.Namespace) -> None:
    """Compare all keys, a requested window, a mask equal to it, and ONNX's operator."""
    size, window = args.size or 4096, 256
    shape = (1, HEADS, size, HEAD)
    feeds = {n: _numbers(*shape, seed=i) for i, n in enumerate("qkv")}
    plain, near = attention_model(size), attention_model(size, band(size, window))
    bench.add("all keys", plain, feeds, verify=False)
    bench.add("--window 256", plain, feeds, verify=False, windows=(AttentionWindow(window),))
    bench.add("a mask that is a band of 257", near, feeds, verify=False)
    own = window_model(size, window)
    bench.add("ONNX's window", own, feeds, verify=False)
    bench.add("ONNX's window, ONNX Runtime", own, feeds)
    bench.show("all keys", args.seconds)


def memory(bench: ModelTimer, args: argparse.Namespace) -> None:
    """Print the memory of windowed attention beyond its inputs and result, by sequence."""
    for size in (2048, 4096, 8192, 16384):
        found = bench.folder / str(size)
        found.mkdir()
        path, out = found / "model.onnx", found / "out.onnx"
        onnx.save(attention_model(size), path)
        windows = (AttentionWindow(256),)
        api.optimize(path, Options(output=out, keep="all", verify=False, windows=windows))
        word = [sys.executable, "-c", _PEAK, str(out), str(size), str(bench.threads)]
        grown = int(subprocess.run(word, check=True, capture_output=True, text=True).stdout)
        print(
            f"  sequence {size:6}: {grown / 1024:7.1f} MB, {1024 * grown / size:6.0f} bytes a key"
        )


_PEAK = """
import re, sys
import numpy as np
from tracea_graph import api
import onnxruntime
out, size, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = threads
session = api.session(out, sess_options=settings)
feeds = {n: np.ones((1, 12, size, 64), np.float32) for n in "qkv"}
result = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((1, 12, size, 64), np.float32))
binding = session.io_binding()
for name, array in feeds.items():
    binding.bind_cpu_input(name, array)
binding.bind_ortvalue_output(session.get_outputs()[0].name, result)

def kilobytes(line):
    return int(re.search(line + r":\\s+(\\d+)", open("/proc/self/status").read())[1])

open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = kilobytes("VmRSS")
session.run_with_iobinding(binding)
print(kilobytes("VmHWM") - before)
"""


def gemm(bench: ModelTimer, args: argparse.Namespace) -> None:
    """Compare a product 768 × 3072 with zero blocks of 16 × 16 to the dense kernels."""
    rows, k, n = args.size or 128, 768, 3072
    matrix, feeds = _numbers(k, n), {"x": _numbers(rows, k, seed=1)}
    seen = {"shapes": ({"rows": rows},), "verify": False, "precision": args.precision}
    bench.add("dense", product_model(matrix), feeds, **seen)
    for share in (0.5, 0.7, 0.9):
        for pattern in PATTERNS:
            sparse = matrix * block_mask((k, n), share, (16, 16), pattern)
            bench.add(f"{share:.0%} zero, {pattern}", product_model(sparse), feeds, **seen)
    bench.show("dense", args.seconds)


def unstructured(bench: ModelTimer, args: argparse.Namespace) -> None:
    """Compare a product of few rows with 4096 × 11008 and scattered zeros to the dense kernels;
    the matrix (180 MB) comes from memory."""
    size = (4096, 11008)
    matrix = _numbers(*size)
    places = np.random.default_rng(1).random(size, np.float32)
    for rows in (args.size,) if args.size else (1, 4):
        found = ModelTimer(bench.threads, bench.folder)
        feeds = {"x": _numbers(rows, size[0], seed=2)}
        seen = {"verify": False, "precision": args.precision}
        found.add("dense", product_model(matrix, rows=rows), feeds, **seen)
        for share in (0.3, 0.5, 0.7, 0.9):
            sparse = matrix * (places >= share)
            found.add(f"{share:.0%} zero", product_model(sparse, rows=rows), feeds, **seen)
        print(f" {rows} row{'s' * (rows > 1)}")
        found.show("dense", args.seconds)


def rank(bench: ModelTimer, args: argparse.Namespace) -> None:
    """Compare a matrix of exactly rank 144 with its two factors, and their rate with that of a
    dense product, which bounds what fusing them could gain."""
    rows, k, n, r = args.size or 512, 768, 3072, 144
    matrix = _numbers(k, r) @ _numbers(r, n, seed=1) / np.sqrt(np.float32(r))
    feeds = {"x": _numbers(rows, k, seed=2)}
    seen = {"shapes": ({"rows": rows},), "verify": False, "precision": args.precision}
    bench.add("one product", product_model(matrix), feeds, skip=("low-rank-exact",), **seen)
    bench.add("two products", product_model(matrix), feeds, **seen)
    found = bench.show("one product", args.seconds)
    work = {"one product": k * n, "two products": r * (k + n)}
    rates = [2e-6 * rows * work[name] / found[name][0] for name in work]
    share = (k + n) * r / (k * n)
    print(
        f"  {share:.1%} of the numbers; {rates[0]:.0f} and {rates[1]:.0f} GFLOP/s: "
        f"a fused kernel could gain {rates[0] / rates[1] - 1:.1%}"
    )


def dense(bench: ModelTimer, args: argparse.Namespace) -> None:
    """Compare a model without structure with and without the rules that look for it."""
    rows, k = args.size or 128, 768
    matrices = [_numbers(k, 4 * k), _numbers(4 * k, k, seed=1), _numbers(k, k, seed=2)]
    feeds = {"x": _numbers(rows, k, seed=3)}
    seen = {"shapes": ({"rows": rows},), "verify": False}
    model = product_model(*matrices)
    off = ("dead-channels", "low-rank-exact", "block-sparse-gemm")
    bench.add("rules off", model, feeds, skip=off, **seen)
    bench.add("rules on", model, feeds, **seen)
    bench.show("rules off", args.seconds)
    same = [(bench.folder / f"{i}.out.onnx").stat().st_size for i in (0, 1)]
    print(f"  files of {same[0]} and {same[1]} bytes")


def scan(bench: ModelTimer, args: argparse.Namespace) -> None:
    """Print the weight analysis of a model and how long it takes."""
    graph = load(args.model).graph
    seen = WeightScan()
    for name in ("first", "again"):
        start = time.perf_counter()
        found = analyze_weights(graph, seen)
        print(f"  {name}: {time.perf_counter() - start:.2f} s")
    for one in found[:20]:
        print(f"  {one.weight}: {one.found}, {one.before} -> {one.after} bytes")
    print(f"  {len(found)} properties")


FIGURES: Mapping[str, Callable[[ModelTimer, argparse.Namespace], None]] = {
    "attention": attention,
    "memory": memory,
    "gemm": gemm,
    "unstructured": unstructured,
    "rank": rank,
    "scan": scan,
    "dense": dense,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=10, help="for each table")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--size", type=int, help="sequence, or rows of x")
    args = parser.parse_args()
    for threads in args.threads:
        print(f"{args.figure}, {threads} thread{'s' * (threads > 1)}")
        with tempfile.TemporaryDirectory() as folder:
            FIGURES[args.figure](ModelTimer(threads, Path(folder)), args)


_Raw = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
