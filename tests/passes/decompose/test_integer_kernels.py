"""Every way to write integer products becomes a kernel of integers, or says why it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import every_phase, optimized
from tests.passes.decompose.test_quantized import ATTENTION, SPELLED, WEIGHTS, saved
from tracea_graph import Options, api
from tracea_graph.onnx_io import load
from tracea_graph.rewrite import DecisionTrace

RNG = np.random.default_rng(12)
PACKED = "pack-integers"
PRODUCTS = (
    "QLinearMatMul", "QLinearMatMul, one scale", "QGemm", "QGemm, transposed, float",
    "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
)  # fmt: skip


def traced(path: Path) -> DecisionTrace:
    return optimized(load(path).graph, every_phase())


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_becomes_one_of_integers(name: str, tmp_path: Path) -> None:
    assert traced(saved(tmp_path, SPELLED[name])).applied()[PACKED] == 1


@pytest.mark.parametrize("name", PRODUCTS[1:])
def test_a_matrix_that_is_not_constant_is_the_reason(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path, SPELLED[name])
    made = onnx.load(path)
    matrix = "wu" if "wu" in {t.name for t in made.graph.initializer} else "ws"
    kept = [t for t in made.graph.initializer if t.name != matrix]
    kind = onnx.helper.np_dtype_to_tensor_dtype(WEIGHTS[matrix].dtype)
    made.graph.input.append(onnx.helper.make_tensor_value_info(matrix, kind, (8, 8)))
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    onnx.save(made, path)
    trace = traced(path)
    assert PACKED not in trace.applied()
    why = f"{matrix!r} is not constant"
    assert {("matmul-integer", why), ("quantized-gemm", why)} & set(trace.misses())


def attention(folder: Path, constant: bool = True) -> Path:
    made = onnx.parser.parse_model(ATTENTION.replace("MASK", "mask"))
    arrays = {
        "w": RNG.integers(-128, 127, (32, 96), np.int8), "wz": np.full(96, 3, np.int8),
        "b": RNG.standard_normal(96).astype(np.float32),
        "ws": RNG.uniform(1e-3, 4e-3, 96).astype(np.float32),
    }  # fmt: skip
    if not constant:
        del arrays["w"]
        info = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.INT8, (32, 96))
        made.graph.input.append(info)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    onnx.save(made, folder / "m.onnx")
    return folder / "m.onnx"


def test_projections_of_attention_are_products_of_integers(tmp_path: Path) -> None:
    applied = traced(attention(tmp_path)).applied()
    assert (applied[PACKED], applied["attention-op"]) == (3, 1)


def test_attention_without_constant_projections_says_so(tmp_path: Path) -> None:
    trace = traced(attention(tmp_path, constant=False))
    why = "its weights are not a constant matrix, or x is not known to have rank 3"
    assert PACKED not in trace.applied() and ("decompose", why) in trace.misses()


CHANNELS_LAST = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[n, 4, 10, 8] x) => (float[n, 10] y) {
        first = QuantizeLinear(x, s, u)
        moved = Transpose <perm = [0, 2, 3, 1]> (first)
        c = com.microsoft.QLinearConv <channels_last = 1, pads = [1, 1, 1, 1], strides = [1, 2],
            kernel_shape = [3, 3]> (moved, s, u, w, ws, wz, t, u, b)
        p = com.microsoft.NhwcMaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
        d = com.microsoft.QLinearConv <channels_last = 1, kernel_shape = [1, 1]>
            (p, t, u, v, vs, vz, t, u)
        a = com.microsoft.QLinearAdd(d, t, u, p, t, u, t, u)
        m = com.microsoft.QLinearGlobalAveragePool <channels_last = 1> (a, t, u, s, u)
        back = Transpose <perm = [0, 3, 1, 2]> (m)
        f = Flatten(back)
        r = com.microsoft.QGemm <transB = 1> (f, s, u, k, ks, kz, e, t, u)
        y = DequantizeLinear(r, t, u)
    }"""
"""Operators on images with channels last, as ONNX Runtime saves them, and a classifier."""


def images(folder: Path, kind: type) -> Path:
    def whole(*shape: int) -> np.ndarray:
        return RNG.integers(-128, 127, shape, np.int8)

    zeros = {name: np.zeros(count, np.int8) for name, count in (("wz", 16), ("vz", 16))}
    arrays = zeros | {
        "s": np.float32(0.02), "t": np.float32(0.05), "u": np.asarray(7, kind),
        "w": whole(16, 4, 3, 3),
        "ws": RNG.uniform(0.01, 0.02, 16).astype(np.float32), "v": whole(16, 16, 1, 1),
        "vs": RNG.uniform(0.004, 0.01, 16).astype(np.float32), "k": whole(10, 16),
        "b": RNG.integers(-500, 500, 16, np.int32), "e": RNG.integers(-50, 50, 10, np.int32),
        "ks": np.float32(0.01), "kz": np.int8(0),
    }  # fmt: skip
    made = onnx.parser.parse_model(CHANNELS_LAST)
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()
    )
    onnx.save(made, folder / "m.onnx")
    return folder / "m.onnx"


def test_sizes_of_operators_with_channels_last(tmp_path: Path) -> None:
    graph = load(images(tmp_path, np.uint8)).graph
    found = {name: str(graph.spec(name)) for name in ("c", "p", "a", "m", "r")}
    assert found == {
        "c": "u8[n,10,4,16]", "p": "u8[n,5,2,16]", "a": "u8[n,5,2,16]", "m": "u8[n,1,1,16]",
        "r": "u8[n,10]",
    }  # fmt: skip


def test_a_result_without_a_scale_is_float(tmp_path: Path) -> None:
    text = SPELLED["QGemm, transposed, float"].replace("y =", "f =") + " y = Relu(f)"
    assert str(load(saved(tmp_path, text)).graph.spec("f")) == "f32[n,8]"


@pytest.mark.compiler
@pytest.mark.usefixtures("highest_level")
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_channels_last_run_in_integers(kind: type, tmp_path: Path) -> None:
    path = images(tmp_path, kind)
    assert traced(path).applied()[PACKED] == 3
    report = api.optimize(path, Options(keep="all"))
    assert (report.status, all(row.kept for row in report.groups)) == ("passed", True)
    left = onnx.load(report.output).graph.node
    assert report.kernels and "com.microsoft" not in {node.domain for node in left}
