"""Smaller matrices through the whole pipeline: predicted, measured, within the budget, or not."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tiny import answers
from tracea_graph import Options, Report, api
from tracea_graph.compress import (
    ObservedValue,
    Samples,
    calibrate,
    output_errors,
    relative_max_error,
    split_data,
)
from tracea_graph.compress.compressible_layers import Layer
from tracea_graph.compress.error_metric import Outputs
from tracea_graph.compress.layer_compression_choices import LayerOptions
from tracea_graph.config import PruneSpec
from tracea_graph.errors import UsageError, VerifyError
from tracea_graph.kernels.cpu.backend import CPU
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.onnx_io import load
from tracea_graph.onnx_io.switchable_models import SwitchableChange

pytestmark = pytest.mark.usefixtures("highest_level")

Array = npt.NDArray[Any]
K, N = 192, 256


def decaying(k: int, n: int, seed: int) -> Array:
    """A matrix whose singular values fall off quickly."""
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.standard_normal((d, min(k, n))))[0] for d in (k, n))
    return ((u * np.exp(-np.arange(min(k, n)) / 12)) @ v.T * 8).astype(np.float32)


def network(path: Path, shared: bool = False, fed: bool = False) -> Path:
    """x·w0, ReLU, ·w1, or with one matrix for both, or with a fed one."""
    weights = {"w0": decaying(K, N, 0), "w1": decaying(N, K, 1)}
    first = "w0"
    if shared:
        weights = {"w0": decaying(K, K, 0)}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", K])]
    if fed:
        inputs.append(helper.make_tensor_value_info("given", TensorProto.FLOAT, [K, N]))
        first = "given"
        del weights["w0"]
    nodes = [
        helper.make_node("MatMul", ["x", first], ["h"], "up"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w0" if shared else "w1"], ["y"], "down"),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", K])
    stored = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "net", inputs, [output], stored)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def inputs(sets: int = 5, rows: int = 400, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(9).standard_normal((K, K)) * np.exp(-np.arange(K) / 60)[:, None]
    return (rng.standard_normal((sets, rows, K)) @ mixing / 4).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return network(tmp_path / "net.onnx")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, x=inputs())
    return path


def options(data: Path | None, **more: Any) -> Options:
    settings = {"low_rank": 1.0, "max_error": 0.05, "keep": "all", "threads": (1,), **more}
    return Options(data=data, **settings)


def relative(report: Report, feeds: Array) -> float:
    """‖y − y'‖ / ‖y‖ of a result through its library."""
    (found,), (wanted,) = (
        answers(Path(path), {"x": feeds}, library).values()
        for path, library in ((report.output, Path(report.library or "")), (report.input, None))
    )
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.compiler
def test_a_budget_is_used_and_held(model: Path, data: Path) -> None:
    before = hashlib.sha256(model.read_bytes()).hexdigest()
    report = api.optimize(model, options(data))
    assert report.improved and [row.kept for row in report.compressed] == [True, True]
    assert report.holdout_error is not None and 0.005 < report.holdout_error <= 0.05
    assert report.error is not None and report.error <= 0.05
    assert all(row.kept_share < 0.8 and row.saved_us > 0 for row in report.compressed)
    for row in report.compressed:
        assert row.holdout_error is not None and row.holdout_error < 1.3 * row.predicted
    assert hashlib.sha256(model.read_bytes()).hexdigest() == before


@pytest.mark.compiler
def test_the_predicted_error_is_that_of_the_kernels(tmp_path: Path) -> None:
    """One layer: what calibration predicts is what its compiled products do to the same data."""
    proto = onnx.load(network(tmp_path / "net.onnx"))
    graph = proto.graph
    del graph.node[1:], graph.output[:]
    graph.node[0].output[0] = "y"
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", N]))
    del graph.initializer[1]
    path = tmp_path / "one.onnx"
    onnx.save(proto, path)
    seen = inputs(1)
    for name, array in (("seen", seen), ("held", inputs(1, seed=1))):
        np.savez(tmp_path / f"{name}.npz", x=array)
    chosen = options(tmp_path / "seen.npz", holdout=tmp_path / "held.npz")
    report = api.optimize(path, chosen)
    (row,) = report.compressed
    assert relative(report, seen[0]) == pytest.approx(row.predicted, rel=0.02)
    assert relative(report, inputs(1, seed=1)[0]) == pytest.approx(row.holdout_error, rel=0.02)


@pytest.mark.compiler
def test_pruned_blocks_are_skipped(model: Path, data: Path) -> None:
    spec = PruneSpec(0.5, block=(16, 4))
    report = api.optimize(model, options(data, low_rank=None, prune=spec, max_error=0.9))
    assert report.improved and all(row.technique == "zeros" for row in report.compressed)
    assert any(row.kept for row in report.compressed)
    assert report.holdout_error is not None and 0 < report.holdout_error <= 0.9


@pytest.mark.compiler
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_channels_go_from_both_products(model: Path, data: Path, precision: str) -> None:
    spec = PruneSpec(0.5, channels=True)
    chosen = options(data, low_rank=None, prune=spec, max_error=0.1, precision=precision)
    report = api.optimize(model, chosen)
    (row,) = report.compressed
    assert row.kept and row.layer == "down" and row.technique == "channels"
    assert row.size % 16 == 0 and row.holdout_error is not None
    assert row.holdout_error < 1.3 * row.predicted
    stored = onnx.load(str(report.output)).graph.initializer
    assert sum(np.prod(t.dims) for t in stored) < row.kept_share * 2 * K * N + 2 * N + K
    assert report.holdout_error is not None and 0 < report.holdout_error <= 0.15


@pytest.mark.parametrize(
    "spec", [PruneSpec(0.5, group=4), PruneSpec(0.5)], ids=["2:4", "unstructured"]
)
def test_zeros_that_save_nothing_are_told(model: Path, data: Path, spec: PruneSpec) -> None:
    report = api.optimize(model, options(data, low_rank=None, prune=spec, max_error=0.9))
    assert not report.compressed
    assert any("2:4 saves some on Hopper" in w for w in report.warnings)


@pytest.mark.parametrize(("time", "saved"), [(1.0, []), (0.75, [25.0])])
def test_two_of_four_zeros_save_what_the_backend_says(time: float, saved: list[float]) -> None:
    matrix = np.random.default_rng(0).standard_normal((64, 32))
    layer = Layer("w", "w", 64, 32, lambda: matrix, (), False, (), 100.0, 0.0, ())
    spec = PruneSpec(0.5, group=4)
    found = LayerOptions(None, spec, time).options_for(layer, None, False)
    assert [option.saved for option in found] == saved
    assert GPU.two_of_four_time(("sm_90a",), "fp16") < 1
    assert GPU.two_of_four_time(("sm_80", "sm_90a"), "fp16") == 1
    assert (
        GPU.two_of_four_time(("sm_90a",), "fp32") == CPU.two_of_four_time(("avx2",), "fp16") == 1
    )


@pytest.mark.compiler
def test_a_matrix_that_layers_share_is_one(tmp_path: Path, data: Path) -> None:
    report = api.optimize(network(tmp_path / "shared.onnx", shared=True), options(data))
    assert len(report.compressed) == 1 and report.improved
    assert report.holdout_error is not None and report.holdout_error <= 0.05


@pytest.mark.compiler
def test_a_matrix_that_is_fed_stays(tmp_path: Path) -> None:
    path, data = network(tmp_path / "fed.onnx", fed=True), tmp_path / "fed.npz"
    np.savez(data, x=inputs(), given=np.stack([decaying(K, N, 0)] * 5))
    report = api.optimize(path, options(data))
    assert [row.layer for row in report.compressed] == ["down"]


@pytest.mark.compiler
def test_a_budget_that_is_impossible(model: Path, data: Path) -> None:
    report = api.optimize(model, options(data, max_error=1e-9))
    assert not report.compressed
    assert any("no compression stays within an error of 1e-09" in w for w in report.warnings)


@pytest.mark.compiler
def test_without_data_it_says_so(model: Path) -> None:
    report = api.optimize(model, options(None))
    said = " ".join(report.warnings)
    assert "plain SVD" in said and "the figure means little" in said
    assert all(row.holdout_error is None for row in report.compressed)


@pytest.mark.compiler
def test_too_few_rows_are_told(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", x=inputs(3, 20))
    report = api.optimize(model, options(tmp_path / "few.npz"))
    assert any("40 rows of 192 elements" in w for w in report.warnings)


@pytest.mark.compiler
def test_the_users_own_metric_is_the_budget(model: Path, data: Path, tmp_path: Path) -> None:
    metric = tmp_path / "metric.py"
    metric.write_text("def tenth(a, b): return abs(a['y'] - b['y']).max() / 10\n")
    report = api.optimize(model, options(data, metric=f"{metric}:tenth"))
    assert report.holdout_error is not None and 0 < report.holdout_error <= 0.05


def test_an_interrupted_pass_goes_on(model: Path, data: Path, tmp_path: Path) -> None:
    loaded, kept, seen = (
        load(model),
        tmp_path / "kept.npz",
        [ObservedValue("x"), ObservedValue("r")],
    )
    whole = calibrate(model, seen, Samples.of(data, loaded), kept=kept)
    assert whole.sets == 5 and whole.rows == {"x": 2000, "r": 2000}
    np.savez(tmp_path / "part.npz", x=inputs()[:2])
    part = calibrate(model, seen, Samples.of(tmp_path / "part.npz", loaded), kept=kept)
    assert part.sets == 5  # what was kept is more than these: nothing is run again
    kept.unlink()
    calibrate(model, seen, Samples.of(tmp_path / "part.npz", loaded), kept=kept)
    steps: list[str] = []
    resumed = calibrate(model, seen, Samples.of(data, loaded), steps.append, kept)
    assert len(steps) == 3 and resumed.rows == whole.rows
    for value, gram in whole.grams.items():
        np.testing.assert_allclose(resumed.grams[value], gram)
    x = inputs().reshape(-1, K).astype(np.float64)
    np.testing.assert_allclose(whole.grams["x"], x.T @ x)


def test_a_broken_file_of_sums_is_not_used(model: Path, data: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.npz"
    kept.write_bytes(b"PK\x03\x04 no archive")
    found = calibrate(model, [ObservedValue("x")], Samples.of(data, load(model)), kept=kept)
    assert found.sets == 5


def parts(
    model: Path, data: Path | None, holdout: Path | None = None
) -> tuple[list[str], list[str], list[str], str]:
    """Names of the sets to calibrate with, those that steer, those reported of; what is said."""
    found = split_data(data, holdout, load(model), {"made up": {}})
    seen = [name for name, _ in found.calibrate] if found.calibrate else []
    return seen, [*found.validation], [*found.holdout], " ".join(found.warnings)


def test_what_steers_the_search_is_not_what_is_reported_of(model: Path, data: Path) -> None:
    seen, steer, report, said = parts(model, data)
    assert seen == [f"data.npz[{i}]" for i in (0, 2, 4)]
    assert (steer, report, said) == (["data.npz[1]"], ["data.npz[3]"], "")


def test_data_of_its_own_is_reported_of(model: Path, data: Path, tmp_path: Path) -> None:
    held = tmp_path / "held.npz"
    np.savez(held, x=inputs(3, seed=1))
    seen, steer, report, said = parts(model, data, held)
    assert seen == [f"data.npz[{i}]" for i in (0, 2, 3, 4)] and steer == ["data.npz[1]"]
    assert report == [f"held.npz[{i}]" for i in range(3)] and not said
    one = tmp_path / "one.npz"
    np.savez(one, x=inputs(1))
    seen, steer, report, said = parts(model, one, held)
    assert seen == ["one.npz[0]"] and steer == ["held.npz[0]", "held.npz[2]"]
    assert report == ["held.npz[1]"] and not said


def test_too_few_sets_for_three_parts_are_told(model: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.npz"
    np.savez(few, x=inputs(2))
    seen, steer, report, said = parts(model, few)
    assert seen == ["few.npz[0]"] and steer == report == ["few.npz[1]"]
    assert "the reported error is of sets used in the search" in said
    np.savez(few, x=inputs(1))
    assert "the set used to calibrate" in parts(model, few)[3]
    assert "the figure means little" in parts(model, None)[3]


def test_the_power_of_an_error_is_found(model: Path, data: Path, tmp_path: Path) -> None:
    """A distance grows with a change, its square with the square: both add up in quadrature."""
    loaded = load(model)
    feeds = [feed for _, feed in Samples.of(data, loaded)][:1]
    deltas = [("x", "h", decaying(K, N, 5)), ("r", "y", decaying(N, K, 6))]
    changes = [SwitchableChange(i, x, y, 1e-3 * d) for i, (x, y, d) in enumerate(deltas)]

    def squared(found: Outputs, wanted: Outputs) -> float:
        return relative_max_error(found, wanted) ** 2

    results = [
        output_errors(model, changes, 2, feeds, metric, tmp_path / "s", lambda step: None)
        for metric in (relative_max_error, squared)
    ]
    assert [power for _, power in results] == [1, 2]
    np.testing.assert_allclose(np.square(results[0][0]), results[1][0], rtol=1e-3)


def with_nan(array: Array) -> Array:
    array[1, 3, 4] = np.nan
    return array


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: {"y": inputs()}, "missing: x, unknown: y"),
        (lambda: {"x": inputs()[..., :5]}, "has dims (400, 5); the model takes"),
        (lambda: {"x": with_nan(inputs())}, "'x' in data.npz[1] of --data is not finite"),
        (lambda: {"x": inputs() * np.float32(1e38)}, "is not finite"),
    ],
    ids=["names", "dims", "nan", "overflow"],
)
def test_data_that_does_not_fit(
    model: Path, tmp_path: Path, made: Callable[[], dict[str, Array]], said: str
) -> None:
    with np.errstate(over="ignore"):
        np.savez(tmp_path / "data.npz", **made())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=re.escape(said)):
        api.optimize(model, options(tmp_path / "data.npz"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"low_rank": 0.0}, "--low-rank takes an error above 0, at most 1, not 0"),
        ({"max_error": 0.0}, "--low-rank needs a --max-error above 0"),
        ({"custom_ops": False}, "--low-rank and --no-custom-ops contradict"),
        ({"prepack": False}, "--low-rank and --no-prepack contradict"),
        ({"verify": False}, "--low-rank and --no-verify contradict"),
        ({"metric": "nothing"}, "--metric takes FILE.py:FUNCTION"),
        ({"metric": "gone.py:f"}, "--metric gone.py does not exist"),
        ({"data": Path("gone.npz")}, "--data gone.npz does not exist"),
        ({"holdout": Path("gone.npz")}, "--holdout gone.npz does not exist"),
    ],
)
def test_options_that_make_no_sense(
    model: Path, data: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        api.optimize(model, options(**{"data": data, **changes}))


@pytest.mark.compiler
def test_the_metric_judges_even_where_nothing_is_chosen(
    model: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "m.py").write_text("def f(a, b): return 0.5")
    with pytest.raises(VerifyError, match=r"an error of 0\.5 by --metric, above the 0\.05"):
        api.optimize(model, options(data, metric=f"{tmp_path / 'm.py'}:f", keep="all"))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(a, b): return a['nothing']", "raised KeyError: 'nothing'"),
        ("def f(a, b): return float('nan')", "must return a number of at least 0, not nan"),
        ("def f(a, b): return -1", "must return a number of at least 0"),
        ("g = 1", "has no function 'f'"),
        ("def f(:", "raised SyntaxError"),
    ],
)
def test_a_metric_that_fails(
    model: Path, data: Path, tmp_path: Path, code: str, said: str
) -> None:
    (tmp_path / "m.py").write_text(code)
    with pytest.raises(UsageError, match=said):
        api.optimize(model, options(data, metric=f"{tmp_path / 'm.py'}:f"))
