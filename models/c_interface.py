"""Time the C interface: ``python -m models.c_interface``.

A program of one layer runs in ONNX Runtime, which times its kernel calls (``TRACEA_PROFILE``), in
turn with the prepared call of a stand-alone library, with the call that packs its weights, and,
where PyTorch is installed, with eager's.  All on one thread, by its processor time.  The table has
the least of each, since other processes only ever add time; ratios are medians of turns.  Calls
are timed from Python, which adds two microseconds to ours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tracea_graph as tg
from tracea_graph.commands.build_kernel_library import build_kernels
from tracea_graph.commands.production_telemetry import read_runs
from tracea_graph.kernels.cpu.plan_encoding import decode
from tracea_graph.native_library import Conv2dParams, NativeLibrary, view
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes
from tracea_graph.onnx_io.model_reader import load

__all__ = ["main"]

Array = np.ndarray[Any, Any]
Run = Callable[[], Any]
GEMMS = (
    (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (1, 768, 768), (1, 1000, 2048),
    (128, 384, 384), (128, 1536, 384), (128, 384, 1536),
)  # fmt: skip
"""M, N, K of BERT-base and its pooler, of the classifier of ResNet-50, and of MiniLM."""
CONVS = (
    (3, 224, 64, 7, 2),
    (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1),
    (256, 56, 128, 1, 1), (128, 56, 128, 3, 2), (128, 28, 512, 1, 1), (256, 56, 512, 1, 2),
    (512, 28, 128, 1, 1), (128, 28, 128, 3, 1),
    (512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (256, 14, 1024, 1, 1), (512, 28, 1024, 1, 2),
    (1024, 14, 256, 1, 1), (256, 14, 256, 3, 1),
    (1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 2048, 1, 1), (1024, 14, 2048, 1, 2),
    (2048, 7, 512, 1, 1), (512, 7, 512, 3, 1),
)  # fmt: skip
"""Channels, size, filters, kernel and stride of ResNet-50's layers."""
_COUNTS = (1, 1, 3, 4, 2, 1, 1, 4, 1, 3, 3, 1, 1, 6, 1, 5, 5, 1, 1, 3, 1, 2, 2)
"""How many layers of ResNet-50 each of :data:`CONVS` stands for."""
_HEAD = (
    "layer", "in a program, µs", "prepared, µs", "ratio", "packed in the call, µs", "eager, µs",
    "prepared over eager", "packed in the call over eager",
)  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """What runs in turn; ``inside`` returns the µs that the program's kernel calls took."""

    inside: Callable[[], float]
    prepared: Run
    packing: Run
    eager: Run | None


@dataclass(frozen=True)
class Times:
    """Least µs by contestant, and medians of the ratios of turns."""

    least: Mapping[str, float]
    ratios: Mapping[str, float]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--only", default="", help="layers whose label has this text")
    given = parser.parse_args(argv)
    eager = _torch()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = NativeLibrary(build_kernels(("gemm", "conv2d"), folder).path)
        library.set_threads(1)
        with_torch = f", PyTorch {eager.__version__}" if eager else ""
        print(f"{library.isa}, one thread, {given.pairs} pairs{with_torch}")
        print("| " + " | ".join(_HEAD) + " |\n|" + " --- |" * len(_HEAD))
        whole = list[tuple[int, Times]]()
        for i, size in enumerate(GEMMS):
            label = "gemm {}×{}×{}".format(*size)
            if given.only in label:
                _print(label, _raced(_gemm(library, folder / f"g{i}", *size, eager), given.pairs))
        for i, (layer, count) in enumerate(zip(CONVS, _COUNTS, strict=True)):
            label = "conv {}×{}² to {}, {}×{} / {}".format(*layer[:4], *layer[3:])
            if given.only in label:
                times = _raced(_conv(library, folder / f"c{i}", layer, eager), given.pairs)
                _print(label, times)
                whole.append((count, times))
        if whole:
            _print("convolutions of ResNet-50", _sum(whole))


def _torch() -> Any:
    """Return PyTorch on one thread, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    return torch


def _print(label: str, times: Times) -> None:
    least, ratios = times.least, times.ratios
    inside, prepared, packing = (f"{least[one]:.0f}" for one in ("inside", "prepared", "packing"))
    cells = [label, inside, prepared, f"{ratios['program']:.3f}", packing]
    if "eager" in least:
        cells.append(f"{least['eager']:.0f}")
        cells += [f"{ratios[one]:.2f}" for one in ("prepared", "packing")]
    print("| " + " | ".join(cells) + " |", flush=True)


def _sum(whole: Sequence[tuple[int, Times]]) -> Times:
    """Return the times of all layers, each as often as it is there."""
    least = {key: sum(n * t.least[key] for n, t in whole) for key in whole[0][1].least}
    ratios = {"program": least["prepared"] / least["inside"]}
    if "eager" in least:
        ratios |= {one: least["eager"] / least[one] for one in ("prepared", "packing")}
    return Times(least, ratios)


def _raced(layer: Layer, pairs: int) -> Times:
    """Run all contestants in turn."""
    found: dict[str, list[float]] = {"inside": [], "prepared": [], "packing": []}
    found |= {"eager": []} if layer.eager else {}
    runs = {"prepared": layer.prepared, "packing": layer.packing, "eager": layer.eager}
    names = list(found)
    for turn in range(pairs + 3):
        names.append(names.pop(0))  # none always runs behind the same other one
        for name in names:
            run = runs.get(name)
            us = _timed(run) if run else layer.inside()
            found[name] += [us] * (turn >= 3)

    def ratio(a: str, b: str) -> float:
        return statistics.median(x / y for x, y in zip(found[a], found[b], strict=True))

    ratios = {"program": min(found["prepared"]) / min(found["inside"])}
    if layer.eager:
        ratios |= {one: ratio("eager", one) for one in ("prepared", "packing")}
    return Times({key: min(times) for key, times in found.items()}, ratios)


def _normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def _gemm(library: NativeLibrary, folder: Path, m: int, n: int, k: int, torch: Any) -> Layer:
    x, w, bias = _normal(m, k), _normal(k, n), _normal(n)
    y = np.empty((m, n), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("Add", ["s", "b"], ["y"]),
    ]
    session = _session(folder, nodes, {"w": w, "b": bias}, x.shape, y.shape)
    prepared = library.prepare_gemm(view(w), view(bias))
    vx, vy, vw, vb = view(x), view(y), view(w), view(bias)
    eager: Run | None = None
    if torch:
        tx, tw, tb = (torch.from_numpy(a) for a in (x, np.ascontiguousarray(w.T), bias))
        eager = lambda: torch.nn.functional.linear(tx, tw, tb)  # noqa: E731
    return _checked(
        session, x, y,
        Layer(session.last_us, lambda: prepared(vx, vy),
              lambda: library.gemm(vx, vw, vb, vy), eager),
    )  # fmt: skip


def _conv(
    library: NativeLibrary, folder: Path, layer: tuple[int, int, int, int, int], torch: Any
) -> Layer:
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
    eager: Run | None = None
    if torch:
        tx, tw, tb = (torch.from_numpy(a) for a in (x, w, bias))
        eager = lambda: torch.nn.functional.conv2d(tx, tw, tb, stride, pad)  # noqa: E731
    return _checked(
        session, x, y,
        Layer(session.last_us, lambda: prepared(vx, vy),
              lambda: library.conv2d(vx, vw, vb, vy, params), eager),
    )  # fmt: skip


def _checked(session: _Session, x: Array, y: Array, layer: Layer) -> Layer:
    """Compare results, and let ``inside`` run the session."""
    expected = session.run(x)
    made = [y.copy() for run in (layer.prepared, layer.packing) if run() is None]
    made += [layer.eager().numpy()] if layer.eager else []
    for one in made:
        assert np.abs(one - expected).max() <= 1e-3 * np.abs(expected).max()

    def inside() -> float:
        session.run(x)
        return session.last_us()

    return Layer(inside, layer.prepared, layer.packing, layer.eager)


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
        (node,) = custom_op_nodes(load(model))
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


def _timed(call: Run) -> float:
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e3


if __name__ == "__main__":
    main()
