"""GPUs leave products of 8-bit integers to ONNX Runtime, with a reason."""

from __future__ import annotations

import numpy as np

from tests.graphs import Net, schedule_only
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.passes.quantized.dynamic import MATMUL_INTEGER
from tracea_graph.rewrite import RulePass


def test_products_of_integers_have_no_kernel() -> None:
    net = Net()
    x, w = net.input("x", "n", 8, dtype=DType.U8), net.const(np.ones((8, 4), np.int8), np.int8)
    graph = net.graph(net("Cast", net("MatMulInteger", x, w), to=DType.F32.onnx))
    schedule_only(graph, RulePass(MATMUL_INTEGER))
    (region,) = (r for r in graph.regions() if r.fused)
    assert GPU.lacks(graph, region) == "there is no GPU kernel for products of 8-bit integers"
