"""Products with weights of few bits multiply the codes: MatMulNBits and DequantizeLinear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graphs import Net, assert_same, normal, ops, reasons, schedule_only
from tracea_graph import Options, optimize
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.phases.pack_nbits import PACK_NBITS, PACK_NBITS_TABLE
from tracea_graph.passes.quantized.quantized_embedding import QuantizedEmbedding
from tracea_graph.passes.quantized.weight_only import DequantizedGemm, MatmulNbits
from tracea_graph.rewrite import RulePass

pytestmark = pytest.mark.usefixtures("highest_level")

RULES = (MatmulNbits(), DequantizedGemm(), RulePass(PACK_NBITS))


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last axis, several to a byte, the first in the lowest bits."""
    per = 8 // bits
    wide = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per)])
    made = np.zeros((*wide.shape[:-1], wide.shape[-1] // per), np.uint8)
    for i in range(per):
        made |= wide[..., i::per] << np.uint8(bits * i)
    return made


def nbits(
    k: int = 100, n: int = 20, bits: int = 4, block: int = 32, level: int = 0, zeros: str = "",
    bias: bool = False, groups: np.ndarray | None = None, flat: bool = False,
) -> tuple[Net, Any]:  # fmt: skip
    """A net of one MatMulNBits, and its graph."""
    net, rng, blocks = Net(), np.random.default_rng(3), -(-k // block)
    codes = rng.integers(0, 2**bits, (n, blocks, block), np.uint8)
    own = rng.integers(0, 2**bits, (n, blocks), np.uint8)
    scales = rng.uniform(-0.1, 0.1, (n, blocks)).astype(np.float32)
    operands = [
        net.input("x", "m", k),
        net.const(packed(codes, bits), np.uint8),
        net.const(scales.ravel() if flat else scales),
        net.const(packed(own, bits), np.uint8) if zeros == "integer" else
        net.const(own + np.float32(0.25)) if zeros else "",
        "" if groups is None else net.const(groups, np.int32),
        net.const(normal(n)) if bias else "",
    ]  # fmt: skip
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": level}
    y = net("MatMulNBits", *operands, domain="com.microsoft", **attrs)
    return net, net.graph(y)


@pytest.mark.parametrize(
    ("bits", "zeros"),  # ONNX Runtime has no 8-bit codes with zero points in float32
    [(b, z) for b in (2, 4, 8) for z in ("", "integer", "float") if (b, z) != (8, "float")],
)
@pytest.mark.parametrize("level", [0, 4])
def test_a_product_multiplies_codes(bits: int, zeros: str, level: int) -> None:
    net, graph = nbits(bits=bits, zeros=zeros, level=level, bias=True, flat=bits == 4)
    trace = schedule_only(graph, *RULES)
    assert trace.applied() == {"matmul-nbits": 1, "pack-nbits": 1}
    (region,) = graph.regions()
    assert region.params.layout.int8_rows == (level == 4 and zeros != "float")
    assert_same(net, graph, {"x": normal(3, 100)})


def test_int8_follows_onnx_runtime_for_2_bits() -> None:
    """Without kernels for a block's length ONNX Runtime multiplies such codes in float32."""
    for block, expected in ((16, False), (64, True), (256, False)):
        _, graph = nbits(bits=2, block=block, level=4)
        schedule_only(graph, *RULES)
        (region,) = graph.regions()
        assert region.params.layout.int8_rows == expected


@pytest.mark.parametrize("zeros", ["", "float"])
@pytest.mark.parametrize("level", [0, 4])
def test_rows_are_multiplied_in_the_order_of_their_groups(zeros: str, level: int) -> None:
    groups = np.random.default_rng(5).permutation(np.arange(100) // 32)
    net, graph = nbits(groups=groups, level=level, zeros=zeros, bias=True)
    assert schedule_only(graph, *RULES).applied()["matmul-nbits"] == 1
    (region,) = [r for r in graph.regions() if r.op == "FusedGemm"]
    assert not region.params.layout.int8_rows, "ONNX Runtime dequantizes such a matrix"
    assert_same(net, graph, {"x": normal(3, 100)})


def test_groups_in_order_need_no_other_rows() -> None:
    _, graph = nbits(groups=np.arange(100) // 32)
    assert schedule_only(graph, *RULES).applied()["matmul-nbits"] == 1
    assert ops(graph) == ["FusedGemm"]


@pytest.mark.parametrize(("bits", "zeros"), [(4, "integer"), (2, ""), (8, "")])
def test_groups_that_onnx_runtime_does_not_read_stay(bits: int, zeros: str) -> None:
    _, graph = nbits(groups=np.arange(100) // 32, bits=bits, zeros=zeros)
    (why,) = reasons(schedule_only(graph, *RULES), "matmul-nbits")
    assert why.startswith("ONNX Runtime ignores packed zero points")


def test_groups_of_other_sizes_stay() -> None:
    groups = np.arange(100) // 32
    groups[:8] = 1
    _, graph = nbits(groups=groups)
    trace = schedule_only(graph, *RULES)
    assert reasons(trace, "matmul-nbits") == {"its groups do not have the sizes of blocks"}


def dequantized(
    weight: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, op: str = "MatMul",
    **attrs: int,
) -> tuple[Net, Any]:  # fmt: skip
    net = Net(opset=21)
    x = net.input("x", "m", weight.shape[1 if op == "Gemm" else 0])
    own = [] if zeros is None else [net.const(zeros, zeros.dtype.type)]
    w = net("DequantizeLinear", net.const(weight, weight.dtype.type), net.const(scales), *own,
            **attrs)  # fmt: skip
    bias = [net.const(normal(len(weight)))] if op == "Gemm" else []
    return net, net.graph(net(op, x, w, *bias, **({"transB": 1} if bias else {})))


def whole(dtype: Any, *shape: int) -> np.ndarray:
    low, high = (-8, 8) if dtype is ml_dtypes.int4 else (0, 16)
    if dtype in (np.int8, np.uint8):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
    return np.random.default_rng(7).integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, np.int8, np.uint8])
@pytest.mark.parametrize("with_zeros", [True, False])
@pytest.mark.parametrize("form", ["blocks", "columns", "one", "transposed"])
def test_a_dequantized_matrix_is_codes(dtype: Any, with_zeros: bool, form: str) -> None:
    shape: tuple[int, ...] = {"blocks": (3, 24), "columns": (24,), "one": ()}.get(form, (24, 3))
    attrs = {
        "blocks": {"axis": 0, "block_size": 32}, "columns": {"axis": 1},
        "transposed": {"axis": 1, "block_size": 32},
    }.get(form, {})  # fmt: skip
    weight = whole(dtype, *((24, 90) if form == "transposed" else (90, 24)))
    scales = np.random.default_rng(1).uniform(0.01, 0.1, shape).astype(np.float32)
    zeros = whole(dtype, *shape) if with_zeros else None
    op = "Gemm" if form == "transposed" else "MatMul"
    net, graph = dequantized(weight, scales, zeros, op, **attrs)
    trace = schedule_only(graph, *RULES)
    assert trace.applied() == {"dequantized-gemm": 1, "pack-nbits": 1}
    assert ops(graph) == ["FusedGemm"]
    assert_same(net, graph, {"x": normal(5, 90)})


def test_one_matrix_is_read_in_many_ways() -> None:
    """By rows and by columns, and with other scales and zero points."""
    net, rng = Net(opset=21), np.random.default_rng(5)
    x = net.input("x", "m", 32)
    codes = net.const(rng.integers(-128, 128, (32, 32)).astype(np.int8), np.int8)
    scales = [net.const(rng.uniform(0.01, 0.1, 32).astype(np.float32)) for _ in range(2)]
    zeros = [net.const(rng.integers(-9, 9, 32).astype(np.int8), np.int8) for _ in range(2)]
    operands = [scales[:1], scales[1:], *([s, z] for s in scales for z in zeros)]
    results = [
        net(op, x, net("DequantizeLinear", codes, *more, axis=axis), **attrs)
        for more in operands
        for op, axis, attrs in (("MatMul", 1, {}), ("Gemm", 0, {"transB": 1}))
    ]
    graph = net.graph(*results)
    trace = schedule_only(graph, *RULES)
    assert trace.applied() == {"dequantized-gemm": len(results), "pack-nbits": len(results)}
    assert_same(net, graph, {"x": normal(5, 32)})


def test_one_matrix_of_bytes_has_many_zero_points_and_groups() -> None:
    net, rng, k, n = Net(), np.random.default_rng(6), 64, 20
    x = net.input("x", "m", k)
    codes = net.const(rng.integers(0, 256, (n, 2, 16), np.uint8), np.uint8)
    scales = net.const(rng.uniform(0.01, 0.1, (n, 2)).astype(np.float32))
    zeros = [net.const(rng.integers(0, 256, (n, 1), np.uint8), np.uint8) for _ in range(2)]
    zeros += ["", net.const(rng.uniform(0, 16, (n, 2)).astype(np.float32))]
    groups = [net.const(rng.permutation(np.arange(k) // 32), np.int32) for _ in range(2)]
    attrs = {"K": k, "N": n, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
    results = [net("MatMulNBits", x, codes, scales, z, **attrs) for z in zeros]
    results += [net("MatMulNBits", x, codes, scales, "", g, **attrs) for g in groups]
    graph = net.graph(*results)
    trace = schedule_only(graph, *RULES)
    assert trace.applied() == {"matmul-nbits": len(results), "pack-nbits": len(results)}
    assert_same(net, graph, {"x": normal(5, k)})


@pytest.mark.parametrize(
    ("axis", "shape", "block", "why"),
    [
        (0, (90,), 0, "its matrix has a scale for each row"),
        (1, (90, 2), 16, "its blocks are not along k"),
        (0, (9, 24), 10, "blocks of 10 are not supported"),
    ],
)
def test_other_blocks_are_the_reason(
    axis: int, shape: tuple[int, ...], block: int, why: str
) -> None:
    attrs = {"axis": axis, **({"block_size": block} if block else {})}
    _, graph = dequantized(whole(np.int8, 90, 24), np.ones(shape, np.float32), None, **attrs)
    assert reasons(schedule_only(graph, *RULES), "dequantized-gemm") == {why}


@pytest.mark.compiler
def test_a_model_is_verified(tmp_path: Path) -> None:
    """Few rows and many, x rounded to int8 as ONNX Runtime does, with an epilogue."""
    rng = np.random.default_rng(2)
    constants = {
        "w": rng.integers(0, 256, (48, 3, 16), np.uint8),
        "s": rng.uniform(0.01, 0.1, (48, 3)).astype(np.float32),
        "z": rng.integers(0, 256, (48, 2), np.uint8),
        "v": whole(ml_dtypes.int4, 48, 40),
        "t": rng.uniform(0.01, 0.1, (3, 40)).astype(np.float32),
    }
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[n, 90] x) => (float[n, 40] y) {
            h = com.microsoft.MatMulNBits <K = 90, N = 48, bits = 4, block_size = 32,
                accuracy_level = 4> (x, w, s, z)
            r = Sigmoid(h)
            a = Mul(h, r)
            d = DequantizeLinear <axis = 0, block_size = 16> (v, t)
            y = MatMul(a, d)
        }""")
    for name, array in constants.items():
        kind = TensorProto.INT4 if name == "v" else helper.np_dtype_to_tensor_dtype(array.dtype)
        data = packed(array.view(np.uint8).ravel() & 15, 4) if name == "v" else array
        tensor = helper.make_tensor(name, kind, array.shape, data.tobytes(), raw=True)
        model.graph.initializer.append(tensor)
    onnx.save(model, tmp_path / "m.onnx")
    report = optimize(tmp_path / "m.onnx", Options(keep="all", shapes=({"n": 1}, {"n": 40})))
    assert report.status == "passed" and report.error is not None and report.error < 1e-5
    kinds = {node.op_type for node in onnx.load(report.output).graph.node}
    assert not kinds & {"MatMulNBits", "MatMul", "DequantizeLinear"}


@pytest.mark.parametrize(("bits", "with_zeros"), [(4, False), (4, True), (8, False), (8, True)])
def test_a_table_of_bytes_is_a_matrix(bits: int, with_zeros: bool) -> None:
    net, rng = Net(opset=21), np.random.default_rng(4)
    codes = rng.integers(0, 2**bits, (9, 64), np.uint8)
    own = rng.integers(0, 2**bits, (9, 4), np.uint8)
    scales = rng.uniform(0.01, 0.1, (9, 4)).astype(np.float32)
    operands = [
        net.const(packed(codes, bits), np.uint8), net.input("ids", "n", dtype=DType.I64),
        net.const(scales), *([net.const(packed(own, bits), np.uint8)] if with_zeros else []),
    ]  # fmt: skip
    attrs = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    y = net("GatherBlockQuantized", *operands, domain="com.microsoft", **attrs)
    graph = net.graph(y)
    trace = schedule_only(graph, QuantizedEmbedding(), RulePass(PACK_NBITS_TABLE))
    assert trace.applied() == {"quantized-embedding": 1, "pack-nbits-table": 1}
    assert_same(net, graph, {"ids": np.array([3, 0, -1, 8])})


TABLES: dict[str, tuple[dict[str, int], int, str]] = {
    "blocks": ({"block_size": 20}, 4, "codes of 4 bits in blocks of 20 are not supported"),
    "columns": (
        {"gather_axis": 1}, 4, "it does not gather rows, or its blocks are not along the rows"
    ),
    "sizes": ({}, 3, "the block size does not divide the length of its rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_an_unsupported_table_is_the_reason(name: str) -> None:
    attrs, blocks, why = TABLES[name]
    net = Net(opset=21)
    codes = net.const(np.zeros((9, 32), np.uint8), np.uint8)
    assert looked_up(net, codes, blocks, attrs) == {why}


def test_a_table_that_is_not_constant_is_the_reason() -> None:
    net = Net(opset=21)
    codes = net.input("codes", 9, 32, dtype=DType.U8)
    assert looked_up(net, codes, 4, {}) == {"'codes' is not constant"}


def looked_up(net: Net, codes: str, blocks: int, attrs: dict[str, int]) -> set[str]:
    """Why a look-up in a table of 4-bit codes stays as it is."""
    given = {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1} | attrs
    y = net(
        "GatherBlockQuantized", codes, net.input("ids", "n", dtype=DType.I64),
        net.const(np.ones((9, blocks), np.float32)), domain="com.microsoft", **given,
    )  # fmt: skip
    return reasons(schedule_only(net.graph(y), QuantizedEmbedding()), "quantized-embedding")
