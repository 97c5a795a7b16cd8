"""Bodies in the place of custom ops."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.commands.samples import DOMAIN, result
from tracea_graph.check.worker_process import Worker
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes, custom_op_of_inlined
from tracea_graph.onnx_io.model_reader import load


def test_calls_tell_what_they_replaced(tmp_path: Path) -> None:
    (call,) = custom_op_nodes(load(result(tmp_path)))
    assert call.name == "tracea_0_FusedGemm_ab"
    assert (call.op, call.rule) == ("FusedGemm_ab", "gemm-chain")
    assert call.originals == ("/a/MatMul", "/a/Relu")
    assert call.inputs == ("x", "panels", "bias")


def test_a_call_without_a_name_goes_by_its_result(tmp_path: Path) -> None:
    path = result(tmp_path, named=False)
    assert custom_op_nodes(load(path))[0].name == "h"
    names = [n.name for r in load(path, inline=True).graph.regions() for n in r.nodes]
    assert {custom_op_of_inlined(name) for name in names} >= {"h"}


def test_inlined_bodies_are_standard_operators_with_shapes(tmp_path: Path) -> None:
    graph = load(result(tmp_path), inline=True).graph
    assert all(DOMAIN not in region.op for region in graph.regions())
    (product,) = [r for r in graph.regions() if r.op == "MatMul"]
    assert custom_op_of_inlined(product.node.name) == "tracea_0_FusedGemm_ab"
    assert graph.spec(product.results[0]).shape == ("batch", 32)


def test_large_constants_after_a_call_keep_their_data(tmp_path: Path) -> None:
    """Their bytes are found by the index of their node, which inlining moves."""
    path = result(tmp_path)
    with Worker() as worker:
        worker.open("m", path)
        wanted = worker.run("m", {"x": np.zeros((1, 48), np.float32)})["big"]
    inlined = load(path, inline=True).graph
    assert np.array_equal(inlined.weights["big"].array(), wanted)


def test_without_the_option_nothing_changes(tmp_path: Path) -> None:
    graph = load(result(tmp_path)).graph
    assert [r.op for r in graph.regions() if "Fused" in r.op] == [f"{DOMAIN}::FusedGemm_ab"]


def test_other_names_have_no_caller() -> None:
    assert custom_op_of_inlined("/layer/MatMul") == ""
    assert custom_op_of_inlined("tracea_0_X//3") == "tracea_0_X"
