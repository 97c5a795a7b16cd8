"""Parts of a model: outputs that go, and inner values that are fed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import tracea_graph as tg
from tests.tiny import answers
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import load, write_part

X, Y, W = (np.random.default_rng(i).standard_normal((3, 4), np.float32) for i in range(3))
TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[rows, 4] x, float[rows, 4] y) => (float[rows, 4] a, float[rows, 4] b) {
    t = Exp(x)  u = Tanh(t)  a = Mul(u, u)  v = Neg(y)  b = Add(t, v)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_an_input_goes_with_the_output_that_needed_it(model: Path, tmp_path: Path) -> None:
    write_part(load(model), ["b"], [], tmp_path / "part.onnx")
    graph = onnx.load(tmp_path / "part.onnx").graph
    assert [v.name for v in graph.input] == ["x"] and [v.name for v in graph.output] == ["a"]
    assert [n.op_type for n in graph.node] == ["Exp", "Tanh", "Mul"]
    (a,) = answers(tmp_path / "part.onnx", {"x": X}).values()
    assert np.array_equal(a, answers(model, {"x": X, "y": Y})["a"])


def test_what_an_inner_value_is_computed_from_goes(model: Path, tmp_path: Path) -> None:
    write_part(load(model), [], ["t"], tmp_path / "part.onnx")
    graph = onnx.load(tmp_path / "part.onnx").graph
    assert [v.name for v in graph.input] == ["y", "t"]
    assert graph.input[1].type.tensor_type.shape.dim[0].dim_param == "rows"
    found = answers(tmp_path / "part.onnx", {"y": Y, "t": W})
    assert np.allclose(found["a"], np.tanh(W) ** 2, atol=1e-6) and np.allclose(found["b"], W - Y)


@pytest.mark.parametrize(
    ("unused", "fed", "said"),
    [
        (["c"], [], "m.onnx has no output 'c'"),
        ([], ["w"], "m.onnx has no value 'w'"),
        (["a", "b"], [], "no output of m.onnx is left"),
    ],
)
def test_what_cannot_be_is_refused(
    model: Path, tmp_path: Path, unused: list[str], fed: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        write_part(load(model), unused, fed, tmp_path / "part.onnx")
    assert not (tmp_path / "part.onnx").exists()


@pytest.mark.compiler
def test_the_result_is_compared_with_the_part(model: Path, tmp_path: Path) -> None:
    report = tg.optimize(model, tg.Options(keep="all", unused_outputs=("b",)))
    assert report.input == str(tmp_path / "m.part.onnx") and report.status == "passed"
    assert answers(Path(report.output), {"x": X}).keys() == {"a"}
