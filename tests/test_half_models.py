"""Models in fp16 and bf16 through the whole pipeline: programs compute them in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.halve import halve
from tests.graphs import Net, normal, relative_error, session
from tests.halves import BF16, EPSILON, F16, NUMPY, answers, in_double
from tracea_graph import Options, api
from tracea_graph.commands.verify import verify_models
from tracea_graph.ir import DType

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
KINDS = {"fp16": F16, "bf16": BF16}
OPSET = 22
"""Convolutions of bf16 exist from here on."""


def perceptron() -> Net:
    net = Net(OPSET)
    x = net.input("x", "n", 120)
    # large enough for import not to fold its cast
    h = net("Add", net("MatMul", x, net.weight(120, 160)), net.weight(160))
    h = net("LayerNormalization", h, net.weight(160), net.weight(160), axis=-1)
    net.graph(net("Softmax", net("MatMul", net("Tanh", h), net.weight(160, 40)), axis=-1))
    return net


def images() -> Net:
    net = Net(OPSET)
    x = net.input("x", "n", 3, 9, 9)
    a = net("Relu", net("Conv", x, net.weight(24, 3, 3, 3), net.weight(24), pads=[1] * 4))
    b = net("Conv", a, net.weight(24, 24, 1, 1), net.weight(24))
    flat = net("Flatten", net("GlobalAveragePool", net("Add", a, b)))
    net.graph(net("Gemm", flat, net.weight(24, 10), net.weight(10)))
    return net


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("make", [perceptron, images])
def test_halves_are_computed_in_float32(make: object, form: str, tmp_path: Path) -> None:
    net = make()  # type: ignore[operator]
    onnx.save(net.model, tmp_path / "m.onnx")
    halve(tmp_path / "m.onnx", form, tmp_path / "half.onnx")
    report = api.optimize(tmp_path / "half.onnx", Options(keep="all", budget=60))
    assert report.status == "passed", report.status_reason
    assert report.kernels == 1
    assert any(f"{form} arithmetic is done in float32" in note for note in report.notes)
    half, result = onnx.load(tmp_path / "half.onnx"), onnx.load(report.output)
    assert [*result.graph.input, *result.graph.output] == [*half.graph.input, *half.graph.output]
    x = normal(3, *_sizes(net))
    feeds = {"x": x.astype(NUMPY[KINDS[form]])}
    (wanted,) = in_double(half, feeds)
    for library in (Path(str(report.library)), None):  # kernels, then the nodes' bodies
        (found,) = answers(session(report.output, library), feeds)
        assert found.dtype == NUMPY[KINDS[form]]
        assert relative_error(found.astype(np.float64), wanted) <= EPSILON[KINDS[form]]


def decoder() -> Net:
    """Attention to earlier rows and those of x, which both are results."""
    net = Net(OPSET)
    x = net.input("x", "n", "rows", 64)
    pasts = [net.input(f"past_{name}", "n", 2, "past", 32) for name in "kv"]
    q, k, v = (
        net("Transpose", net("Reshape", net("MatMul", x, net.weight(64, 64)),
                             net.ints(0, 0, 2, 32)), perm=[0, 2, 1, 3])
        for _ in range(3)
    )  # fmt: skip
    k, v = (net("Concat", past, new, axis=2) for past, new in zip(pasts, (k, v), strict=True))
    scores = net("MatMul", net("Mul", q, 32**-1.5), net("Transpose", k, perm=[0, 1, 3, 2]))
    y = net("MatMul", net("Softmax", scores, axis=-1), v)
    y = net("Reshape", net("Transpose", y, perm=[0, 2, 1, 3]), net.ints(0, 0, 64))
    net.graph(y, k, v)
    return net


@pytest.mark.parametrize("form", KINDS)
def test_caches_that_grow_are_read_as_they_are_stored(form: str, tmp_path: Path) -> None:
    net = decoder()
    onnx.save(net.model, tmp_path / "m.onnx")
    halve(tmp_path / "m.onnx", form, tmp_path / "half.onnx")
    report = api.optimize(tmp_path / "half.onnx", Options(keep="all", budget=60))
    assert report.status == "passed", report.status_reason
    result, kind = onnx.load(report.output), NUMPY[KINDS[form]]
    fed = {v for n in result.graph.node if n.op_type == "Cast" for v in n.input}
    assert not fed & {"past_k", "past_v"}
    for rows, past in ((1, 9), (6, 3)):
        feeds = {f"past_{x}": normal(2, 2, past, 32, seed=i) for i, x in enumerate("kv")}
        feeds = {n: a.astype(kind) for n, a in (feeds | {"x": normal(2, rows, 64)}).items()}
        wanted = in_double(onnx.load(tmp_path / "half.onnx"), feeds)
        for library in (Path(str(report.library)), None):
            found = answers(session(report.output, library), feeds)
            for one, right in zip(found, wanted, strict=True):
                assert one.dtype == kind
                assert relative_error(one.astype(float), right) <= 2 * EPSILON[KINDS[form]]


def _sizes(net: Net) -> list[int]:
    return [d.dim_value for d in net.model.graph.input[0].type.tensor_type.shape.dim[1:]]


def test_a_bf16_model_without_anything_to_fuse_runs_at_least(tmp_path: Path) -> None:
    net = Net(OPSET)
    net.graph(net("Det", net.input("x", "n", 3, 3)))
    onnx.save(net.model, tmp_path / "m.onnx")
    halve(tmp_path / "m.onnx", "bf16", tmp_path / "half.onnx")
    report = api.optimize(tmp_path / "half.onnx", Options(keep="all", budget=60))
    assert report.outcome == "improved" and "the model now runs in float32" in report.reason
    feeds = {"x": normal(2, 3, 3).astype(NUMPY[BF16])}
    (found,) = answers(session(report.output), feeds)
    wanted = np.linalg.det(feeds["x"].astype(np.float64))
    assert relative_error(found.astype(np.float64), wanted) <= EPSILON[BF16]


def test_a_model_that_needs_the_range_of_fp16_is_kept(tmp_path: Path) -> None:
    """An intermediate value overflows in fp16 where ONNX Runtime keeps it in fp16."""
    net = Net(OPSET)
    x = net.input("x", "n", 8)
    big = net("Reshape", net("Mul", x, net.const(60000.0)), net.ints(-1, 4))
    small = net("Div", net("Reshape", big, net.ints(-1, 8)), net.const(60000.0))
    net.graph(net("MatMul", small, net.weight(8, 8)))
    onnx.save(net.model, tmp_path / "m.onnx")
    halve(tmp_path / "m.onnx", "fp16", tmp_path / "half.onnx")
    report = api.optimize(tmp_path / "half.onnx", Options(keep="all", budget=60))
    assert report.outcome == "kept original", report.reason
    assert "range" in report.reason or "NaN" in report.reason


def test_float64_is_left_as_it_is(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", "n", 8, dtype=DType.F64)
    net.graph(net("Exp", net("MatMul", x, net.const(normal(8, 8), np.float64))))
    onnx.save(net.model, tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(keep="all", budget=60))
    assert "operators that compute in float64 are left as they are" in report.notes
    assert numpy_helper.to_array(onnx.load(report.output).graph.initializer[0]).dtype == np.float64


def test_a_value_that_saturates_may_be_an_input(tmp_path: Path) -> None:
    """What verification watches has another name and type in the original."""
    net = Net(OPSET)
    x = net.input("x", "n", 64)
    net.graph(net("Mul", net("Sigmoid", x), net("Tanh", net("Exp", x))))
    onnx.save(net.model, tmp_path / "m.onnx")
    halve(tmp_path / "m.onnx", "fp16", tmp_path / "half.onnx")
    report = api.optimize(tmp_path / "half.onnx", Options(keep="all", budget=60))
    assert report.status == "passed", report.status_reason


def test_a_result_of_a_bf16_model_can_be_verified_again(tmp_path: Path) -> None:
    onnx.save(images().model, tmp_path / "m.onnx")
    halve(tmp_path / "m.onnx", "bf16", tmp_path / "half.onnx")
    report = api.optimize(tmp_path / "half.onnx", Options(keep="all", budget=60))
    again = verify_models(tmp_path / "half.onnx", Path(report.output), Options())
    assert again.verification.status == "passed", again.verification.sentence
