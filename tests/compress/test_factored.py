"""Two factors for filters, tables and the matrix of a tied head: error known, shown, held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from tests.graphs import Net
from tests.tiny import answers
from tracea_graph import Options, Report, api

pytestmark = pytest.mark.usefixtures("highest_level")

Array = npt.NDArray[Any]
C, FILTERS, SIDE = 128, 128, 12
VOCABULARY, WIDTH, TOKENS = 320, 96, 24


def decaying(k: int, n: int, seed: int = 0) -> Array:
    """A matrix whose singular values fall off quickly."""
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.standard_normal((d, min(k, n))))[0] for d in (k, n))
    return ((u * np.exp(-np.arange(min(k, n)) / 12)) @ v.T * 4).astype(np.float32)


def pictures(sets: int, seed: int) -> Array:
    """Channels that hang together."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(9).standard_normal((C, C)) * np.exp(-np.arange(C) / 20)
    found = np.einsum("snhwc,dc->sndhw", rng.standard_normal((sets, 4, SIDE, SIDE, C)), mixing)
    return (found / 4).astype(np.float32)


def convolution(path: Path, kernel: int, stride: int, norm: bool) -> Path:
    """A convolution with a bias, and a batch normalisation behind it if asked."""
    net, rng = Net(), np.random.default_rng(3)
    filters = decaying(C * kernel**2, FILTERS).T.reshape(FILTERS, C, kernel, kernel)
    net.weights["b"] = rng.standard_normal(FILTERS).astype(np.float32)
    sides: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
    x = net.input("x", "batch", C, SIDE, SIDE)
    y = net("Conv", x, filters, "b", pads=[kernel // 2] * 4, name="conv", **sides)
    if norm:
        figures = ("scale", "shift", "mean", "variance")
        net.weights |= {n: rng.random(FILTERS, np.float32) + np.float32(0.5) for n in figures}
        y = net("BatchNormalization", y, *figures, name="norm")
    return net.save(path, net("Identity", y, name="y"))


def options(folder: Path, **more: Any) -> Options:
    settings: dict[str, Any] = {"low_rank": 1.0, "max_error": 0.1, "keep": "all", **more}
    return Options(data=folder / "seen.npz", threads=(1,), **settings)


def change(report: Report, feeds: Array) -> tuple[Array, Array]:
    """What a result answers through its library, less what the original does; and that."""
    (found,), (wanted,) = (
        answers(Path(path), {"x": feeds}, library).values()
        for path, library in ((report.output, Path(report.library or "")), (report.input, None))
    )
    return found - wanted, wanted


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("kernel", "stride", "norm"), [(3, 1, False), (3, 2, True), (1, 1, True), (1, 2, False)]
)
def test_the_error_of_filters_is_known(
    tmp_path: Path, kernel: int, stride: int, norm: bool
) -> None:
    """Predicted from what the convolution writes, and so measured through its kernels."""
    model = convolution(tmp_path / "net.onnx", kernel, stride, norm)
    np.savez(tmp_path / "seen.npz", x=pictures(1, 0))
    np.savez(tmp_path / "held.npz", x=pictures(1, 1))
    report = api.optimize(model, options(tmp_path, holdout=tmp_path / "held.npz"))
    (row,) = report.compressed
    assert row.kept and row.layer == "conv" and row.kept_share < 0.8
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    bias = stored["b"].astype(np.float64)
    if norm:
        scale = stored["scale"] / np.sqrt(stored["variance"] + 1e-5)
        bias = (bias - stored["mean"]) * scale + stored["shift"]
    for seed, expected in ((0, row.predicted), (1, row.holdout_error)):
        delta, wanted = change(report, pictures(1, seed)[0])
        linear = wanted - bias.reshape(-1, 1, 1)
        relative = np.linalg.norm(delta) / np.linalg.norm(linear)
        assert relative == pytest.approx(expected, rel=0.02)


def tokens(sets: int, seed: int) -> Array:
    """Ids, some of them much more often than others."""
    rng = np.random.default_rng(seed)
    drawn = rng.exponential(VOCABULARY / 8, (sets, 4, TOKENS))
    return np.minimum(drawn, VOCABULARY - 1).astype(np.int64)


def language(path: Path, head: str) -> Path:
    """A look-up, and behind a ReLU a product by nothing, another matrix or the turned table."""
    net = Net()
    table = net.const(decaying(VOCABULARY, WIDTH))
    y = net("Gather", table, net.ids("x", "batch", TOKENS), name="look")
    if head:
        own = decaying(WIDTH, 256, 1)
        w = net.const(own) if head == "own" else net("Transpose", table, perm=[1, 0])
        y = net("MatMul", net("Relu", y), w, name="head")
    return net.save(path, y)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("head", "layers"), [("", ["look"]), ("own", ["head", "look"]), ("tied", ["head"])]
)
def test_tables_and_heads(tmp_path: Path, head: str, layers: list[str]) -> None:
    """A table others read too stays whole; its product may still go by two factors."""
    model = language(tmp_path / "net.onnx", head)
    np.savez(tmp_path / "seen.npz", x=tokens(40, 0))
    report = api.optimize(model, options(tmp_path))
    assert [row.layer for row in report.compressed] == layers
    assert all(row.kept and row.kept_share < 0.9 for row in report.compressed)
    delta, wanted = change(report, tokens(1, 5)[0])
    assert 0 < np.abs(delta).max() < 0.2 * np.abs(wanted).max()
    if not head:
        before, after = (Path(p).stat().st_size for p in (report.input, report.output))
        assert after < 0.8 * before
