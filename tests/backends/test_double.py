"""End-to-end tests of the GPU backend on a test double of the CUDA driver."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.make import make
from tests.backends.conformance import CLOSE, NETS, Conformance, kernels_run, perceptron
from tests.backends.double import DOUBLE, driver
from tests.graphs import Net, normal, session
from tests.tiny import error_between
from tracea_graph import Options, Report, api, target
from tracea_graph.config import AttentionWindow
from tracea_graph.errors import UsageError
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.kernels.gpu.kernel_selection import kernels_of
from tracea_graph.kernels.gpu.lowering import image_halves
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.planning import Planner

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("double_backend")]
HALF = 1e-2
HERE = Options(target="double:sm_90", keep="all")
RUNNER = Path(__file__).with_name("gpu_session.py")
Feeds = dict[str, dict[str, Any]]


class TestDouble(Conformance):
    target = "double:sm_90"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Report of a perceptron optimized for the driver double."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "BACKENDS", (*target.BACKENDS, DOUBLE))
        patch.setenv("LD_LIBRARY_PATH", str(driver()))
        return api.optimize(perceptron(tmp_path_factory.mktemp("m") / "m.onnx"), HERE)


def run(
    report: Report, feeds: Feeds, folder: Path, environment: dict[str, str] | None = None,
    **wishes: int,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Run a result in a subprocess and return its outputs and the subprocess's JSON.

    ``environment`` is added to the current environment.
    """
    given = folder / "in.npz"
    np.savez(given, **{f"{r}/{n}": a for r, feed in feeds.items() for n, a in feed.items()})
    out = folder / "out.npz"
    command = [sys.executable, str(RUNNER), report.output, str(report.library), str(given),
               str(out), json.dumps(wishes)]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(np.load(out)), json.loads(done.stdout)


def rows(*counts: int) -> Feeds:
    return {f"{i}": {"x": normal(n, 24)} for i, n in enumerate(counts)}


def wanted(report: Report, feeds: Feeds) -> dict[str, Any]:
    """Return the original model's outputs."""
    plain = session(report.input)
    names = [one.name for one in plain.get_outputs()]
    return {r: dict(zip(names, plain.run(None, feed), strict=True)) for r, feed in feeds.items()}


def close(report: Report, found: dict[str, Any], feeds: Feeds, most: float = CLOSE) -> bool:
    for label, expected in wanted(report, feeds).items():
        own = {k.split("/", 1)[1]: v for k, v in found.items() if k.split("/")[0] == label}
        if any(v.size for v in own.values()) and error_between(own, expected) >= most:
            return False
    return found.keys() == {f"{r}/{n}" for r in feeds for n in wanted(report, feeds)[r]}


def test_a_perceptron_is_one_program(made: Report) -> None:
    assert (made.outcome, made.status, made.levels) == ("improved", "passed", ("sm_90a",))
    assert kernels_run(made, {"x": np.ones((3, 24), np.float32)}) == made.kernels == 1
    assert made.nodes_after == 1
    assert made.error is not None and made.error < CLOSE


def test_runs_of_any_sizes_in_any_order(made: Report, tmp_path: Path) -> None:
    """Sizes seen twice are captured as CUDA graphs; test more sizes than are kept, and size 0."""
    feeds = rows(3, 3, 3, 1, 0, 7, 65, 2, *range(10, 45), 3, 1)
    found, told = run(made, feeds, tmp_path)
    assert not told["error"] and told["replays"] >= 2
    assert close(made, found, feeds)
    assert told["live"] == 0, "memory of the device is not given back"


def test_runs_at_the_same_time(made: Report, tmp_path: Path) -> None:
    feeds = rows(3, 5, 3, 5, 3)
    found, told = run(made, feeds, tmp_path, threads=6)
    assert not told["error"] and told["wrong"] == 0
    assert close(made, found, feeds)


def test_sessions_come_and_go(made: Report, tmp_path: Path) -> None:
    found, told = run(made, rows(2, 2), tmp_path, sessions=20)
    assert not told["error"] and told["live"] == 0
    assert close(made, found, rows(2, 2))


def test_a_damaged_kernel_is_refused_with_a_reason(made: Report, tmp_path: Path) -> None:
    """Kernels lie in the library as zlib streams; one wrong byte in each must not be run."""
    assert made.library
    data, images = bytearray(Path(made.library).read_bytes()), 0
    for found in re.finditer(rb"\x78\x9c", bytes(data)):
        reader = zlib.decompressobj()
        with contextlib.suppress(zlib.error):
            image = reader.decompress(bytes(data[found.start() :]))
            if reader.eof and image.startswith(b"\x7fELF"):
                data[len(data) - len(reader.unused_data) - 100] ^= 8
                images += 1
    assert images
    (tmp_path / "damaged.so").write_bytes(data)
    damaged = replace(made, library=str(tmp_path / "damaged.so"))
    _, told = run(damaged, rows(3), tmp_path)
    assert "The library is damaged: it does not hold the kernel tracea_" in told["error"]


def test_the_report_says_which_driver_runs_the_kernels(made: Report) -> None:
    (note,) = [note for note in made.notes if "driver" in note]
    assert note == "the GPU kernels need an NVIDIA driver for CUDA 12.0 or newer"


WITHOUT = {
    "no driver": ({}, "libcuda.so.1 is missing"),
    "told to use the CPU": ({"TRACEA_DEVICE": "cpu"}, "TRACEA_DEVICE"),
    "no device": ({"DOUBLE_DEVICES": "0"}, "There is no GPU 0"),
    "no such device": ({"TRACEA_CUDA_DEVICE": "3"}, "There is no GPU 3; this machine shows 1."),
    "no number": ({"TRACEA_CUDA_DEVICE": "first"}, "'first', but must be the number of a GPU"),
    "another architecture": ({"DOUBLE_CAPABILITY": "75"}, "7.5"),
    "an old driver": (
        {"DOUBLE_DRIVER": "11080"},
        "is for CUDA 11.8; kernels need one for CUDA 12.0",
    ),
}


@pytest.mark.parametrize("why", WITHOUT)
def test_without_a_gpu_to_use_bodies_run(made: Report, tmp_path: Path, why: str) -> None:
    environment, says = WITHOUT[why]
    if why == "no driver":  # nor one of this machine behind it
        (tmp_path / "libcuda.so.1").touch()
        environment = {"LD_LIBRARY_PATH": str(tmp_path)}
    feeds = rows(3, 5)
    found, told = run(made, feeds, tmp_path, environment)
    assert says in told["refusal"] and not told["error"]
    assert told["launches"] == 0
    assert close(made, found, feeds)


def test_full_edges_give_the_same_bits(made: Report, tmp_path: Path) -> None:
    feeds = rows(3, 3, 3)
    found, _ = run(made, feeds, tmp_path)
    other, told = run(made, feeds, tmp_path, {"TRACEA_CUDA_EDGES": "full"})
    assert told["replays"] and all(np.array_equal(other[k], v) for k, v in found.items())


@pytest.mark.parametrize("launch", [1, 2])
def test_a_launch_that_fails_is_a_status(made: Report, tmp_path: Path, launch: int) -> None:
    _, told = run(made, rows(3), tmp_path, fail=launch)
    assert "The GPU's driver could not start a kernel" in told["error"]
    # nothing hangs or aborts, and everyone hears why: this session and the next one
    for said in (told["again"], told["anew"]):
        assert "could not go on since a kernel or the GPU failed" in said


def test_a_full_device_is_a_status(made: Report, tmp_path: Path) -> None:
    found, told = run(made, rows(3), tmp_path, {"DOUBLE_MEMORY": "6000"})
    assert "The GPU has no" in told["error"] and "left" in told["error"] and not found


def test_every_session_has_the_gpu_that_was_named_when_it_opened(
    made: Report, tmp_path: Path
) -> None:
    feeds = rows(3, 3, 3)
    found, told = run(made, feeds, tmp_path, {"DOUBLE_DEVICES": "2"}, sessions=4, devices=2)
    assert not told["error"] and close(made, found, feeds)
    first, second, *others = told["launches_on"]
    assert first == second > 0 and not any(others)
    assert told["live"] == 0


def test_a_forked_process_hears_why_it_cannot_run(made: Report, tmp_path: Path) -> None:
    _, told = run(made, rows(3), tmp_path, fork=1)
    assert not told["error"] and "was forked from one that uses the GPU" in told["forked"]


def test_an_input_of_another_size_is_a_status(made: Report, tmp_path: Path) -> None:
    _, told = run(made, {"0": {"x": normal(3, 25)}}, tmp_path)
    assert "25" in told["error"] or "24" in told["error"]


OFTEN = {
    ("groups", "bf16"),
    *((name, "fp16") for name in NETS if name != "pasted"),
}  # fmt: skip
"""Cases that run by default; the others use kernels of the same families, and the conformance
tests run every net in fp32.
"""


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param(n, p, marks=[] if (n, p) in OFTEN else [pytest.mark.slow])
        for n in NETS for p in ("fp32", "fp16", "bf16")
    ],
)  # fmt: skip
def test_programs_compute_what_models_mean(tmp_path: Path, name: str, precision: str) -> None:
    net = Net()
    path = net.save(tmp_path / "m.onnx", NETS[name](net))
    most = {"fp32": CLOSE, "fp16": HALF, "bf16": 8 * HALF}[precision]
    options = Options(target="double:sm_90", keep="all", precision=precision, max_error=most)
    report = api.optimize(path, options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    if name != "pasted":  # whose sizes are computed at run time
        assert report.nodes_after == report.kernels == 1
    assert (report.error or 0) > CLOSE or precision == "fp32" or name == "moved"


@pytest.mark.parametrize(("axis", "kept"), [(-1, 0), (1, 1)])
def test_places_of_the_largest(tmp_path: Path, axis: int, kept: int) -> None:
    net = Net()
    y = net("MatMul", net.input("x", "batch", 6, 8), net.weight(8, 40))
    y = net("ArgMax", net("Tanh", y), axis=axis, keepdims=kept)
    report = api.optimize(net.save(tmp_path / "m.onnx", y), HERE)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1


def test_what_it_lacks_is_told(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", "batch", 40)
    hidden = net("MatMul", net("Relu", x), net.weight(40, 32))
    y = net("Det", net("Reshape", hidden, np.array([0, 2, 4, 4])))
    path = net.save(tmp_path / "m.onnx", net("MatMul", y, net.weight(2, 8)))
    report = api.optimize(path, HERE)
    reasons = {row.reason.partition(" (at")[0] for row in report.rules if row.verdict == "missed"}
    assert report.status == "passed" and reasons


def test_a_transformer_with_its_embeddings(tmp_path: Path) -> None:
    """The model computes masks and positions from the sequence length."""
    report = api.optimize(make("tiny-bert", tmp_path), HERE)
    assert (report.outcome, report.status) == ("improved", "passed")
    assert report.kernels == report.nodes_after == 1


@pytest.mark.parametrize("causal", [0, 1])
def test_onnx_attention_is_one_kernel(causal: int, tmp_path: Path) -> None:
    """Its rule for queries without keys asks for nothing where every query has one."""
    net = Net(23)
    q, k, v = (net.input(name, 1, 2, 20, 16) for name in "qkv")
    path = net.save(tmp_path / "m.onnx", net("Attention", q, k, v, is_causal=causal))
    report = api.optimize(path, replace(HERE, precision="fp16", max_error=HALF))
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert "_attention_d16" in _symbols(path, "fp16")


@pytest.mark.slow  # 128 rows in the host dialect
def test_norms_are_part_of_the_products_behind_them(tmp_path: Path) -> None:
    """Only the last norm, whose result leaves the model, is computed alone."""
    path = make("tiny-bert", tmp_path)
    options = replace(HERE, precision="fp16", max_error=HALF)
    report = api.optimize(path, options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.kernels == report.nodes_after == 1
    symbols = _symbols(path, "fp16").split()
    assert any("few64_nk_layer" in one for one in symbols)
    assert sum("_norm_" in one for one in symbols) == 1


def normed(net: Net) -> str:
    """Build two layers: norms between products, whose results are added again."""
    x = net.input("x", "batch", 40, 128)
    for _ in "ab":
        hidden = net("Relu", net("Add", net("MatMul", x, net.weight(128, 192)), net.weight(192)))
        y = net("Add", net("MatMul", hidden, net.weight(192, 128)), net.weight(128))
        y = net("Add", y, x)
        x = net("LayerNormalization", y, net.weight(128), net.weight(128), axis=-1)
    return x


@pytest.mark.slow  # 400 rows in the host dialect
def test_norms_of_many_rows_are_part_of_the_products_behind_them(tmp_path: Path) -> None:
    """Sums of rows pass between products of 400 rows; those of 40 and 360 take them from x."""
    net = Net()
    path = net.save(tmp_path / "m.onnx", normed(net))
    options = replace(HERE, precision="fp16", max_error=HALF, shapes=({"batch": 10},))
    report = api.optimize(path, options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.kernels == report.nodes_after == 1
    symbols = _symbols(path, "fp16", batch=10).split()
    assert any("_summed_" in one for one in symbols)
    assert {one.split("_")[2] for one in symbols if "_nk_layer_" in one} == {
        "wgmma", "few128", "gemm"}  # fmt: skip
    assert sum("_norm_" in one for one in symbols) == 1
    feeds = {f"{i}": {"x": normal(n, 40, 128)} for i, n in enumerate((10, 1, 9, 10))}
    found, told = run(report, feeds, tmp_path)
    assert not told["error"] and close(report, found, feeds, HALF)


def test_a_matrix_of_low_rank_is_two_products(tmp_path: Path) -> None:
    net, low = Net(), normal(256, 3, seed=1) @ normal(3, 256, seed=2)
    y = net("MatMul", net.input("x", "rows", 256), low)
    report = api.optimize(net.save(tmp_path / "m.onnx", net("Relu", y)), HERE)
    assert report.status == "passed" and report.nodes_after == 1
    assert any(r.rule == "low-rank-exact" and r.verdict == "applied" for r in report.rules)


def test_a_window_that_was_asked_for_reaches_the_kernel(tmp_path: Path) -> None:
    options = replace(HERE, windows=(AttentionWindow(8),))
    model = load(make("tiny-bert", tmp_path))
    planner = Planner(model.graph, options, {"batch": 1, "sequence": 64},
                      target.target_of(HERE.target, "fp32"))  # fmt: skip
    (item,) = planner.assembled(planner.plan)[0].placed
    found = [c for c in item.program.calls if c.op == "attention"]
    assert found and all(c.attributes["window_left"] == 4 for c in found)


def test_names_of_targets() -> None:
    levels = {name: target.target_of(name, "fp32").levels for name in ("cuda:sm_90", "cuda:sm_80")}
    assert levels == {"cuda:sm_90": ("sm_90a",), "cuda:sm_80": ("sm_80",)}
    with pytest.raises(UsageError, match="there is no target 'cuda:sm_12'"):
        target.target_of("cuda:sm_12", "fp32")
    assert target.resolve_precision("cuda:sm_75", "bf16")[0] == "fp32"
    settled, notes = target.resolve_precision("cuda:sm_90", "fp16")
    assert settled == "fp16" and all("neither run nor timed" in note for note in notes)
    assert target.resolve_precision("cpu:avx2", "fp16")[0] == "fp32"


def deep(net: Net) -> str:
    """Build a split-K MatMul with few rows, followed by bias, residual and norm."""
    x = net.input("x", "batch", 7, 384)
    hidden = net("Relu", net("Add", net("MatMul", x, net.weight(384, 768)), net.weight(768)))
    y = net("Add", net("MatMul", hidden, net.weight(768, 384)), net.weight(384))
    y = net("Add", y, x)
    return net("LayerNormalization", y, net.weight(384), net.weight(384), axis=-1)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_sums_of_parts_of_the_depth(tmp_path: Path, precision: str) -> None:
    net = Net()
    path = net.save(tmp_path / "m.onnx", deep(net))
    most = {"fp32": CLOSE, "fp16": HALF}[precision]
    options = Options(target="double:sm_90", keep="all", precision=precision, max_error=most)
    report = api.optimize(path, options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1
    parts = {"fp32": "batch1", "fp16": "_few768_nk_bias_"}[precision]
    assert report.kernels == 1 and parts in _symbols(path, precision)


def improved_in_fp16(
    build: Callable[[Net], str], folder: Path, shapes: Sequence[dict[str, int]] = ()
) -> tuple[Path, Report]:
    """Optimize a net for the driver double in half precision; return its file and the report."""
    net = Net()
    path = net.save(folder / "m.onnx", build(net))
    options = Options(target="double:sm_90", keep="all", precision="fp16", max_error=HALF,
                      shapes=tuple(shapes))  # fmt: skip
    report = api.optimize(path, options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    return path, report


def few(net: Net) -> str:
    """Build a convolution and a Gemm with few tiles and a long depth."""
    x = net.input("x", "batch", 64, 6, 5)
    y = net("Conv", x, net.weight(64, 64, 3, 3), net.weight(64), pads=[1, 1, 1, 1])
    return net("Gemm", net("Flatten", net("Relu", y)), net.weight(1920, 70), net.weight(70))


@pytest.mark.slow  # 20 s of compiling
def test_blocks_share_the_depth_by_the_sizes_of_a_run(tmp_path: Path) -> None:
    """A matmul and a convolution of few rows; no launch clears counters for them."""
    path, report = improved_in_fp16(few, tmp_path)
    symbols = _symbols(path, "fp16")
    assert "_few1920_nk_bias_" in symbols and "_fewconv_bias_" in symbols
    assert "_cut_" not in symbols
    feeds = {f"{i}": {"x": normal(n, 64, 6, 5)} for i, n in enumerate((1, 1, 1, 3, 1))}
    found, told = run(report, feeds, tmp_path)
    assert not told["error"] and told["replays"] and close(report, found, feeds, HALF)


def test_concurrent_runs_take_tiles_that_occupy_a_gpu_least(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The library holds the kernel of a tile that is chosen after the plan was made."""
    monkeypatch.setattr(DOUBLE, "schedule_space", GPU.schedule_space)
    net = Net()
    y = net("Gemm", net.input("x", 64, 128), net.weight(128, 960), net.weight(960))
    options = replace(HERE, precision="fp16", max_error=HALF, concurrent_runs=8)
    report = api.optimize(net.save(tmp_path / "m.onnx", y), options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.library
    assert re.search(rb"_few128_\w+_64x96x1__", Path(report.library).read_bytes())
    feeds = {f"{i}": {"x": normal(64, 128)} for i in range(3)}
    found, told = run(report, feeds, tmp_path)
    assert not told["error"] and told["replays"] and close(report, found, feeds, HALF)


def _symbols(path: Path, precision: str, batch: int = 1) -> str:
    """Return the names of all kernels of a model's programs."""
    graph = load(path).graph
    graph.bindings = {"batch": batch}
    options = Options(target="double:sm_90", keep="all", precision=precision)
    plan = Planner(
        graph, options, {"batch": batch}, target.target_of(options.target, "fp32")
    ).plan()
    programs = (DOUBLE.lower(plan.graph, r) for r in plan.graph.regions() if r.fused)
    calls = (call for program in programs for call in program.calls)
    return " ".join(name for call in calls for name in kernels_of(call))


def tall(net: Net) -> str:
    """Build two products of many rows, of which the first depends on constants alone."""
    x = net.input("x", "batch", 48, 136)
    w = net("MatMul", net.weight(400, 136), net.weight(136, 200))
    y = net("MatMul", net("Relu", net("MatMul", x, net.weight(136, 400))), w)
    return net("Add", y, net.weight(200))


def broad(net: Net) -> str:
    """Build two convolutions whose pixels are more than 384 in three images."""
    x = net.input("x", "batch", 64, 23, 24)
    y = net("Conv", x, net.weight(64, 64, 3, 3), net.weight(64), pads=[1, 1, 1, 1], strides=[2, 2])
    y = net("Conv", net("Relu", y), net.weight(72, 64, 3, 3), net.weight(72), pads=[1, 1, 1, 1])
    return net("Relu", y)


@pytest.mark.slow  # 20 s of compiling
def test_many_pixels_are_convolved_by_warpgroups(tmp_path: Path) -> None:
    path, report = improved_in_fp16(broad, tmp_path)
    assert _symbols(path, "fp16").count("_wgconv_") >= 2
    feeds = {f"{i}": {"x": normal(n, 64, 23, 24)} for i, n in enumerate((1, 3, 3, 0, 1))}
    found, told = run(report, feeds, tmp_path)
    assert not told["error"] and told["replays"] and close(report, found, feeds, HALF)


def volumes(net: Net) -> str:
    """Build two convolutions over three axes, the first of which halves them."""
    x = net.input("x", "batch", 64, 6, 9, 8)
    y = net("Conv", x, net.weight(64, 64, 3, 3, 3), net.weight(64), pads=[1] * 6, strides=[2] * 3)
    y = net("Conv", net("Relu", y), net.weight(72, 64, 3, 3, 3), net.weight(72), pads=[1] * 6)
    return net("Relu", y)


@pytest.mark.slow  # 20 s of compiling
def test_volumes_are_convolved_by_tensor_maps_of_five_axes(tmp_path: Path) -> None:
    path, report = improved_in_fp16(volumes, tmp_path)
    symbols = _symbols(path, "fp16")
    assert symbols.count("conv3d_") >= 2 and "copy" not in symbols
    feeds = {f"{i}": {"x": normal(n, 64, 6, 9, 8)} for i, n in enumerate((1, 9, 9, 0, 1))}
    found, told = run(report, feeds, tmp_path)
    assert not told["error"] and told["replays"] and close(report, found, feeds, HALF)


def test_products_of_tf32_numbers_on_request(tmp_path: Path) -> None:
    """Everything between products stays float32."""
    net = Net()
    x = net.input("x", "n", 6, 9, 8)
    y = net("Relu", net("Conv", x, net.weight(12, 6, 3, 3), net.weight(12), pads=[1] * 4))
    y = net("MatMul", net("Flatten", y), net.weight(864, 20))
    path = net.save(tmp_path / "m.onnx", y)
    options = Options(target="double:sm_90", keep="all", precision="tf32", max_error=HALF)
    report = api.optimize(path, options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    symbols = _symbols(path, "tf32")
    assert "_tf32_conv" in symbols and "_tf32_gemm" in symbols and "_f16_" not in symbols
    assert (report.error or 0) > CLOSE


def photo(net: Net) -> str:
    """Build the start and the end of a net for images of three channels."""
    x = net.input("x", "n", 3, 41, 40)
    y = net("Conv", x, net.weight(24, 3, 7, 7), net.weight(24), strides=[2, 2], pads=[3] * 4)
    y = net("MaxPool", net("Relu", y), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = net("Conv", y, net.weight(24, 1, 3, 3), net.weight(24), group=24, pads=[1] * 4)
    y = net("Flatten", net("GlobalAveragePool", y))
    return net("Gemm", y, net.weight(24, 10), net.weight(10))


def test_halves_of_images_have_any_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image leaves the second half empty, and three make unequal halves."""
    monkeypatch.setattr(image_halves, "_LARGE", 0)
    _, report = improved_in_fp16(photo, tmp_path, [{"n": 4}])
    feeds = {f"{i}": {"x": normal(n, 3, 41, 40)} for i, n in enumerate((4, 1, 3, 0, 4))}
    found, told = run(report, feeds, tmp_path)
    assert not told["error"] and close(report, found, feeds, HALF)
    alone = [{"0": {"x": normal(n, 3, 41, 40)}} for n in (1, 4)]
    one, four = (run(report, feed, tmp_path)[1]["launches"] for feed in alone)
    assert one < four


def test_images_of_few_channels_are_packed(tmp_path: Path) -> None:
    """A row of a filter reads one run of pixels; pools read whole runs of channels."""
    path, report = improved_in_fp16(photo, tmp_path)
    symbols = _symbols(path, "fp16")
    assert all(word in symbols for word in ("_wgconv_", "_512", "_1x1", "_1x4")), symbols
    feeds = {f"{i}": {"x": normal(n, 3, 41, 40)} for i, n in enumerate((1, 3, 0))}
    found, told = run(report, feeds, tmp_path)
    assert not told["error"] and close(report, found, feeds, HALF)


def test_many_rows_are_multiplied_by_warpgroups(tmp_path: Path) -> None:
    """The same plan has kernels for few and for many rows, chosen by the sizes of a run."""
    path, report = improved_in_fp16(tall, tmp_path)
    symbols = _symbols(path, "fp16")
    assert "_wgmma_nk_" in symbols and "_gemm_nk_" in symbols
    feeds = {f"{i}": {"x": normal(n, 48, 136)} for i, n in enumerate((1, 9, 9, 0))}
    found, told = run(report, feeds, tmp_path)
    assert not told["error"] and told["replays"] and close(report, found, feeds, HALF)


def wide(net: Net) -> str:
    """Build a perceptron whose second layer gives numbers beyond those of fp16."""
    x = net.input("x", "batch", 7, 48)
    x = net("Relu", net("MatMul", x, net.weight(48, 64)))
    large = net("MatMul", net("Mul", x, np.float32(3e4)), net.weight(64, 64))
    x = net("LayerNormalization", large, net.weight(64), net.weight(64), axis=-1)
    return net("MatMul", x, net.weight(64, 10))


def test_what_leaves_the_range_of_fp16_stays_float32(tmp_path: Path) -> None:
    """One program computes in both: the other products read and write halves."""
    _, report = improved_in_fp16(wide, tmp_path)
    assert report.nodes_after == report.kernels == 1
    assert any("above f16's 6.6e+04" in warning for warning in report.warnings)
    calls = {row.call for row in report.kernel_calls}
    assert {"gemm_f16", "gemm_tf32x3"} <= calls, calls


def masked(net: Net) -> str:
    """Build attention whose integer mask is compared and expanded to the scores' shape."""
    x, mask = net.input("x", "batch", "n", 32), net.ids("mask", "batch", "n")
    hidden = net("Equal", net("Unsqueeze", mask, np.array([1])), np.array(0))
    length = net("Shape", x, start=1, end=2)
    shape = net("Concat", net("Shape", x, start=0, end=1), length, length, axis=0)
    hidden = net("Expand", hidden, shape)
    scores = net("MatMul", x, net("Transpose", x, perm=[0, 2, 1]))
    scores = net("Where", hidden, np.float32(-1e4), scores)
    return net("MatMul", net("Softmax", scores, axis=-1), net("MatMul", x, net.weight(32, 16)))


def test_integer_masks_are_part_of_the_program(tmp_path: Path) -> None:
    net = Net(opset=17)
    path = net.save(tmp_path / "m.onnx", masked(net))
    report = api.optimize(path, HERE)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1


def looked_up(net: Net) -> str:
    """Build attention that looks its mask up at every batch and key, as exporters write it."""
    x, mask = net.input("x", "batch", "n", 32), net.ids("mask", "batch", "keys")
    hidden = net("Cast", mask, to=9)
    places = []
    for start, new in ((0, [1, 2]), (1, [0, 1])):
        size = net("Squeeze", net("Shape", x, start=start, end=start + 1))
        count = net("Range", np.array(0), size, np.array(1))
        places.append(net("Unsqueeze", count, np.array(new)))
    shape = net("Shape", net("Max", *places))
    parts = [net("Unsqueeze", net("Expand", p, shape), np.array([-1])) for p in places]
    seen = net("GatherND", hidden, net("Concat", *parts, axis=-1))
    scores = net("MatMul", x, net("Transpose", x, perm=[0, 2, 1]))
    scores = net("Where", seen, scores, np.float32(-1e4))
    return net("MatMul", net("Softmax", scores, axis=-1), net("MatMul", x, net.weight(32, 16)))


def test_masks_at_all_positions_are_views(tmp_path: Path) -> None:
    net = Net(opset=18)
    path = net.save(tmp_path / "m.onnx", looked_up(net))
    feeds = {"x": normal(2, 5, 32), "mask": np.arange(14).reshape(2, 7) % 3}
    np.savez(tmp_path / "data.npz", **feeds)
    report = api.optimize(path, replace(HERE, data=tmp_path / "data.npz"))
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1
