"""Inputs and outputs of fp16 models on GPUs: casts are part of programs, and kernels do them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.gpu.launches import programs
from tests.kernels.gpu.cases import gemm
from tests.kernels.gpu.machine import Memory
from tests.kernels.gpu.programs import run_program
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernel_selection import variants_of
from tracea_graph.kernels.gpu.lowering.lower import calls_of
from tracea_graph.onnx_io import load
from tracea_graph.ops.chain import FULL, Chain
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams

WIDENED = ElementwiseParams(Chain((FULL,), (), (0,), (DType.F16,), (DType.F32,)))
ROUNDED = ElementwiseParams(Chain((FULL,), (), (0,), (), (DType.F16,)))


def fp16_layer(folder: Path) -> Path:
    """Write Gelu(x · w + b) in fp16, with GELU's constants rounded to it."""
    rng = np.random.default_rng(0)
    held = {"w": rng.standard_normal((64, 72)), "b": rng.standard_normal(72),
            "root": np.array(2.0**0.5), "one": np.array(1.0), "half": np.array(0.5)}  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Div", ["s", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["f"]),
        helper.make_node("Mul", ["s", "f"], ["m"]),
        helper.make_node("Mul", ["m", "half"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, ["rows", width])
            for n, width in (("x", 64), ("y", 72)))  # fmt: skip
    weights = [numpy_helper.from_array(a.astype(np.float16), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "layer", [x], [y], weights)
    path = folder / "layer.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_casts_of_inputs_and_outputs_need_no_launch(tmp_path: Path) -> None:
    (placed,), graph, _ = programs(load(fp16_layer(tmp_path)), "fp16", shape={"rows": 512})
    assert placed.region.writes == ("y",) and "x" in placed.region.operands
    assert [s.dtype for s in placed.program.outputs] == [DType.F16]
    read = [s.dtype for v, s in zip(placed.region.operands, placed.program.inputs, strict=True)
            if v == "x"]  # fmt: skip
    assert read == [DType.F16]
    (product,) = (c for c in calls_of(graph, placed.region) if c.op == "gemm")
    assert product.chain is not None and [s.op for s in product.chain.steps] == ["gelu"]
    written = [v.buffer for v in CALLS.of(product).named(product)["y"]]
    assert [b.kind for b in written] == ["output"]


def test_rows_at_odd_addresses_are_not_stored_by_alternating_tiles() -> None:
    def tiles(columns: int) -> list[str]:
        made, _ = gemm("f16", 8192, columns, 768, "nk", pad=0)(Memory(), np.random.default_rng(0))
        return [variant.tile for variant, _ in variants_of(made)]

    assert tiles(3072)[0].endswith("x2") and tiles(3071)[0].endswith("x1")


@pytest.mark.compiler
@pytest.mark.parametrize("narrow", ["f16", ""])
def test_a_program_reads_and_writes_fp16(narrow: str) -> None:
    """Also where the product itself is computed in float32."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(kind)
            for shape, kind in (((20, 32), np.float16), ((32, 24), np.float32)))  # fmt: skip
    steps = (RegionStep(WIDENED, (0,)), RegionStep(GemmParams(32, 24), (2, 1), 1, narrow),
             RegionStep(ROUNDED, (3,)))  # fmt: skip
    (got,) = run_program(RegionParams(2, steps, (4,)), [x, w])
    want = x.astype(np.float64) @ w.astype(np.float64)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * np.abs(want).max())
