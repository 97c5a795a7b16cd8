"""Models that ask for more memory than anything they hold explains are not run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from tracea_graph import Options, api
from tracea_graph.check import memory_limit
from tracea_graph.check.memory_limit import LARGEST, TIMES, largest_oversized_value, unpacks
from tracea_graph.check.reference_outputs import run_reference
from tracea_graph.check.symbol_bindings import Binding
from tracea_graph.commands.bench import BenchOptions, bench
from tracea_graph.commands.profile import profile
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.model_inputs import gather_inputs
from tracea_graph.ttg import TileGraph

PADDED = """g (float[n, 4] x) => (float[n, m] y)
<int64[4] pads = {{0, 0, 0, {columns}}}> {{ y = Pad(x, pads) }}"""
ONE = Binding("n=1", {"n": 1})
TERA = 1 << 40


def written(path: Path, text: str) -> Path:
    header = '<ir_version: 8, opset_import: ["" : 17]>\n'
    onnx.save(parser.parse_model(header + text), path)
    return path


def padded(folder: Path, columns: int) -> Path:
    return written(folder / "padded.onnx", PADDED.format(columns=columns))


def graph(folder: Path, columns: int) -> TileGraph:
    return load(padded(folder, columns)).graph


def test_the_largest_value_is_named_with_its_sizes(tmp_path: Path) -> None:
    said = largest_oversized_value(graph(tmp_path, TERA), (ONE, Binding("n=3", {"n": 3})))
    assert said.startswith("the value 'y' would take 12,288.0 GiB with n=3")


def test_what_every_model_may_have_is_let_be(tmp_path: Path) -> None:
    fits = LARGEST // 4 - 4
    assert largest_oversized_value(graph(tmp_path, fits), (ONE,)) == ""
    assert largest_oversized_value(graph(tmp_path, fits + 1), (ONE,)) != ""


def test_large_models_may_have_larger_values(tmp_path: Path) -> None:
    weights = 2 * LARGEST // TIMES
    path = padded(tmp_path, LARGEST // 4)
    model = onnx.load(path)
    held = onnx.helper.make_tensor("w", onnx.TensorProto.INT8, [weights], bytes(weights), raw=True)
    model.graph.initializer.append(held)
    model.graph.node.append(onnx.helper.make_node("Identity", ["w"], ["z"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 3, [weights]))
    onnx.save(model, path)
    assert largest_oversized_value(load(path).graph, (ONE,)) == ""


def test_sizes_nobody_knows_are_not_counted(tmp_path: Path) -> None:
    assert largest_oversized_value(graph(tmp_path, TERA), (Binding("none", {}),)) == ""


def test_with_trouble_known_before_nothing_is_run(tmp_path: Path) -> None:
    found = run_reference(tmp_path / "absent.onnx", {}, trouble="it is huge")
    assert found.trouble == "the original was not run: it is huge"


@pytest.mark.compiler
@pytest.mark.parametrize(
    "more", [{}, {"keep": "all"}, {"verify": False}], ids=["faster", "all", "unverified"]
)
def test_the_original_is_kept(tmp_path: Path, more: dict[str, str]) -> None:
    text = """g (float[512, 512] x) => (float[m, k] y, float[512, 512] z)
    <int64[4] pads = {0, 0, 0, 1099511627264}> {
        e = Erf(x)  h = Mul(e, x)  s = Sigmoid(h)  z = Mul(s, h)  y = Pad(x, pads)
    }"""
    path = written(tmp_path / "model.onnx", text)
    report = api.optimize(path, Options(tmp_path / "out.onnx", target="cpu:scalar", **more))
    assert report.library is None and "'y' would take 2,097,152.0 GiB" in report.reason
    assert (tmp_path / "out.onnx").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("n", "49,152.0 GiB with n=3, padded, but at most 1.0 GiB are allowed; give smaller"),
        ("1", "16,384.0 GiB, but at most 1.0 GiB are allowed"),  # no option would change that
    ],
    ids=["symbolic", "fixed"],
)
def test_an_input_beyond_reason_is_refused(tmp_path: Path, rows: str, said: str) -> None:
    text = f"g (float[{rows}, {4 * TERA}] x) => (float[a, b] y) {{ y = Relu(x) }}"
    path = written(tmp_path / "model.onnx", text)
    with pytest.raises(UsageError, match=re.escape(f"'x' would take {said}")) as raised:
        api.optimize(path, Options(tmp_path / "out.onnx"))
    assert ("--data" in str(raised.value)) == (rows == "n")


def test_real_inputs_must_leave_room_too(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.zeros((1, 4), np.float32))
    model = load(padded(tmp_path, TERA))
    found = gather_inputs(model, Options(data=data))
    assert "'y' would take 4,096.0 GiB with data[0]" in found.trouble


@pytest.mark.parametrize("run", [bench, lambda paths, options: profile(paths[0], options)])
def test_what_nobody_asked_for_is_not_raced(
    tmp_path: Path, run: Callable[[Sequence[Path], BenchOptions], object]
) -> None:
    with pytest.raises(UsageError, match=r"'y' would take 4,096\.0 GiB.*--shape"):
        run([padded(tmp_path, TERA)], BenchOptions(threads=(1,)))


def test_sizes_the_user_gave_are_refused_before_anything_runs(tmp_path: Path) -> None:
    text = "g (float[n, 4] x) => (float[n, n] y) { t = Transpose(x)  y = MatMul(x, t) }"
    loaded = load(written(tmp_path / "square.onnx", text))
    with pytest.raises(UsageError, match=r"'y' would take 3,725\.3 GiB with n=1000000.*--shape"):
        gather_inputs(loaded, Options(shapes=({"n": 1_000_000},)))
    assert not gather_inputs(loaded, Options(shapes=({"n": 100},))).trouble


def test_a_value_must_fit_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = graph(tmp_path, 1000)
    assert largest_oversized_value(found, (ONE,)) == ""
    monkeypatch.setattr(memory_limit, "_installed", lambda: 1000.0)
    assert "'y' would take" in largest_oversized_value(found, (ONE,))


def test_weights_that_fill_the_memory_are_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = load(padded(tmp_path, 3)).graph
    size = sum(weight.nbytes for weight in graph.weights.values())
    assert unpacks(graph) and size
    monkeypatch.setattr(memory_limit, "_installed", lambda: 5.0 * size)
    assert not unpacks(graph)
