"""Nets whose work stands in branches and loops: ``python -m models.control_flow [-o DIR]``.

* ``if-vad``: a voice detector after Silero VAD: an If chooses one of two nets by the sampling
  rate, each of a Fourier transform by convolution, four convolutions and an LSTM of 128 units.
* ``loop-lstm``: an LSTM of 128 units over rows of 64 numbers, its equations in a Loop.
* ``loop-lstm-batch``: the same with a batch of any size, here of 4.
* ``scan-gru``: a GRU of 128 units in the same way, in a Scan.

Weights are random and of the scale of trained ones.  ``NAME.npz`` beside each has inputs: 512
samples, 200 rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import ModelProto, TensorProto, numpy_helper

__all__ = ["MODELS", "main", "write"]

_HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
_BRANCH = """{name} () => (float[1, 1] speech, float[1, 1, 128] h1, float[1, 1, 128] c1) {{
    image = Unsqueeze(samples, one)
    padded = Pad <mode = "reflect"> (image, {name}_ends)
    waves = Conv <strides = [{step}]> (padded, {name}_fourier)
    re, im = Split <axis = 1> (waves, halves)
    re2 = Mul(re, re)  im2 = Mul(im, im)  power = Add(re2, im2)  a0 = Sqrt(power)
    b1 = Conv <pads = [1, 1]> (a0, {name}_w1, {name}_b1)  a1 = Relu(b1)
    b2 = Conv <pads = [1, 1], strides = [2]> (a1, {name}_w2, {name}_b2)  a2 = Relu(b2)
    b3 = Conv <pads = [1, 1], strides = [2]> (a2, {name}_w3, {name}_b3)  a3 = Relu(b3)
    b4 = Conv <pads = [1, 1]> (a3, {name}_w4, {name}_b4)  a4 = Relu(b4)
    rows = Transpose <perm = [2, 0, 1]> (a4)
    all, h1, c1 = LSTM <hidden_size = 128> (rows, {name}_w, {name}_r, {name}_b, , h, c)
    last = Squeeze(h1, zero)  seen = Relu(last)
    score = Gemm(seen, {name}_out, bias)  speech = Sigmoid(score)
}}"""
_VAD = """vad (float[1, n] samples, float[1, 1, 128] h, float[1, 1, 128] c, bool wide)
    => (float[1, 1] score, float[1, 1, 128] h2, float[1, 1, 128] c2) {{
    score, h2, c2 = If(wide) <then_branch = {high}, else_branch = {low}>
}}"""
_LSTM = """lstm (float[t, 1, 64] rows, float[1, 128] h, float[1, 128] c)
    => (float[t, 1, 128] all, float[1, 128] h2, float[1, 128] c2) {
    dims = Shape(rows)  times = Gather(dims, zero)
    h2, c2, all = Loop(times, yes, h, c) <body = cell
        (int64 i, bool go, float[1, 128] h0, float[1, 128] c0)
        => (bool on, float[1, 128] h1, float[1, 128] c1, float[1, 128] row1) {
        on = Identity(go)  x = Gather(rows, i)
        a = MatMul(x, w)  b = MatMul(h0, r)  s = Add(a, b)  gates = Add(s, bias)
        gi, go2, gf, gc = Split <axis = 1> (gates)
        si = Sigmoid(gi)  so = Sigmoid(go2)  sf = Sigmoid(gf)  tc = Tanh(gc)
        old = Mul(sf, c0)  new = Mul(si, tc)  c1 = Add(old, new)
        seen = Tanh(c1)  h1 = Mul(so, seen)  row1 = Identity(h1) }>
}"""
_GRU = """gru (float[200, 1, 64] rows, float[1, 128] h)
    => (float[1, 128] h2, float[200, 1, 128] all) {
    h2, all = Scan <num_scan_inputs = 1, body = cell (float[1, 128] h0, float[1, 64] x)
        => (float[1, 128] h1, float[1, 128] row1) {
        a = MatMul(x, w)  xa = Add(a, bias)  xz, xr, xh = Split <axis = 1> (xa)
        b = MatMul(h0, r)  hz, hr, hh = Split <axis = 1> (b)
        z0 = Add(xz, hz)  z = Sigmoid(z0)  r0 = Add(xr, hr)  reset = Sigmoid(r0)
        part = Mul(reset, hh)  n0 = Add(xh, part)  n1 = Tanh(n0)
        rest = Sub(unit, z)  fresh = Mul(rest, n1)  kept = Mul(z, h0)
        h1 = Add(fresh, kept)  row1 = Identity(h1) }> (h, rows)
}"""

_SIZES = {"n": 512, "t": 200, "b": 4}
Weights = Mapping[str, np.ndarray]


def write(name: str, folder: Path) -> Path:
    """Write one of :data:`MODELS` as ``folder/NAME.onnx``, and inputs; return the model's path.

    Raises:
        KeyError: there is no such model.
    """
    path = folder / f"{name}.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    model = MODELS[name]()
    onnx.save(model, path)
    rng = np.random.default_rng(4)
    fed = {i.name: _input(rng, i)[None] for i in model.graph.input}
    np.savez(path.with_suffix(".npz"), **fed)  # type: ignore[arg-type]
    return path


def _input(rng: np.random.Generator, put: onnx.ValueInfoProto) -> np.ndarray:
    kind = put.type.tensor_type
    if kind.elem_type == TensorProto.BOOL:
        return np.array(True)
    shape = [dim.dim_value or _SIZES[dim.dim_param] for dim in kind.shape.dim]
    return rng.standard_normal(shape, np.float32)


def main(argv: Sequence[str] | None = None) -> int:
    """Write all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m models.control_flow", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("build"))
    folder = parser.parse_args(argv).output
    for name in MODELS:
        print(write(name, folder))
    return 0


def _vad() -> ModelProto:
    rng = np.random.default_rng(1)
    held: dict[str, np.ndarray] = {
        "zero": np.array([0]), "one": np.array([1]), "bias": np.zeros(1, np.float32),
    }  # fmt: skip
    texts = {}
    for name, window in (("high", 256), ("low", 128)):
        held |= {f"{name}_{key}": value for key, value in _net(rng, window).items()}
        bins = window // 2 + 1
        held[f"{name}_halves"] = np.array([bins, bins])
        text = _BRANCH.format(name=name, step=window // 2)
        texts[name] = text.replace("halves", f"{name}_halves")
    return _model(_VAD.format(**texts), held)


def _net(rng: np.random.Generator, window: int) -> dict[str, np.ndarray]:
    """Return the weights of one branch, whose transform has windows of so many samples."""
    bins, widths = window // 2 + 1, (128, 64, 64, 128)
    angle = 2 * np.pi * np.outer(np.arange(bins), np.arange(window)) / window
    waves = np.concatenate([np.cos(angle), -np.sin(angle)]) * np.hanning(window)
    found = {
        "ends": np.array([0, 0, 0, 0, 0, window // 4]), "fourier": waves[:, None] / window**0.5,
        "w": _drawn(rng, 1, 512, 128), "r": _drawn(rng, 1, 512, 128),
        "b": np.zeros((1, 1024)), "out": _drawn(rng, 128, 1),
    }  # fmt: skip
    for i, (inputs, outputs) in enumerate(zip((bins, *widths), widths, strict=False), 1):
        found |= {f"w{i}": _drawn(rng, outputs, inputs, 3), f"b{i}": np.zeros(outputs)}
    return {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in found.items()}


def _lstm(batch: str = "1") -> ModelProto:
    rng, text = np.random.default_rng(2), _LSTM
    for before, after in (("[1,", f"[{batch},"), ("t, 1,", f"t, {batch},")):
        text = text.replace(before, after)
    return _model(text, _cell(rng, 4) | {"zero": np.array(0), "yes": np.array(True)})


def _gru() -> ModelProto:
    return _model(_GRU, _cell(np.random.default_rng(3), 3) | {"unit": np.ones(1, np.float32)})


def _cell(rng: np.random.Generator, gates: int) -> dict[str, np.ndarray]:
    width = 128 * gates
    shapes = {"w": (64, width), "r": (128, width)}
    found = {name: _drawn(rng, *shape).astype(np.float32) for name, shape in shapes.items()}
    return found | {"bias": np.zeros(width, np.float32)}


def _drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape) / np.prod(shape[1:] or shape) ** 0.5


def _model(text: str, weights: Weights) -> ModelProto:
    model = onnx.parser.parse_model(_HEAD + text)
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
    onnx.checker.check_model(model)
    return model


MODELS = {
    "if-vad": _vad, "loop-lstm": _lstm, "loop-lstm-batch": lambda: _lstm("b"), "scan-gru": _gru,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
