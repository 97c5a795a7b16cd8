"""Results depend neither on threads nor, for a transformer, on what else is in the batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net, normal
from tests.highest import highest_level
from tests.tiny import answers, padded_text, transformer
from tracea_graph import Options, api
from tracea_graph.kernels.cpu.isa_levels import host_levels

pytestmark = pytest.mark.compiler
LEVELS = host_levels("bf16")
WIDE, TILES = any("bf16" in name for name in LEVELS), "amxbf16" in LEVELS
PRECISIONS = ["fp32", *(["bf16", "int16"] if WIDE else []), *(["bf16x2"] if TILES else [])]
BATCH, LENGTH = 8, 67
COUNTS = (1, 2, 5, 16)
MORE_COUNTS = (*COUNTS, 3, 8, 32)


@pytest.fixture(scope="module", autouse=True)
def many_processors() -> Iterator[None]:
    """Let programs divide work among all threads, on machines with few processors too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEA_PROCESSORS", str(max(MORE_COUNTS)))
        yield


@pytest.fixture(scope="module", params=PRECISIONS)
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    original = transformer(tmp_path_factory.mktemp(request.param))
    options = Options(keep="all", precision=request.param, verify=False)
    with highest_level(float32=True):  # results run at no other
        return Path(api.optimize(original, options).output)


def run(result: Path, feeds: dict[str, np.ndarray], threads: int) -> list[np.ndarray]:
    got = answers(result, feeds, result.with_suffix(".so"), threads=threads)
    return list(got.values())


def test_threads_change_no_bit(result: Path) -> None:
    for batch, length in ((BATCH, LENGTH), (1, 128), (1, 1), (3, 16)):
        feeds = padded_text(batch, length)
        one, *others = (run(result, feeds, threads) for threads in COUNTS)
        for other in others:
            for got, want in zip(other, one, strict=True):
                np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


def test_groups_of_processors_change_no_bit(result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = padded_text(3, 16)
    one = run(result, feeds, 1)
    monkeypatch.setenv("TRACEA_GROUPS", "0/1")
    for threads in (5, 16):
        for got, want in zip(run(result, feeds, threads), one, strict=True):
            np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


def test_the_place_in_a_batch_changes_no_bit(result: Path) -> None:
    feeds = padded_text(BATCH, LENGTH)
    turned = {name: np.roll(array, 3, axis=0) for name, array in feeds.items()}
    for got, want in zip(run(result, turned, 2), run(result, feeds, 2), strict=True):
        np.testing.assert_array_equal(got, np.roll(want, 3, axis=0))


def test_a_batch_gives_what_each_of_it_gives_alone(result: Path) -> None:
    feeds = padded_text(BATCH, LENGTH)
    together = run(result, feeds, 2)
    for i in (0, BATCH - 1):
        alone = run(result, {name: array[i : i + 1] for name, array in feeds.items()}, 1)
        for got, want in zip(alone, together, strict=True):
            np.testing.assert_array_equal(got[0], want[i])


def inverted_residuals() -> Net:
    """A first layer and two inverted residuals, of which one keeps its size."""
    net = Net()

    def convolved(x: str, inputs: int, outputs: int, size: int, **attrs: int) -> str:
        stride, group = attrs.get("stride", 1), attrs.get("group", 1)
        w = net.const(normal(outputs, inputs // group, size, size, seed=len(net.nodes)))
        return net("Conv", x, w, net.weight(outputs), kernel_shape=[size, size], group=group,
                   strides=[stride, stride], pads=[size // 2] * 4)  # fmt: skip

    def residual(x: str, inputs: int, outputs: int, stride: int) -> str:
        wide = 6 * inputs
        expanded = net("Relu", convolved(x, inputs, wide, 1))
        between = net("Relu", convolved(expanded, wide, wide, 3, stride=stride, group=wide))
        y = convolved(between, wide, outputs, 1)
        return net("Add", x, y) if stride == 1 else y

    x = net("Relu", convolved(net.input("x", "n", 3, 56, 56), 3, 32, 3, stride=2))
    net.graph(residual(residual(x, 32, 32, 1), 32, 48, 2))
    return net


SLOW = [pytest.param(p, marks=pytest.mark.slow) for p in PRECISIONS[1:] if p != "int16"]


@pytest.mark.parametrize("precision", ["fp32", *SLOW])
def test_threads_change_no_bit_of_convolutions(precision: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(inverted_residuals().model, path)
    with highest_level(float32=True):
        report = api.optimize(path, Options(keep="all", precision=precision, verify=False))
    for images in (1, 3):
        feeds = {"x": normal(images, 3, 56, 56, seed=images)}
        (one,), *others = (
            run(Path(report.output), feeds, threads) for threads in (*COUNTS, 3, 8, 32)
        )
        for (other,) in others:
            np.testing.assert_array_equal(other.view(np.int32), one.view(np.int32))
