"""Time the C interface against calls inside a program: ``python -m models.c_interface``.

A program of one layer runs in ONNX Runtime, which times its kernel calls (``TRACEA_PROFILE``), in
turn with the prepared call of a stand-alone library; both on one thread.  The table has the least
of each, since other processes only ever add time, and the ratio of these.  Calls are timed from
Python by the thread's processor time, which adds two microseconds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tracea_graph as tg
from tracea_graph.commands.kernels import build_kernels
from tracea_graph.commands.telemetry import read_runs
from tracea_graph.kernels.cpu.plan import decode
from tracea_graph.native import Conv2dParams, NativeLibrary, view
from tracea_graph.onnx_io.inlining import calls_of
from tracea_graph.onnx_io.reader import load

__all__ = ["main"]

Array = np.ndarray[Any, Any]
GEMMS = ((128, 768, 768), (128, 3072, 768), (128, 768, 3072), (1, 1000, 2048), (32, 384, 384))
"""M, N, K of BERT, MiniLM and the classifier of ResNet-50."""
CONVS = (
    (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 56, 128, 1, 1),
    (256, 28, 256, 3, 2), (512, 7, 512, 3, 1), (3, 224, 64, 7, 2),
)  # fmt: skip
"""Channels, size, filters, kernel and stride of ResNet-50's layers."""


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    pairs = parser.parse_args(argv).pairs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = NativeLibrary(build_kernels(("gemm", "conv2d"), folder).path)
        library.set_threads(1)
        print(f"{library.isa}, one thread, {pairs} pairs")
        print(f"{'layer':28} {'program µs':>11} {'call µs':>9} {'ratio':>7} {'one-shot µs':>12}")
        for i, (m, n, k) in enumerate(GEMMS):
            _print(f"gemm {m}x{n}x{k}", *_gemm(library, folder / f"g{i}", m, n, k, pairs))
        for i, layer in enumerate(CONVS):
            label = "conv {}x{} to {}, {}x{} / {}".format(*layer[:4], *layer[3:])
            _print(label, *_conv(library, folder / f"c{i}", layer, pairs))


def _print(label: str, program: list[float], call: list[float], once: float) -> None:
    a, b = min(program), min(call)
    print(f"{label:28} {a:11.1f} {b:9.1f} {b / a:7.3f} {once:12.1f}", flush=True)


def _normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def _gemm(
    library: NativeLibrary, folder: Path, m: int, n: int, k: int, pairs: int
) -> tuple[list[float], list[float], float]:
    x, w, bias = _normal(m, k), _normal(k, n), _normal(n)
    y = np.empty((m, n), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("Add", ["s", "b"], ["y"]),
    ]
    session = _session(folder, nodes, {"w": w, "b": bias}, x.shape, y.shape)
    prepared = library.prepare_gemm(view(w), view(bias))
    vx, vy, vw, vb = view(x), view(y), view(w), view(bias)
    return _paired(
        session, x, lambda: prepared(vx, vy), lambda: library.gemm(vx, vw, vb, vy), y, pairs
    )


def _conv(
    library: NativeLibrary, folder: Path, layer: tuple[int, int, int, int, int], pairs: int
) -> tuple[list[float], list[float], float]:
    channels, size, filters, kernel, stride = layer
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    x, w = _normal(1, channels, size, size), _normal(filters, channels, kernel, kernel)
    bias, y = _normal(filters), np.empty((1, filters, out, out), np.float32)
    node = helper.make_node(
        "Conv", ["x", "w", "b"], ["y"], pads=[pad] * 4, strides=[stride] * 2,
        kernel_shape=[kernel] * 2,
    )  # fmt: skip
    session = _session(folder, [node], {"w": w, "b": bias}, x.shape, y.shape)
    params = Conv2dParams.of((stride, stride), (pad,) * 4, algorithm=session.algorithm)
    prepared = library.prepare_conv2d(view(w), view(bias), params)
    vx, vy, vw, vb = view(x), view(y), view(w), view(bias)
    return _paired(
        session, x, lambda: prepared(vx, vy), lambda: library.conv2d(vx, vw, vb, vy, params), y,
        pairs,
    )  # fmt: skip


class _Session:
    """A one-layer program in ONNX Runtime, whose calls are timed."""

    def __init__(self, model: Path, profile: Path) -> None:
        os.environ["TRACEA_PROFILE"] = str(profile)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            self._session = tg.session(str(model), sess_options=options)
        finally:
            del os.environ["TRACEA_PROFILE"]
        self.profile = profile
        (node,) = calls_of(load(model))
        calls = (known.call for known in decode(node.plan).calls)
        sides = [call.attributes["tile"] for call in calls if "tile" in call.attributes]
        self.algorithm = {4: 3, 2: 2}.get(next(iter(sides), 0), 1)

    def run(self, x: Array) -> Array:
        found: Array = self._session.run(None, {"x": x})[0]
        return found

    def last_us(self) -> float:
        return read_runs(self.profile)[-1].ns / 1e3


def _session(
    folder: Path, nodes: list[Any], weights: dict[str, Array], x: Sequence[int], y: Sequence[int]
) -> _Session:
    folder.mkdir()
    graph = helper.make_graph(
        nodes, "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "layer.onnx")
    out = folder / "result.onnx"
    tg.optimize(folder / "layer.onnx", tg.Options(keep="all", output=out, verify=False))
    return _Session(out, folder / "profile")


def _paired(
    session: _Session,
    x: Array,
    call: Callable[[], None],
    once: Callable[[], None],
    y: Array,
    pairs: int,
) -> tuple[list[float], list[float], float]:
    """Return µs of the program's calls and of the prepared call, and a one-shot call's median."""
    program, calls, onces = list[float](), list[float](), list[float]()
    expected = session.run(x)
    for turn in range(pairs + 3):
        session.run(x)
        inside = session.last_us()
        own = _timed(call)
        single = _timed(once)
        if turn >= 3:
            program.append(inside)
            calls.append(own)
            onces.append(single)
    call()
    assert np.abs(y - expected).max() <= 1e-3 * np.abs(expected).max()
    return program, calls, min(onces)


def _timed(call: Callable[[], None]) -> float:
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e3


if __name__ == "__main__":
    main()
